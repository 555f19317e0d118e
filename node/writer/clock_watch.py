"""Warns of a wall clock that was set, or that store times lie ahead of.

Store times never fall, so they stay as they are until the clock has reached them.
"""

import logging
from pathlib import Path

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.stored_times import (
    SET_MS,
    SETS_MAX,
    ClockHistory,
    ClockSet,
    Moment,
    read_clock,
    write_clock,
)

log = logging.getLogger("keelog.writer")

WARN_MS = 5_000


class ClockWatch:
    """One for each process that owns a log. One line for each time that something changes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = read_clock(root)
        self._last = None if self._known is None else self._known.last
        self._was_ahead = False

    def turn(self, newest_ms: int, now: Moment) -> None:
        """`newest_ms`: the store time of the newest message; 0 without one."""
        set_by_ms = 0 if self._last is None else now.set_by_ms(self._last)
        ahead_ms = max(0, newest_ms - now.wall_ms)
        is_ahead, was_set = ahead_ms > WARN_MS, abs(set_by_ms) > WARN_MS
        if was_set or (is_ahead and not self._was_ahead):
            event = "the clock was set" if was_set else "the clock is wrong, or was ahead"
            found = fields(set_by_s=round(set_by_ms / 1000), store_ahead_s=round(ahead_ms / 1000))
            log.warning(event, extra=found)
        if self._known is None or abs(set_by_ms) > SET_MS:
            before = () if self._known is None else self._known.sets
            sets = (*before, ClockSet(now.steady_ms, set_by_ms)) if set_by_ms else ()
            self._known = ClockHistory(now, sets[-SETS_MAX:])
            with disk.if_room():
                write_clock(self._root, self._known)
        self._last, self._was_ahead = now, is_ahead
