"""The work of one process of a load: what to do, when each request is due, and its figures.

A request is due now at full speed, else by a plan that slow replies do not change. The plan makes
the load an open loop. A request that goes out late, since all callers were busy, has waited in the
latency that is counted from its intended time: no omission is coordinated.

The figures are a row each second, as a line of JSON. Callers note latencies from any thread. Each
note is an append to an array, which needs no lock. The thread that takes a row copies what is
there and deletes as much. Latencies are kept in bounded memory, as counts in logarithmic buckets.
A bucket holds the values of one 128th of a power of two, so a percentile is off by 0.4 % at most.
Its number is the exponent and the first 7 bits of the mantissa of the value as a float.
"""

import ctypes
import itertools
import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from keelog.bench.workload import Workload

MANTISSA_BITS = 7
_SHIFT = 52 - MANTISSA_BITS
_FIRST_BUCKET = int(np.float64(1.0).view(np.int64)) >> _SHIFT
BUCKETS = 44 << MANTISSA_BITS
"""1 ns to 4.8 hours."""
PERCENTILES = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}
_PR_SET_TIMERSLACK = 29
_LAST_NS = 1 << 62
SECOND_NS = 1_000_000_000


class LatencyHistogram:
    """Counts of nanoseconds; sum and maximum are exact."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self.sum_ns = 0
        self.max_ns = 0

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, values_ns: NDArray[np.int64]) -> None:
        """Adds values; those below 1 ns count as 1 ns."""
        if not len(values_ns):
            return
        values = np.maximum(values_ns, 1)
        buckets = (values.astype(np.float64).view(np.int64) >> _SHIFT) - _FIRST_BUCKET
        self.counts += np.bincount(np.minimum(buckets, BUCKETS - 1), minlength=BUCKETS)
        self.sum_ns += int(values.sum())
        self.max_ns = max(self.max_ns, int(values.max()))

    def merge(self, other: Self) -> None:
        self.counts += other.counts
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    def percentile_ms(self, percent: float) -> float:
        """The value below or at which `percent` of all are, in ms. There must be some."""
        ranks = np.cumsum(self.counts)
        bucket = int(np.searchsorted(ranks, max(1.0, percent / 100 * ranks[-1])))
        middle = np.int64((bucket + _FIRST_BUCKET << _SHIFT) + (1 << _SHIFT - 1)).view(np.float64)
        return min(float(middle), float(self.max_ns)) / 1e6

    def figures(self) -> dict[str, float | None]:
        """Average, percentiles and maximum in ms; None without a value."""
        total = self.total
        if not total:
            return dict.fromkeys(("avg_ms", *PERCENTILES, "max_ms"))
        figures: dict[str, float | None] = {"avg_ms": round(self.sum_ns / total / 1e6, 4)}
        for name, percent in PERCENTILES.items():
            figures[name] = round(self.percentile_ms(percent), 4)
        return {**figures, "max_ms": round(self.max_ns / 1e6, 4)}

    def distribution(self) -> list[tuple[float, float]]:
        """(percent, ms) at steps that halve what is left above, as far as there are values."""
        total = self.total
        steps = [100 * (1 - 0.5 ** (step / 4)) for step in range(1, 4 * 20)]
        known = [percent for percent in steps if (100 - percent) / 100 * total >= 1]
        points = [(round(percent, 6), round(self.percentile_ms(percent), 4)) for percent in known]
        return [*points, (100.0, round(self.max_ns / 1e6, 4))] if total else []

    def as_dict(self) -> dict[str, Any]:
        """For JSON: only the buckets that hold something."""
        used = np.flatnonzero(self.counts)
        return {
            "buckets": used.tolist(),
            "counts": self.counts[used].tolist(),
            "sum_ns": self.sum_ns,
            "max_ns": self.max_ns,
        }

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        made = cls()
        made.counts[fields["buckets"]] = fields["counts"]
        made.sum_ns, made.max_ns = int(fields["sum_ns"]), int(fields["max_ns"])
        return made


class Recorder:
    """One stream of figures. `messages_each` is how many messages one noted request carries."""

    def __init__(self, messages_each: int = 1) -> None:
        self._each = messages_each
        self._latencies = array("q")
        self._sizes = array("q")
        self._failures: Counter[str] = Counter()
        self._counted: Callable[[], tuple[int, int]] | None = None
        self._before = (0, 0)
        self.last_ns: int | None = None
        """When the last message came, by the monotonic clock; None: waiting counts, too."""

    def note(self, latency_ns: int, size: int) -> None:
        """A request was answered; `size` are the bytes of its bodies."""
        self._latencies.append(latency_ns)
        self._sizes.append(size)

    def sample(self, latency_ns: int) -> None:
        """A latency alone, where `count_by` counts."""
        self._latencies.append(latency_ns)

    def fail(self, kind: str, messages: int = 1) -> None:
        """Counts messages that were not stored, or whose outcome is unknown."""
        self._failures[kind] += messages

    def count_by(self, counted: Callable[[], tuple[int, int]]) -> None:
        """Messages and bytes up to now come from `counted`, not from notes."""
        self._counted = counted

    def take(self) -> dict[str, Any]:
        """Returns the figures since the last call."""
        latencies, sizes = _cut(self._latencies), _cut(self._sizes)
        histogram = LatencyHistogram()
        histogram.add(latencies)
        if self._counted is None:
            messages, size = len(sizes) * self._each, int(sizes.sum())
        else:
            now = self._counted()
            messages, size = now[0] - self._before[0], now[1] - self._before[1]
            self._before = now
        failures, self._failures = self._failures, Counter()
        return {
            "messages": messages,
            "bytes": size,
            "failures": dict(failures),
            "latency": histogram.as_dict(),
            "last": self.last_ns,
        }


def _cut(values: "array[int]") -> "np.ndarray[Any, np.dtype[np.int64]]":
    count = len(values)
    # A copy: an array whose buffer is lent out takes no more values.
    part = values[:count]
    del values[:count]
    return np.frombuffer(part, np.int64)


class LoadPace:
    """Hands out moments on the monotonic clock, in ns; safe for threads.

    `interval_ns` lies between two requests of this process, 0 is full speed. It ends after
    `count` requests (None: no such limit) or at `end_ns`.
    """

    def __init__(
        self, start_ns: int, interval_ns: float, end_ns: int | None, count: int | None
    ) -> None:
        self._start_ns = start_ns
        self._interval_ns = interval_ns
        self._end_ns = _LAST_NS if end_ns is None else end_ns
        self._count = _LAST_NS if count is None else count
        self._taken = itertools.count()

    def next(self) -> int | None:
        """When the next request is to go out; None: no more."""
        number = next(self._taken)
        if number >= self._count:
            return None
        if not self._interval_ns:
            now = time.monotonic_ns()
            return now if now < self._end_ns else None
        due = self._start_ns + int(number * self._interval_ns)
        # A plan that is late ends in time all the same: the achieved rate shows it.
        return due if max(due, time.monotonic_ns()) < self._end_ns else None


def sleep_until(due_ns: int) -> None:
    """Returns at `due_ns`, or at once."""
    left = due_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


def wake_up_in_time() -> None:
    """Has the system wake this thread, and those it starts, without the usual 50 µs of slack.

    Where it cannot, sleeping is less exact, which the lateness in the result shows.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


