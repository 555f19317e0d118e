"""`keelog/run/clock`: how the wall clock was set while the machine runs, by the writer, as JSON.

A process that begins learns from it that times of before are of a clock that was set since.
"""

import json
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.regular_file import read_bounded
from node.runtime.state_page import run_dir
from node.runtime.stored_times import SET_MS, ClockSet, Moment

SETS_MAX = 1_000
SLACK_MS = 2_000
"""How much later than it was a set may be noted."""
_FILE = "clock"
_BYTES_MAX = 128 * 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ClockHistory(NamedTuple):
    """The clock as it was last set, and when it was set."""

    last: Moment
    sets: tuple[ClockSet, ...]


def read_clock(root: Path) -> ClockHistory | None:
    """None without a file of this run of the machine."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _FILE, _BYTES_MAX))
        if found["boot"] != _BOOT_ID.read_text():
            return None
        return ClockHistory(Moment(*found["last"]), tuple(ClockSet(*one) for one in found["sets"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_clock(root: Path, history: ClockHistory) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    document = {"boot": _BOOT_ID.read_text(), "last": history.last, "sets": history.sets}
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(document).encode())


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
