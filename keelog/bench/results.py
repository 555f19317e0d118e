"""The figures of a load as plain values: the shape of the JSON document.

Rates are messages a second, MB are 10**6 bytes of bodies, latencies ms. Adding a field is allowed,
renaming or removing one is not.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

Figures = dict[str, Any]
SHAPE = 1


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
        """The main stream."""
        return self.streams[self.main].summary

    def as_dict(self) -> Figures:
        """For JSON; the main stream's summaries come first."""
        fields = asdict(self)
        front = {"shape": fields.pop("shape"), "kind": self.kind, "main": self.main}
        front["summary"], front["steady"] = asdict(self.summary), asdict(self.steady)
        return {**front, **fields}

    @classmethod
    def of(cls, fields: Figures) -> Self:
        """From `as_dict`, through JSON."""
        known = {name: fields[name] for name in cls.__dataclass_fields__ if name in fields}
        known["streams"] = {
            name: Stream(
                Summary(**stream["summary"]),
                Summary(**stream["steady"]),
                [Second(**second) for second in stream["seconds"]],
                [(percent, ms) for percent, ms in stream["distribution"]],
            )
            for name, stream in fields["streams"].items()
        }
        known["processes"] = [ProcessUse(**one) for one in fields["processes"]]
        known["looks"] = [ProcessSample(**one) for one in fields["looks"]]
        return cls(**known)
