"""Things to do later, in order of time; cancelled ones do not pile up."""

import heapq
from collections.abc import Callable, Iterable
from itertools import count

Action = Callable[[], object]
CANCELLED_MAX = 1_000
"""Cancelled entries that are kept before they are swept out."""


def run_all(actions: Iterable[Action]) -> None:
    """Does all of them, then raises the first error that one raised."""
    raised: BaseException | None = None
    for action in actions:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 (raised again below)
            raised = raised or error
    if raised is not None:
        raise raised


class Timer:
    """One thing to do at `when`; `cancel` makes it nothing."""

    __slots__ = ("_timers", "action", "when")

    def __init__(self, timers: "Timers", when: float, action: Action) -> None:
        self._timers = timers
        self.when = when
        self.action: Action | None = action

    def cancel(self) -> None:
        """Nothing happens at `when`; harmless afterwards."""
        if self.action is not None:
            self.action = None
            self._timers.forget_one()


class Timers:
    """A heap of timers. Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = count()
        self._cancelled = 0

    def at(self, when: float, action: Action) -> Timer:
        """`action` is due at `when`."""
        timer = Timer(self, when, action)
        heapq.heappush(self._heap, (when, next(self._numbers), timer))
        return timer

    def next_at(self) -> float | None:
        """When the first entry is due, or None."""
        while self._heap and self._heap[0][2].action is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def sleep_ms(self, now: float, most_ms: int) -> int:
        """Milliseconds until the first entry is due, at most `most_ms`."""
        next_at = self.next_at()
        if next_at is None:
            return most_ms
        # Rounded up: waking a fraction of a millisecond early would only turn a loop again.
        return min(most_ms, max(0, int((next_at - now) * 1000 + 0.999)))

    def take_due(self, now: float) -> list[Action]:
        """Removes and returns the actions due by `now`, in order of time."""
        due: list[Action] = []
        while (when := self.next_at()) is not None and when <= now:
            timer = heapq.heappop(self._heap)[2]
            assert timer.action is not None
            due.append(timer.action)
            timer.action = None
        return due

    def forget_one(self) -> None:
        """Counts a cancelled entry; sweeps when most of the heap is such."""
        self._cancelled += 1
        if self._cancelled > CANCELLED_MAX and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
