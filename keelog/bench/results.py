"""The figures of a load as plain values: the JSON document, limits for it, comparisons of two.

Rates are messages a second, MB are 10**6 bytes of bodies, latencies ms. Adding a field is allowed,
renaming or removing one is not. A run must keep its limits; two runs are compared figure by
figure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import msgspec

from keelog.text import ms_text
from protocol.human_text import count_text

Figures = dict[str, Any]
SHAPE = 1
SAME = 0.05
"""Ratios nearer to 1 than this say nothing: runs differ by as much."""
GUARDED = ("messages/s", "p50_ms", "p99_ms", "CPU s/million")
"""The figures that `--max-regression` compares: a second run repeats them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A stream of messages over some time. Latencies are None where nothing was timed."""

    seconds: float
    messages: int
    messages_per_s: float
    mb_per_s: float
    failures: dict[str, int]
    avg_ms: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class Second:
    """One second of a stream; `at` are seconds since the start, at its end."""

    at: float
    messages: int
    messages_per_s: float
    mb_per_s: float
    failures: int
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Stream:
    """All of a stream, without its warm-up, and second by second."""

    summary: Summary
    steady: Summary
    seconds: list[Second]
    distribution: list[tuple[float, float]]
    """Of the steady part: latency in ms at each of some percentiles, (percent, ms)."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """The cost of one process. CPU seconds count from the start of the load until all was
    dispatched; memory is the most that was seen, None where it cannot be read.

    `anon_bytes` is what is not backed by files: PSS without the page cache of the store.
    """

    name: str
    cpu_s: float
    cpu_s_per_million: float | None
    pss_bytes: int | None
    uss_bytes: int | None
    anon_bytes: int | None
    pids: int
    """More than one: it was started again."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A look at all processes: `at` seconds since the start; CPU as cores; lag and memory in
    bytes."""

    at: float
    cpu: dict[str, float]
    lag: dict[str, int]
    anon: dict[str, int]


@dataclass(slots=True)
class Result:
    """A whole load. `main` names the stream that the load is about."""

    kind: str
    main: str
    workload: Figures
    machine: Figures
    streams: dict[str, Stream] = field(default_factory=dict)
    processes: list[ProcessUse] = field(default_factory=list)
    looks: list[ProcessSample] = field(default_factory=list)
    cpu_s_per_million: float | None = None
    """Of all processes, clients too."""
    generator_cpu_s_per_million: float | None = None
    """The part of it that is neither node nor client: the loop that makes the load."""
    lag_at_end_bytes: dict[str, int] = field(default_factory=dict)
    dispatched_after_s: float | None = None
    """From the last answer until queues and index held everything."""
    checks: Figures = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Messages that were lost, or came twice or in another order."""
    limits_broken: list[str] = field(default_factory=list)
    shape: int = SHAPE

    @property
    def steady(self) -> Summary:
        """The main stream without its warm-up."""
        return self.streams[self.main].steady

    @property
    def summary(self) -> Summary:
        return self.streams[self.main].summary

    def as_dict(self) -> Figures:
        """For JSON; the main stream's summaries come first."""
        fields = asdict(self)
        front = {"shape": fields.pop("shape"), "kind": self.kind, "main": self.main}
        front["summary"], front["steady"] = asdict(self.summary), asdict(self.steady)
        return {**front, **fields}

    @classmethod
    def of(cls, fields: Figures) -> Self:
        """From `as_dict`, through JSON. Raises ValueError for anything else."""
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None


def broken_limits(result: Result, limits: Mapping[str, float]) -> list[str]:
    """A sentence for each limit that is broken, also where there is nothing to hold it to.

    `limits` of the steady figures of the main stream: `max_p50`, `max_p99`, `max_p999` in seconds,
    `min_rate` in messages/s, `max_cpu` in CPU seconds per million messages.
    """
    steady = result.steady
    said = []
    for name in ("p50", "p99", "p999"):
        found, limit_s = getattr(steady, f"{name}_ms"), limits.get(f"max_{name}")
        if limit_s is not None and (found is None or found > limit_s * 1e3):
            said.append(f"{name} is {ms_text(found)}, {ms_text(limit_s * 1e3)} is allowed")
    least, cpu, cpu_max = limits.get("min_rate"), result.cpu_s_per_million, limits.get("max_cpu")
    if least is not None and steady.messages_per_s < least:
        rate = count_text(steady.messages_per_s)
        said.append(f"{rate} messages/s, {count_text(least)} are asked for")
    if cpu_max is not None and (cpu is None or cpu > cpu_max):
        said.append(f"{cpu} CPU seconds per million messages, {cpu_max} are allowed")
    return said


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs; `ratio` is after / before, `worse` the part by which it got worse."""

    figure: str
    before: float
    after: float
    ratio: float
    worse: float

    def row(self) -> dict[str, Any]:
        verdict = "same"
        if abs(self.worse) > SAME:
            verdict = "worse" if self.worse > 0 else "better"
        return {
            "figure": self.figure,
            "before": self.before,
            "after": self.after,
            "ratio": round(self.ratio, 3),
            "verdict": verdict,
        }


def differences(before: Result, after: Result) -> Iterator[Difference]:
    """Every figure that both have: of each stream's steady part, CPU and memory of processes."""
    for name, stream in before.streams.items():
        if name in after.streams:
            old, new = stream.steady, after.streams[name].steady
            rates = old.messages_per_s, new.messages_per_s
            yield from _one(f"{name}: messages/s", *rates, more_is_better=True)
            for figure in ("avg_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"):
                yield from _one(f"{name}: {figure}", getattr(old, figure), getattr(new, figure))
    yield from _one("CPU s/million", before.cpu_s_per_million, after.cpu_s_per_million)
    yield from _one("dispatched after s", before.dispatched_after_s, after.dispatched_after_s)
    theirs = {one.name: one for one in after.processes}
    for mine in before.processes:
        if mine.name in theirs:
            other = theirs[mine.name]
            cpus = mine.cpu_s_per_million, other.cpu_s_per_million
            yield from _one(f"{mine.name}: CPU s/million", *cpus)
            yield from _one(f"{mine.name}: anon bytes", mine.anon_bytes, other.anon_bytes)


def _one(
    figure: str, before: float | None, after: float | None, more_is_better: bool = False
) -> Iterator[Difference]:
    """Nothing where one of both is missing or 0."""
    if before and after:
        ratio = after / before
        yield Difference(figure, before, after, ratio, 1 - ratio if more_is_better else ratio - 1)


def regressions(found: list[Difference], main: str, share: float) -> list[str]:
    """Guarded figures of the main stream, and the CPU of all, that got worse by more than that."""
    guarded = {f"{main}: {name}" for name in GUARDED[:3]} | {GUARDED[3]}
    return [
        f"{one.figure} is {one.ratio:.2f} times as before"
        for one in found
        if one.figure in guarded and one.worse > share
    ]
