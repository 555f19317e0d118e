"""`keelog/run/timers`: how many timer messages wait, for the supervisor, as JSON.

The tasks write it, and the writer of a node without any.
"""

import json
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.regular_file import read_bounded
from node.runtime.state_page import run_dir

_FILE = "timers"
_BYTES_MAX = 4096


class TimerState(NamedTuple):
    """Messages that wait, those delivered since the process began, and by how much the latest one
    of the last second came late.

    Where nobody delivers, the writer says so: `undelivered` messages wait, of delay levels too, and
    the first of them is late by so much.
    """

    pending: int = 0
    delivered: int = 0
    late_ms: int = 0
    undelivered: int = 0


def write_timer_state(root: Path, state: TimerState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(state._asdict()).encode())


def read_timer_state(root: Path) -> TimerState:
    """Zeros without a file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _FILE, _BYTES_MAX))
        return TimerState(*(int(found[name]) for name in TimerState._fields))
    except (OSError, ValueError, KeyError, TypeError):
        return TimerState()
