"""`keelog/run/following`: how a replica follows its master, from the replica for the supervisor,
as JSON; and `keelog/run/master`: where the name servers say the master is, from the gateway."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, read_bounded
from node.runtime.state_page import run_dir

CONNECTING, COMPARING, FOLLOWING, WAITING, STOPPED = (
    "connecting",
    "comparing",
    "following",
    "waiting",
    "stopped",
)
"""`comparing`: the last part of the log is held against the master's. `waiting`: the master sends
nothing yet, or the disk has no room. `stopped`: what was found has to be decided by people."""
_FILE = "following"
_MASTER_FILE = "master"


class FollowState(NamedTuple):
    """Offsets are log offsets; times are in ms, those of moments since 1970; 0: not known.

    `reason` and `hint` say why the state is what it is, `disconnected` why the last connection
    ended. `kind` is the class of the error that stopped it.
    """

    state: str = CONNECTING
    source: str = ""
    master: str = ""
    """Where the replication of the master is."""
    remoting: str = ""
    """Where it takes requests."""
    kind: str = ""
    reason: str = ""
    hint: str = ""
    disconnected: str = ""
    disconnected_ms: int = 0
    """Since when it has not followed, or did not the last time."""
    connections: int = 0
    end: int = 0
    """The end of the own log."""
    acknowledged: int = 0
    """Up to here the master knows the log to be on this disk."""
    master_end: int = 0
    """The end of the master's log, as far as it is known."""
    contact_ms: int = 0
    """When the master was heard last."""
    lag_bytes: int = 0
    """As of `contact_ms`."""
    lag_ms: int = 0
    """How old the first byte is at most that the master has more, or may have while it is away."""
    metadata: dict[str, str] = {}  # noqa: RUF012  (never changed)
    """For topics, groups and offsets: empty when the last try succeeded, else why it failed."""
    metadata_ms: int = 0
    """When all of them were fetched last."""
    progress_ms: int = 0
    """What the master had delivered of delayed messages then is taken over."""
    topics_end: int = 0
    """The master's log was beyond this offset when its topics were asked for."""


class MasterPlace(NamedTuple):
    """What name servers say of the master: its address for requests, and that of replication."""

    remoting: str = ""
    ha: str = ""


def write_follow_state(root: Path, state: FollowState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _FILE, json.dumps(state._asdict()).encode())


def read_follow_state(root: Path) -> FollowState:
    """The usual values without a file."""
    return FollowState(**_read(root, _FILE, FollowState()))


def write_master_place(root: Path, place: MasterPlace) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _MASTER_FILE, json.dumps(place._asdict()).encode())


def read_master_place(root: Path) -> MasterPlace:
    """Empty addresses without a file: no name server has said where the master is."""
    return MasterPlace(**_read(root, _MASTER_FILE, MasterPlace()))


def _read(root: Path, name: str, usual: Any) -> dict[str, Any]:
    """The fields of a file that have the type of their usual values."""
    try:
        found = json.loads(read_bounded(run_dir(root) / name, SMALL_FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: found[name]
        for name, value in usual._asdict().items()
        if type(found.get(name)) is type(value)
    }
