"""RocketMQ's own integration tests, unmodified, at any servers: classes, outcomes, a table.

integration_tests/ is the Maven project that brings them. Each test makes topics and groups with
random names, so several classes run at a time: one in each of a few Java processes for each side.
"""

import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from scripts.rivals.rocketmq import Jvm

PROJECT = Path(__file__).parent / "integration_tests"
PACKAGE = "org.apache.rocketmq.test."
HEAP = ("-Xms32m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
PASSED, IGNORED = "passed", "ignored"
LIMIT_S = 300
"""For a class; the longest takes a minute. What it has not finished by then has not passed."""
LATE_S = 60


class Servers(NamedTuple):
    """One side: where its name server is, and what cluster and broker are called."""

    side: str
    name_server: str
    cluster: str
    broker: str


class Outcome(NamedTuple):
    """What one test of a class came to: passed, failed, ignored or unfinished, and why."""

    outcome: str
    seconds: float
    why: str


Outcomes = Mapping[str, Outcome]
"""Of each test of a class, by its name."""


def run_classes(
    classes: Sequence[str],
    sides: Sequence[Servers],
    class_path: str,
    home: Path,
    jvms: int,
) -> dict[str, dict[str, Outcomes]]:
    """Runs all classes at all sides at once, in `jvms` processes for each side.

    Classes are named without PACKAGE; put those that take long first. Returns the outcomes by side
    and class.
    """
    found: dict[str, dict[str, Outcomes]] = {one.side: {} for one in sides}
    with ThreadPoolExecutor(len(sides) * jvms) as threads:
        running = []
        for servers in sides:
            left: SimpleQueue[str] = SimpleQueue()
            for one in classes:
                left.put(one)
            for number in range(jvms):
                runner = _Runner(servers, class_path, home / f"{servers.side}-{number}")
                running.append(threads.submit(runner.run_all, left, found[servers.side]))
        for one_of_all in running:
            one_of_all.result()
    return found


class _Runner:
    """Runs classes in one Java process, and in the next one after a class that hung."""

    def __init__(self, servers: Servers, class_path: str, home: Path) -> None:
        self._home = home
        self._options = [*HEAP, "-cp", class_path]
        self._options += [f"-Dtest.namesrv={servers.name_server}"]
        self._options += [f"-Dtest.cluster={servers.cluster}", f"-Dtest.broker={servers.broker}"]
        self._jvm: Jvm | None = None

    def run_all(self, left: "SimpleQueue[str]", found: dict[str, Outcomes]) -> None:
        """Takes classes from `left` until there are none."""
        try:
            while True:
                try:
                    one = left.get_nowait()
                except Empty:
                    return
                found[one] = self._run(one)
        finally:
            self._end()

    def _run(self, name: str) -> Outcomes:
        if self._jvm is None:
            self._jvm = Jvm("tests", self._home, [*self._options, "RunClasses"], talks=True)
        self._jvm.tell({"class": PACKAGE + name, "limit_s": LIMIT_S})
        # Its own clock ends a class; this one is for a process that does not even do that.
        watch = threading.Timer(LIMIT_S + LATE_S, os.kill, (self._jvm.pid, signal.SIGKILL))
        watch.start()
        try:
            answer = self._jvm.hear()
        finally:
            watch.cancel()
        if not answer["in_time"]:
            self._end()
        return {
            row["test"]: Outcome(row["outcome"], row["seconds"], row["why"])
            for row in answer["tests"]
        }

    def _end(self) -> None:
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm = None


class Compared(NamedTuple):
    """One test at both sides."""

    tests: str
    """Its class."""
    name: str
    """Class and test."""
    theirs: Outcome
    ours: Outcome

    @property
    def passed(self) -> bool:
        """Whether it did at both."""
        return self.theirs.outcome == self.ours.outcome == PASSED


def compare(theirs: Mapping[str, Outcomes], ours: Mapping[str, Outcomes]) -> Iterator[Compared]:
    """All tests that are not ignored. Raises AssertionError when the sides ran others."""
    for name, outcomes in theirs.items():
        assert outcomes.keys() == ours[name].keys(), f"{name}: the sides ran other tests"
        for test, outcome in outcomes.items():
            if outcome.outcome != IGNORED:
                yield Compared(name, f"{name}.{test}", outcome, ours[name][test])


def table(
    classes: Sequence[str], theirs: Mapping[str, Outcomes], ours: Mapping[str, Outcomes]
) -> str:
    """Class, tests, passed at RocketMQ, passed at Keelog; as Markdown."""
    rows = ["| class | tests | passed at RocketMQ | passed at Keelog |", "|---|---:|---:|---:|"]
    sums = [0, 0, 0]
    for one in sorted(classes):
        counts = [_count(theirs[one]), _passed(theirs[one]), _passed(ours[one])]
        rows.append(_row(f"`{one}`", counts))
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
    return "\n".join([*rows, _row("all", sums)]) + "\n"


def _row(name: str, counts: Sequence[int]) -> str:
    return f"| {name} | " + " | ".join(map(str, counts)) + " |"


def _count(outcomes: Outcomes) -> int:
    return sum(one.outcome != IGNORED for one in outcomes.values())


def _passed(outcomes: Outcomes) -> int:
    return sum(one.outcome == PASSED for one in outcomes.values())
