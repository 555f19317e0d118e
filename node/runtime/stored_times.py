"""How long ago something was stored, whatever the clock did since.

This is the one place that compares stored times with now. A stored time is of the wall clock of its
moment, perhaps of another machine, and store times never fall within a store. So it may lie ahead
of now, and the clock may be set at any time. Nobody sets the steady clock, but it knows of no time
before this process.

The writer notes in `keelog/run/clock`, as JSON, how the wall clock was set while the machine runs.
A process that begins learns from it that times of before are of a clock that was set since.
"""

import json
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.state_page import BOOT_ID, run_dir
from node.runtime.store_paths import RUN_FILE_BYTES_MAX, read_bounded

SET_MS = 500
"""The wall clock was set if it went otherwise than the steady one by more than this."""
ODD_MS = 60_000
"""For so long after the clock was set, stored times may be of before it."""
ODD_APART_MS = 1000
LOOKS_MAX = 1000
"""That are kept, and as many again; the interval between them follows from it."""

SETS_MAX = 1_000
SLACK_MS = 2_000
"""How much later than it was a set may be noted."""
_CLOCK_FILE = "clock"


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
            since_ms = at.steady_ms - self._keep_ms
            first = bisect_left(looks, since_ms, key=lambda look: look.at.steady_ms)
            del looks[: max(1, first) - 1]
            del looks[: -2 * LOOKS_MAX]

    def _ahead_since(self, steady_ms: int) -> int:
        """How far the wall clock is ahead, at the most, of what it would be without its sets since
        then."""
        by_ms = [one.by_ms for one in self._sets if one.steady_ms >= steady_ms]
        return max(accumulate(reversed(by_ms), initial=0))

    def age_ms(self, offset: int, stored_ms: int, now: Moment) -> int:
        """How long ago the message at an offset was stored; 0 for one that nobody has seen."""
        found = bisect_right(self._looks, offset, key=lambda look: look.end)
        if found == len(self._looks):
            return 0
        look = self._looks[found]
        before_ms = 0 if look.is_odd else max(0, look.at.wall_ms - stored_ms)
        return before_ms + max(0, now.steady_ms - look.at.steady_ms)


class ClockHistory(NamedTuple):
    """The clock as it was last set, and when it was set."""

    last: Moment
    sets: tuple[ClockSet, ...]


def read_clock(root: Path) -> ClockHistory | None:
    """None without a file of this run of the machine."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _CLOCK_FILE, RUN_FILE_BYTES_MAX))
        if found["boot"] != BOOT_ID.read_text():
            return None
        return ClockHistory(Moment(*found["last"]), tuple(ClockSet(*one) for one in found["sets"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_clock(root: Path, history: ClockHistory) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    document = {"boot": BOOT_ID.read_text(), "last": history.last, "sets": history.sets}
    disk.replace_unsynced(run_dir(root) / _CLOCK_FILE, json.dumps(document).encode())


def is_noted(root: Path, now: Moment, apart_ms: int) -> bool:
    """Whether the writer has seen the clock as it is, within `apart_ms`; also without a file."""
    known = read_clock(root)
    return known is None or abs(now.set_by_ms(known.last)) <= apart_ms


def set_since(root: Path, wall_ms: int, now: Moment) -> int:
    """By how much the clock was set since it last showed this time, in ms; 0 where nobody knows."""
    offset_ms, end_ms = now.wall_ms - now.steady_ms, now.steady_ms
    set_by_ms = 0
    for one in (*reversed(clock_sets(root, now)), ClockSet(0, 0)):
        if one.steady_ms - SLACK_MS <= wall_ms - offset_ms <= end_ms + SLACK_MS:
            return set_by_ms
        offset_ms, end_ms = offset_ms - one.by_ms, one.steady_ms
        set_by_ms += one.by_ms
    return 0


def clock_sets(root: Path, now: Moment) -> tuple[ClockSet, ...]:
    """How the clock was set, also since the writer looked last."""
    known = read_clock(root)
    if known is None:
        return ()
    by_ms = now.set_by_ms(known.last)
    return (*known.sets, ClockSet(now.steady_ms, by_ms)) if abs(by_ms) > SET_MS else known.sets