@dataclass(slots=True)
class LoadJob:
    """The work of process `number` of `of` in a role; see ROLES in load_process.py."""

    role: str
    number: int
    of: int
    endpoint: str
    topics: tuple[str, ...]
    workload: Workload
    folder: str | None = None
    """A folder for its files."""
    streams: dict[str, Recorder] = field(default_factory=dict)

    def stream(self, name: str, messages_each: int = 1) -> Recorder:
        self.streams[name] = Recorder(messages_each)
        return self.streams[name]

    def share_of(self, count: int) -> int:
        """This process's part of what all do together."""
        return (count + self.of - 1 - self.number) // self.of

    def pace(self, start_ns: int) -> LoadPace:
        """This process's part of the plan: it takes every `of`-th moment."""
        load = self.workload
        each = load.messages_at_once
        interval = each * self.of * SECOND_NS / load.rate if load.rate else 0.0
        first = start_ns + int(interval * self.number / self.of)
        if load.count is not None:
            return LoadPace(first, interval, None, -(-self.share_of(load.count) // each))
        return LoadPace(first, interval, self.end_ns(start_ns), None)

    def end_ns(self, start_ns: int) -> int:
        """When a load of some duration ends."""
        return start_ns + int((self.workload.warm_up + self.workload.duration) * SECOND_NS)

    def queues(self) -> list[tuple[str, int]]:
        """The queues that this process reads."""
        every = [(topic, queue) for topic in self.topics for queue in range(self.workload.queues)]
        return every[self.number :: self.of]


Prepared = tuple[Callable[[int], None], float | None]
"""A job that is ready to begin: its work from a moment on, and the CPU seconds for a million
messages that are the load's own, not the client's."""
