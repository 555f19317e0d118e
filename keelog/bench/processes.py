"""The processes of a load: started, set off together, listened to, and their rows summed up.

Rows of many processes become streams: seconds, and summaries with and without the warm-up.
"""

import json
import queue
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from keelog.bench.job import SECOND_NS, LatencyHistogram, LoadJob
from keelog.bench.results import Second, Stream, Summary
from node.supervisor.child_process import command, environment
from protocol.errors import MqError, RequestTimeout

START_S_MAX = 120.0
END_S_MAX = 60.0
SHORT_ROW_S = 0.5
"""A shorter row, the last of a process, counts to the second before it."""
EARLY_NS = 10_000_000
"""Clocks may wake up so much early: such a row still begins after the warm-up."""
_START_DELAY_NS = 100_000_000
"""From the word to go to the first message, so that all processes have heard it."""


class LoadFailed(MqError):
    """A process of the load ended before its time."""


@dataclass(slots=True, eq=False)
class Member:
    """One process."""

    name: str
    process: subprocess.Popen[str]
    generator: float | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class SecondFigures:
    """The figures of one process for about a second; `start` and `end` in monotonic ns."""

    member: str
    start: int
    end: int
    streams: dict[str, dict[str, Any]]


@dataclass(slots=True)
class Fleet:
    """All of them, as a context: at its end none is left."""

    members: list[Member] = field(default_factory=list)
    _said: "queue.SimpleQueue[tuple[Member, dict[str, Any]]]" = field(
        default_factory=queue.SimpleQueue
    )

    def start(self, jobs: Sequence[LoadJob]) -> list[Member]:
        """Starts a process for each job and returns when all are ready. Raises LoadFailed."""
        begun = [self._start(job) for job in jobs]
        ready: set[int] = set()
        deadline = time.monotonic() + START_S_MAX
        while len(ready) < len(begun):
            try:
                member, said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise RequestTimeout(f"a load process is not ready after {START_S_MAX} s") from None
            self._check(member, said)
            member.generator = said["generator"]
            ready.add(member.process.pid)
        return begun

    def _start(self, job: LoadJob) -> Member:
        process = subprocess.Popen(
            command("keelog.bench.load_process", ()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            process_group=0,
        )
        member = Member(f"{job.role} {job.number}", process)
        self.members.append(member)
        threading.Thread(target=self._listen, args=(member,), daemon=True).start()
        _send(member, msgspec.json.encode(job).decode())
        return member

    def _listen(self, member: Member) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            self._said.put((member, json.loads(line)))
        self._said.put((member, {"say": "gone"}))

    def go(self, members: Sequence[Member], start_ns: int | None = None) -> int:
        """Sets them off together; returns the moment, in monotonic ns."""
        start = time.monotonic_ns() + _START_DELAY_NS if start_ns is None else start_ns
        for member in members:
            _send(member, json.dumps({"go": start}))
        return start

    def rows(self, until_ns: int) -> Iterator[SecondFigures]:
        """Yields rows until a moment; returns earlier when all are done. Raises LoadFailed."""
        while not all(member.is_done for member in self.members):
            left = (until_ns - time.monotonic_ns()) / 1e9
            if left <= 0:
                return
            try:
                member, said = self._said.get(timeout=left)
            except queue.Empty:
                return
            self._check(member, said)
            if said["say"] == "done":
                member.is_done = True
            elif said["say"] == "row":
                yield SecondFigures(member.name, said["start"], said["end"], said["streams"])

    def _check(self, member: Member, said: dict[str, Any]) -> None:
        if said["say"] == "failed":
            raise LoadFailed(f"{member.name}: {said['error']}: {said['reason']}", said["hint"])
        if said["say"] == "gone" and not member.is_done:
            raise LoadFailed(f"{member.name} ended with {member.process.wait()}", "see stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if not member.is_done:
                member.process.kill()
        for member in self.members:
            member.process.wait(END_S_MAX)
            for pipe in (member.process.stdin, member.process.stdout):
                assert pipe is not None
                pipe.close()


def _send(member: Member, line: str) -> None:
    assert member.process.stdin is not None
    member.process.stdin.write(line + "\n")
    member.process.stdin.flush()


@dataclass(slots=True)
class _Share:
    """The part of one process; `idle_ns` of its `ns` lie after its last message."""

    ns: int = 0
    idle_ns: int = 0
    messages: int = 0
    bytes: int = 0

    def add(self, row: SecondFigures, figures: dict[str, Any]) -> None:
        self.ns += row.end - row.start
        self.messages += figures["messages"]
        self.bytes += figures["bytes"]
        last_ns = figures["last"]
        self.idle_ns = 0 if last_ns is None else min(row.end - last_ns, self.ns)


@dataclass(slots=True)
class _Sum:
    """Messages of some time."""

    messages: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    by_member: dict[str, _Share] = field(default_factory=lambda: defaultdict(_Share))

    def add(self, row: SecondFigures, figures: dict[str, Any], latency: LatencyHistogram) -> None:
        self.messages += figures["messages"]
        self.failures.update(figures["failures"])
        self.latency.merge(latency)
        self.by_member[row.member].add(row, figures)

    def _rates(self, spans: list[tuple[int, _Share]]) -> tuple[float, float]:
        """Messages and bytes a second, of all processes together, each by its own clock."""
        return (
            sum(mine.messages * SECOND_NS / ns for ns, mine in spans if ns),
            sum(mine.bytes * SECOND_NS / ns for ns, mine in spans if ns),
        )

    def second(self, at: float) -> Second:
        """All of its time counts: a process that waits in it may get more."""
        rate, speed = self._rates([(mine.ns, mine) for mine in self.by_member.values()])
        figures = self.latency.figures()
        return Second(
            at, self.messages, round(rate, 1), round(speed / 1e6, 3),
            sum(self.failures.values()), figures["p50_ms"], figures["p99_ms"],
        )  # fmt: skip

    def summary(self) -> Summary:
        """The time of each process up to its last message; `seconds` is the longest."""
        spans = [(mine.ns - mine.idle_ns, mine) for mine in self.by_member.values()]
        rate, speed = self._rates(spans)
        return Summary(
            seconds=round(max((ns for ns, _ in spans), default=0) / SECOND_NS, 3),
            messages=self.messages,
            messages_per_s=round(rate, 1),
            mb_per_s=round(speed / 1e6, 3),
            failures=dict(self.failures),
            **self.latency.figures(),
        )


class Tally:
    """All streams of a load."""

    def __init__(
        self, start_ns: int, warm_up_s: float, is_marked: Callable[[float], bool] | None = None
    ) -> None:
        self._is_marked = is_marked
        self._by_mark: dict[tuple[str, bool], _Sum] = defaultdict(_Sum)
        self._start_ns = start_ns
        self._warm_up_ns = int(warm_up_s * SECOND_NS)
        self._all: dict[str, _Sum] = defaultdict(_Sum)
        self._steady: dict[str, _Sum] = defaultdict(_Sum)
        self._seconds: dict[str, dict[int, _Sum]] = defaultdict(lambda: defaultdict(_Sum))
        self._closed: dict[str, dict[int, Second]] = defaultdict(dict)

    def add(self, row: SecondFigures) -> None:
        number = round((row.start - self._start_ns) / SECOND_NS)
        if row.end - row.start < SHORT_ROW_S * SECOND_NS and number:
            number -= 1
        is_steady = row.start - self._start_ns >= self._warm_up_ns - EARLY_NS
        for name, figures in row.streams.items():
            latency = LatencyHistogram.of(figures["latency"])
            self._all[name].add(row, figures, latency)
            if is_steady:
                self._steady[name].add(row, figures, latency)
            if number not in self._closed[name]:
                self._seconds[name][number].add(row, figures, latency)

    def close(self, number: int) -> dict[str, Second]:
        """The figures of one second of each stream; what comes for it later counts in sums only."""
        found = {}
        for name, seconds in self._seconds.items():
            if number in seconds:
                second = seconds.pop(number)
                if self._is_marked is not None and number * SECOND_NS >= self._warm_up_ns:
                    mark = self._is_marked(number + 1.0)
                    self._by_mark[name, mark].latency.merge(second.latency)
                self._closed[name][number] = found[name] = second.second(number + 1.0)
        return found

    def marked_figures(self, name: str) -> dict[str, dict[str, float | None]]:
        """Latencies of a stream in seconds that were marked, and in the others."""
        return {
            text: self._by_mark[name, mark].latency.figures()
            for text, mark in (("seconds_with_kills", True), ("seconds_without", False))
            if (name, mark) in self._by_mark
        }

    def streams(self) -> dict[str, Stream]:
        """Everything. Without a row after the warm-up, the steady figures are those of all."""
        for name in list(self._all):
            for number in sorted(self._seconds[name]):
                self.close(number)
        return {
            name: Stream(
                whole.summary(),
                (self._steady.get(name) or whole).summary(),
                [second for _, second in sorted(self._closed[name].items())],
                (self._steady.get(name) or whole).latency.distribution(),
            )
            for name, whole in self._all.items()
        }
