"""How long ago something was stored, whatever the clock did since: the one place that compares
stored times with now.

A stored time is of the wall clock of its moment, perhaps of another machine, and store times never
fall within a store. So it may lie ahead of now, and the clock may be set at any time. Nobody sets
the steady clock, but it knows of no time before this process.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

SET_MS = 500
"""The wall clock was set if it went otherwise than the steady one by more than this."""
ODD_MS = 60_000
"""For so long after the clock was set, stored times may be of before it."""
ODD_APART_MS = 1000
LOOKS_MAX = 1000
"""That are kept, and as many again; the interval between them follows from it."""


class Moment(NamedTuple):
    """One moment by both clocks, in ms: since 1970, and since the machine began."""

    wall_ms: int
    steady_ms: int

    def was_set_since(self, before: "Moment") -> bool:
        """Whether somebody set the wall clock in between."""
        return abs(self.set_by_ms(before)) > SET_MS

    def set_by_ms(self, before: "Moment") -> int:
        """By how much the wall clock was set since then; below 0: back."""
        return self.wall_ms - before.wall_ms - (self.steady_ms - before.steady_ms)


def moment() -> Moment:
    """Now. The steady clock counts while the machine sleeps, too."""
    return Moment(
        time.time_ns() // 1_000_000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    )


class ClockSet(NamedTuple):
    """When the wall clock was set, on the steady clock, and by how much; below 0: back."""

    steady_ms: int
    by_ms: int


class _EndLook(NamedTuple):
    """What lies before `end`, and after the end of the look before it, was there at `at`."""

    end: int
    at: Moment
    is_odd: bool


class Arrivals:
    """When the messages of a queue, or of the log, came: from looks at where it ends.

    A message is as old as the wall clock said when it was first seen, and ages by the steady clock
    from then on. It counts as new when it was first seen if its time lay ahead then, or if somebody
    had just set the clock.
    """

    def __init__(self, keep_ms: int, began: Moment, sets: Sequence[ClockSet] = ()) -> None:
        """Ages of `keep_ms` and more may be given as any of these. `sets`: what is known of the
        clock before it `began`, so that no message of that time seems older than it is."""
        self._keep_ms = keep_ms
        self._sets = sets
        self._looks: list[_EndLook] = []
        self._last = began
        self._odd_until_ms = 0

    def look(self, end: int, at: Moment) -> None:
        """All that lies before the offset `end` is there."""
        looks = self._looks
        if at.was_set_since(self._last):
            self._odd_until_ms = at.steady_ms + ODD_MS
        self._last = at
        if not looks:
            at = at._replace(wall_ms=at.wall_ms - self._ahead_since(at.steady_ms - self._keep_ms))
        if looks and end <= looks[-1].end:
            return
        is_odd = at.steady_ms < self._odd_until_ms
        # The first look is of all that came before this process: it stays as it is.
        if len(looks) > 2 and is_odd == looks[-1].is_odd:
            apart_ms = ODD_APART_MS if is_odd else self._keep_ms // LOOKS_MAX
            if at.steady_ms < looks[-2].at.steady_ms + apart_ms:
                looks.pop()
        looks.append(_EndLook(end, at, is_odd))
        if len(looks) > 2 * LOOKS_MAX:
            del looks[: self._first_within(at) - 1]
            del looks[: -2 * LOOKS_MAX]

    def _ahead_since(self, steady_ms: int) -> int:
        """How far the wall clock is ahead, at the most, of what it would be without its sets since
        then."""
        by_ms = [one.by_ms for one in self._sets if one.steady_ms >= steady_ms]
        return max(accumulate(reversed(by_ms), initial=0))

    def _first_within(self, at: Moment) -> int:
        since_ms = at.steady_ms - self._keep_ms
        return max(1, bisect_left(self._looks, since_ms, key=lambda look: look.at.steady_ms))

    def age_ms(self, offset: int, stored_ms: int, now: Moment) -> int:
        """How long ago the message at an offset was stored; 0 for one that nobody has seen."""
        found = bisect_right(self._looks, offset, key=lambda look: look.end)
        if found == len(self._looks):
            return 0
        look = self._looks[found]
        before_ms = 0 if look.is_odd else max(0, look.at.wall_ms - stored_ms)
        return before_ms + max(0, now.steady_ms - look.at.steady_ms)
