"""The small JSON files of `keelog/run`: what one process of a node says to the others.

- `following`: how a replica follows its master, from the replica for the supervisor.
- `master`: where the name servers say the master is, from the gateway.
- `other_master`: that another master runs under this one's broker name, from the gateway for the
  writer and the supervisor. It lasts until the node starts again.
- `elected`: what the keeper of a node with a controller says, for status and health.
- `sync-state`: the keeper says to the process that serves followers which of them must have a
  message before it is acknowledged.
- `followers`: who follows the node, and how far, from the process that serves them for the gateway
  and the supervisor. A node that nobody may follow has no such file.
- `timers`: how many timer messages wait, for the supervisor. The tasks write it, and the writer of
  a node without any.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from node.runtime import disk
from node.runtime.state_page import run_dir
from node.runtime.store_paths import SMALL_FILE_BYTES_MAX, read_bounded
from protocol.status import AT_MS, Fact, as_json

CONNECTING, COMPARING, FOLLOWING, WAITING, STOPPED = (
    "connecting",
    "comparing",
    "following",
    "waiting",
    "stopped",
)
"""`comparing`: the last part of the log is held against the master's. `waiting`: the master sends
nothing yet, or the disk has no room. `stopped`: what was found has to be decided by people."""
_FOLLOWING_FILE = "following"
_MASTER_FILE = "master"

_OTHER_MASTER_FILE = "other_master"
ANOTHER_MASTER = "another_master"
"""The reason of refusals while one leads."""
STEP = "stop the older one, then: keelog replica demote DIR --follow HOST:PORT"

_ELECTED_FILE = "elected"
_SYNC_FILE = "sync-state"
WAITS, LEADS, FOLLOWS = "waits", "leads", "follows"
"""What the keeper has the node do."""

ENDED_SHOWN_MAX = 16
"""Ends of connections in the file: the latest."""
_FOLLOWERS_FILE = "followers"
_FOLLOWERS_BYTES_MAX = 256 * 1024

_TIMERS_FILE = "timers"
_TIMERS_BYTES_MAX = 4096


class FollowState(NamedTuple):
    """Offsets are log offsets; times are in ms, those of moments since 1970; 0: not known.

    `reason` and `hint` say why the state is what it is, `disconnected` why the last connection
    ended. `kind` is the class of the error that stopped it.
    """

    state: str = CONNECTING
    source: str = ""
    master: Annotated[str, Fact("where the replication of the master is")] = ""
    remoting: Annotated[str, Fact("where it takes requests")] = ""
    kind: str = ""
    reason: str = ""
    hint: str = ""
    disconnected: str = ""
    disconnected_ms: Annotated[
        int, Fact(f"since when it does not follow, or did not last, {AT_MS}")
    ] = 0
    connections: Annotated[
        int, Fact("to the master since the process began", "keelog_replica_connections_total")
    ] = 0
    end: Annotated[int, Fact("of the own log")] = 0
    acknowledged: Annotated[
        int,
        Fact(
            "up to here the master knows the log to be on the disk of the replica",
            "keelog_replica_acknowledged_offset_bytes",
        ),
    ] = 0
    master_end: Annotated[int, Fact("of the master's log, as far as it is known")] = 0
    contact_ms: Annotated[int, Fact(f"when the master was heard last, {AT_MS}")] = 0
    lag_bytes: Annotated[
        int, Fact("what the master's log had more when last heard", "keelog_replica_lag_bytes")
    ] = 0
    lag_ms: Annotated[
        int,
        Fact(
            "the age of what the master has more, or may have while it is away",
            "keelog_replica_lag_seconds",
        ),
    ] = 0
    metadata: Annotated[
        dict[str, str],
        Fact(
            "why the last try to fetch it failed; empty when it did not",
            names=("topics", "groups", "offsets", "delays", "timers"),
        ),
    ] = {}  # noqa: RUF012  (never changed)
    metadata_ms: Annotated[int, Fact(f"when all of it was fetched last, {AT_MS}")] = 0
    progress_ms: Annotated[int, Fact(f"until then the master's deliveries are known, {AT_MS}")] = 0
    topics_end: Annotated[int, Fact("of the master's log, before its topics were asked for")] = 0


class MasterPlace(NamedTuple):
    """What name servers say of the master: its address for requests, and that of replication."""

    remoting: str = ""
    ha: str = ""


def write_follow_state(root: Path, state: FollowState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    _write(root, _FOLLOWING_FILE, state._asdict())


def read_follow_state(root: Path) -> FollowState:
    """The usual values without a file."""
    return FollowState(**_usual(_read(root, _FOLLOWING_FILE), FollowState()))


def write_master_place(root: Path, place: MasterPlace) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    _write(root, _MASTER_FILE, place._asdict())


def read_master_place(root: Path) -> MasterPlace:
    """Empty addresses without a file: no name server has said where the master is."""
    return MasterPlace(**_usual(_read(root, _MASTER_FILE), MasterPlace()))


class OtherMaster(NamedTuple):
    """`address`: where it takes requests. `leads`: name servers hold it for the newer one, so this
    node takes no messages."""

    address: str
    leads: bool

    def __str__(self) -> str:
        if self.leads:
            return f"{self.address} was promoted after this node, whose messages nobody would read"
        return f"{self.address} is a master under this one's name too"


def write_other_master(root: Path, other: OtherMaster) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    _write(root, _OTHER_MASTER_FILE, other._asdict())


def read_other_master(root: Path) -> OtherMaster | None:
    """None without a file."""
    try:
        found = _read(root, _OTHER_MASTER_FILE)
        return OtherMaster(str(found["address"]), found["leads"] is True)
    except KeyError:
        return None


def forget_other_master(root: Path) -> None:
    """It is gone, or the node starts."""
    disk.unlink(run_dir(root) / _OTHER_MASTER_FILE, missing_ok=True)


class ElectedState(NamedTuple):
    """What controllers have decided of a node."""

    role: Annotated[str, Fact("waits, leads or follows")] = WAITS
    broker_id: Annotated[int, Fact("of this node in its group")] = 0
    epoch: Annotated[int, Fact("the epoch of the elected master", "keelog_elected_epoch")] = 0
    master_id: Annotated[int, Fact("of the elected master; 0 without one")] = 0
    master: Annotated[str, Fact("where it takes requests")] = ""
    leader: Annotated[str, Fact("the controller that leads the others, if one is known")] = ""
    controllers: Annotated[
        int, Fact("controllers that hear the node", "keelog_elected_controllers")
    ] = 0
    controllers_all: int = 0
    in_sync: Annotated[
        tuple[int, ...],
        Fact("nodes of which a master may be elected", "keelog_elected_in_sync"),
    ] = ()
    in_sync_epoch: Annotated[int, Fact("of that set")] = 0
    heard_ms: Annotated[int, Fact(f"when a controller was heard last, {AT_MS}")] = 0
    why: Annotated[str, Fact("what is wrong; empty when nothing is")] = ""


class SyncState(NamedTuple):
    """`number` grows with each change. `required`: the ids that must have a message, the master's
    own among them."""

    number: int
    required: frozenset[int]


def write_elected(root: Path, state: ElectedState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    _write(root, _ELECTED_FILE, state._asdict())


def read_elected(root: Path) -> ElectedState:
    """The usual values without a file."""
    usual = ElectedState()._asdict()
    found: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in _read(root, _ELECTED_FILE).items()
        if name in usual
    }
    if any(type(value) is not type(usual[name]) for name, value in found.items()):
        return ElectedState()
    return ElectedState(**found)


def write_sync_state(root: Path, state: SyncState) -> None:
    """Replaces the file. Raises OSError."""
    _write(root, _SYNC_FILE, {"number": state.number, "required": sorted(state.required)})


def read_sync_state(root: Path) -> SyncState | None:
    """None without a file: then nobody knows who must have a message."""
    found = _read(root, _SYNC_FILE)
    with suppress(KeyError, TypeError, ValueError):
        return SyncState(int(found["number"]), frozenset(int(one) for one in found["required"]))
    return None


def forget_sync_state(root: Path) -> None:
    """Before a node starts in a new role."""
    disk.unlink(run_dir(root) / _SYNC_FILE, missing_ok=True)


class FollowerRow(NamedTuple):
    """One connection: what it was `sent` and has `acknowledged`, as ends in the log."""

    address: str
    since_ms: Annotated[int, Fact(AT_MS)]
    sent: int
    acknowledged: int
    lag_bytes: Annotated[int, Fact("from what it has acknowledged to the end of the log")]
    lag_s: Annotated[float, Fact("how long ago the log ended where the follower is")]
    in_sync: bool
    bytes_per_s: int
    broker_id: Annotated[int, Fact("as a controller gave it; 0 without one")] = 0


class FollowerEnd(NamedTuple):
    """A connection that ended: where the follower was, and why it ended."""

    address: str
    at_ms: Annotated[int, Fact(AT_MS)]
    acknowledged: int
    reason: str


class FollowersState(NamedTuple):
    """Who follows the node."""

    needed: Annotated[int, Fact("how many must acknowledge a replicated message")] = 0
    acknowledged: Annotated[
        int,
        Fact(
            "up to here as many followers have the log as a replicated message needs",
            "keelog_followers_acknowledged_offset_bytes",
        ),
    ] = 0
    followers: tuple[FollowerRow, ...] = ()
    ended: tuple[FollowerEnd, ...] = ()
    """The latest first."""
    sync_state: Annotated[
        int, Fact("of the sync-state set that it follows; -1 without a controller")
    ] = -1

    @property
    def in_sync(self) -> int:
        """How many followers are in sync."""
        return sum(row.in_sync for row in self.followers)


def write_followers(root: Path, state: FollowersState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    _write(root, _FOLLOWERS_FILE, as_json(state))


def read_followers(root: Path) -> FollowersState:
    """Nobody, without a file."""
    try:
        found = _read(root, _FOLLOWERS_FILE, _FOLLOWERS_BYTES_MAX)
        return FollowersState(
            int(found["needed"]),
            int(found["acknowledged"]),
            tuple(_follower_row(row) for row in found["followers"]),
            tuple(_follower_end(end) for end in found["ended"][:ENDED_SHOWN_MAX]),
            int(found["sync_state"]),
        )
    except (ValueError, KeyError, TypeError):
        return FollowersState()


def _follower_row(found: Mapping[str, Any]) -> FollowerRow:
    since_ms, sent, acknowledged, lag, speed, broker_id = (
        int(found[name])
        for name in ("since_ms", "sent", "acknowledged", "lag_bytes", "bytes_per_s", "broker_id")
    )
    address, lag_s, in_sync = str(found["address"]), float(found["lag_s"]), bool(found["in_sync"])
    return FollowerRow(address, since_ms, sent, acknowledged, lag, lag_s, in_sync, speed, broker_id)


def _follower_end(found: Mapping[str, Any]) -> FollowerEnd:
    at_ms, acknowledged = int(found["at_ms"]), int(found["acknowledged"])
    return FollowerEnd(str(found["address"]), at_ms, acknowledged, str(found["reason"]))


class TimerState(NamedTuple):
    """Messages that wait for their time.

    Where nobody delivers, the writer says so: `undelivered` messages wait, of delay levels too, and
    the first of them is late by so much.
    """

    pending: Annotated[int, Fact("timer messages that wait", "rocketmq_timing_messages")] = 0
    delivered: Annotated[
        int, Fact("timer messages delivered since the tasks began", "rocketmq_timer_dequeue_total")
    ] = 0
    late_ms: Annotated[
        int,
        Fact(
            "by how much the latest delivery of the last second came late",
            "keelog_timer_late_seconds",
        ),
    ] = 0
    undelivered: Annotated[int, Fact("that wait where nobody delivers them")] = 0


def write_timer_state(root: Path, state: TimerState) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    _write(root, _TIMERS_FILE, state._asdict())


def read_timer_state(root: Path) -> TimerState:
    """Zeros without a file."""
    try:
        found = _read(root, _TIMERS_FILE, _TIMERS_BYTES_MAX)
        return TimerState(*(int(found[name]) for name in TimerState._fields))
    except (ValueError, KeyError, TypeError):
        return TimerState()


def _usual(found: Mapping[str, Any], usual: Any) -> dict[str, Any]:
    """The fields that have the type of their usual values."""
    return {
        name: found[name]
        for name, value in usual._asdict().items()
        if type(found.get(name)) is type(value)
    }


def _read(root: Path, name: str, bytes_max: int = SMALL_FILE_BYTES_MAX) -> Mapping[str, Any]:
    """The fields of a file; none without one."""
    try:
        found = json.loads(read_bounded(run_dir(root) / name, bytes_max))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(root: Path, name: str, document: Mapping[str, Any]) -> None:
    """Replaces a file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / name, json.dumps(document).encode())
