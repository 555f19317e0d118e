"""What the keeper of a node with a controller says to the node's processes, as JSON.

`keelog/run/elected` is for status and health. `keelog/run/sync-state` says to the process that
serves followers which of them must have a message before it is acknowledged.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, read_bounded
from node.runtime.state_page import run_dir

_FILE = "elected"
_SYNC_FILE = "sync-state"
WAITS, LEADS, FOLLOWS = "waits", "leads", "follows"
"""What the keeper has the node do."""


class ElectedState(NamedTuple):
    """`role` is WAITS, LEADS or FOLLOWS. `epoch`: of the master that is followed, or of the own."""

    role: str = WAITS
    broker_id: int = 0
    epoch: int = 0
    master_id: int = 0
    """The elected master; 0 while there is none."""
    master: str = ""
    """Where it takes requests."""
    leader: str = ""
    """The controller that leads the others; empty while none is known."""
    controllers: int = 0
    """How many controllers took the last heart-beat."""
    controllers_all: int = 0
    in_sync: tuple[int, ...] = ()
    """The sync-state set, as the controller has it."""
    in_sync_epoch: int = 0
    heard_ms: int = 0
    """When a controller was heard last, in ms since 1970."""
    why: str = ""
    """What is wrong; empty when nothing is."""


class SyncState(NamedTuple):
    """`number` grows with each change. `required`: the ids that must have a message, the master's
    own among them."""

    number: int
    required: frozenset[int]


def write_elected(root: Path, state: ElectedState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(state._asdict()).encode())


def read_elected(root: Path) -> ElectedState:
    """The usual values without a file."""
    usual = ElectedState()._asdict()
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in _read(run_dir(root) / _FILE).items()
        if name in usual
    }
    if any(type(value) is not type(usual[name]) for name, value in found.items()):
        return ElectedState()
    return ElectedState(**found)


def write_sync_state(root: Path, state: SyncState) -> None:
    """Replaces the file. Raises OSError."""
    text = json.dumps({"number": state.number, "required": sorted(state.required)})
    disk.replace_unsynced(run_dir(root) / _SYNC_FILE, text.encode())


def read_sync_state(root: Path) -> SyncState | None:
    """None without a file: then nobody knows who must have a message."""
    found = _read(run_dir(root) / _SYNC_FILE)
    with suppress(KeyError, TypeError, ValueError):
        return SyncState(int(found["number"]), frozenset(int(one) for one in found["required"]))
    return None


def forget_sync_state(root: Path) -> None:
    """Before a node starts in a new role."""
    disk.unlink(run_dir(root) / _SYNC_FILE, missing_ok=True)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(read_bounded(path, SMALL_FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
