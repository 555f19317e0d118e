"""The figures of a load process: a row each second, as a line of JSON.

Callers note latencies from any thread. Each note is an append to an array, which needs no lock.
The thread that takes a row copies what is there and deletes as much.
"""

from array import array
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from keelog.bench.load.histogram import LatencyHistogram


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
