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
- `members`: who is in which group now, from the gateway for the supervisor. The gateway replaces
  the file when something has changed. The next one reads it when it starts: whom it awaits.
- `groups`: the lag of consumer groups, from the tasks for the supervisor.
- `recovered`: where the queues of messages that wait ended when the writer began. The process that
  delivers them lowers its progress to the ends, once for each start of the writer, before new
  messages can have taken the offsets of lost ones. `lowered` is the epoch for which it has done so.
  No disk has to keep either: without them it lowers once more.

`control`, which is a text, names the local socket of the supervisor, for programs of the node's own
user and root: they need no keys there.

`right`, a text too, is the right of a node's own processes to append to the system's topics.
It is random, and only the owner of the store can read it: whoever can could write the store's files
as well. The writer makes it once; gateway and tasks send it along.
"""

import json
import secrets
import typing
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from node.runtime import disk
from node.runtime import store_paths as paths
from node.runtime.state_page import run_dir
from protocol.status import AT_MS, Fact

Found = TypeVar("Found")

CONNECTING, COMPARING, FOLLOWING, WAITING, STOPPED = (
    "connecting",
    "comparing",
    "following",
    "waiting",
    "stopped",
)
"""`comparing`: the last part of the log is held against the master's. `waiting`: the master sends
nothing yet, or the disk has no room. `stopped`: what was found has to be decided by people."""

ANOTHER_MASTER = "another_master"
"""The reason of refusals while one leads."""
STEP = "stop the older one, then: keelog replica demote DIR --follow HOST:PORT"

WAITS, LEADS, FOLLOWS = "waits", "leads", "follows"
"""What the keeper has the node do."""

GROUP_ROWS_MAX = 500
"""Pairs of a group and a topic in the file, the largest lag first; the others are summed up."""

_MEMBERS_FILE = "members"
_LOWERED = "lowered"
_RIGHT_FILE = "right"
_CONTROL_FILE = "control"
_LOCAL = "ipc://@"
_RIGHT_BYTES = 16

ENDED_SHOWN_MAX = 16
"""Ends of connections in the file: the latest."""


class RunFile(Generic[Found]):
    """A file of `keelog/run`: the fields of `kind`, a NamedTuple, as JSON. No disk has to keep it.

    `usual` is what readers get while the file is missing, or holds anything else.
    """

    def __init__(
        self,
        name: str,
        kind: type[Any],
        usual: Found,
        bytes_max: int = paths.RUN_FILE_BYTES_MAX,
    ) -> None:
        self._name = name
        self._bytes_max = bytes_max
        self._kind = kind
        self._usual = usual

    def read(self, root: Path) -> Found:
        """What the file says. Raises IrregularFile."""
        try:
            text = paths.read_bounded(run_dir(root) / self._name, self._bytes_max)
            found: Found = row_of(self._kind, json.loads(text))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self._usual
        return found

    def write(self, root: Path, row: Found) -> None:
        """Replaces the file. Raises OSError, IrregularFile."""
        disk.replace_unsynced(run_dir(root) / self._name, json.dumps(_plain(row)).encode())

    def forget(self, root: Path) -> None:
        """Removes the file, if it is there. Raises OSError."""
        disk.unlink(run_dir(root) / self._name, missing_ok=True)


def row_of(kind: Any, found: Any) -> Any:
    """A value of the type `kind`, of what JSON has for it. Raises ValueError, KeyError, TypeError.

    Fields of a NamedTuple that are missing have their defaults, those that it does not know are
    left out.
    """
    outer, inner = typing.get_origin(kind), typing.get_args(kind)
    if outer is dict:
        return {row_of(inner[0], name): row_of(inner[1], one) for name, one in found.items()}
    if outer is UnionType:
        return None if found is None else row_of(inner[0], found)
    if outer is not None and isinstance(found, list):
        return outer(row_of(inner[0], one) for one in found)
    if hasattr(kind, "_fields"):
        known = {**kind._field_defaults, **found}
        return kind(*(row_of(hint, known[name]) for name, hint in _hints(kind).items()))
    if type(found) is kind or (kind is float and type(found) is int):
        return found
    raise TypeError(f"{found!r} where {kind} is expected")


_hints = cache(typing.get_type_hints)


def _plain(value: Any) -> Any:
    """As `json` takes it."""
    if hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


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


_following = RunFile("following", FollowState, FollowState())
read_follow_state, write_follow_state = _following.read, _following.write

_master = RunFile("master", MasterPlace, MasterPlace())
"""Empty addresses: no name server has said where the master is."""
read_master_place, write_master_place = _master.read, _master.write


class OtherMaster(NamedTuple):
    """`address`: where it takes requests. `leads`: name servers hold it for the newer one, so this
    node takes no messages."""

    address: str
    leads: bool

    def __str__(self) -> str:
        if self.leads:
            return f"{self.address} was promoted after this node, whose messages nobody would read"
        return f"{self.address} is a master under this one's name too"


_other_master: RunFile[OtherMaster | None] = RunFile("other_master", OtherMaster, None)
read_other_master, write_other_master = _other_master.read, _other_master.write
forget_other_master = _other_master.forget


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


_elected = RunFile("elected", ElectedState, ElectedState())
read_elected, write_elected = _elected.read, _elected.write

_sync: RunFile[SyncState | None] = RunFile("sync-state", SyncState, None)
"""None: nobody knows who must have a message."""
read_sync_state, write_sync_state, forget_sync_state = _sync.read, _sync.write, _sync.forget


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
        return sum(row.in_sync for row in self.followers)


_followers = RunFile("followers", FollowersState, FollowersState())
read_followers, write_followers = _followers.read, _followers.write


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


_timers = RunFile("timers", TimerState, TimerState())
read_timer_state, write_timer_state = _timers.read, _timers.write


def write_members(root: Path, groups: dict[str, Any]) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _MEMBERS_FILE, json.dumps(groups).encode())


def read_members(root: Path) -> dict[str, Any]:
    """By group: `members`, `awaited`, `topics`, and `queues`, who pulled last. Empty without a
    file."""
    try:
        found = json.loads(
            paths.read_bounded(run_dir(root) / _MEMBERS_FILE, paths.OFFSETS_FILE_BYTES_MAX)
        )
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class GroupLagRow(NamedTuple):
    """How far a group is behind in a topic."""

    group: str
    topic: str
    queues: int
    members: int
    lag: int
    in_flight: int
    lag_ms: Annotated[int | None, Fact("the age of the oldest that is not committed")] = None


class LagSums(NamedTuple):
    """Of the pairs that have no row."""

    lag: int = 0
    in_flight: int = 0


class GroupsStatus(NamedTuple):
    """The lag of consumer groups."""

    groups: Annotated[
        int, Fact("consumer groups and cursors", "rocketmq_consumer_group_number")
    ] = 0
    members: int = 0
    lag: Annotated[int, Fact("messages that groups have not committed")] = 0
    in_flight: Annotated[int, Fact("of these, those that members hold")] = 0
    rows: tuple[GroupLagRow, ...] = ()
    others: LagSums = LagSums()


_groups: RunFile[Any] = RunFile("groups", GroupsStatus, GroupsStatus(), paths.QUEUES_FILE_BYTES_MAX)
read_group_lags, write_group_lags = _groups.read, _groups.write


class RecoveredEnds(NamedTuple):
    """By topic, the end of each queue; `log_end` is that of the log."""

    epoch: int
    log_end: int
    queues: dict[str, dict[str, int]]

    def end_of(self, topic: str, queue_id: int) -> int:
        """The offset of the queue's next message."""
        return self.queues.get(topic, {}).get(str(queue_id), 0)

    def not_above(self, before: "RecoveredEnds") -> "RecoveredEnds":
        """The lesser of each end."""
        lesser = {
            topic: {
                queue: min(end, before.end_of(topic, int(queue))) for queue, end in ends.items()
            }
            for topic, ends in self.queues.items()
        }
        return RecoveredEnds(self.epoch, min(self.log_end, before.log_end), lesser)


_ends: RunFile[RecoveredEnds | None] = RunFile("recovered", RecoveredEnds, None)


def write_ends(root: Path, ends: RecoveredEnds) -> None:
    """For the writer, before it takes messages. Earlier ends that nobody has heeded still hold.

    Raises OSError.
    """
    before = ends_to_heed(root)
    _ends.write(root, ends if before is None else ends.not_above(before))


def ends_to_heed(root: Path) -> RecoveredEnds | None:
    """The ends above which no progress may be; None where it was lowered to them already."""
    ends = _ends.read(root)
    return None if ends is None or ends.epoch == _lowered(root) else ends


def note_lowered(root: Path, epoch: int) -> None:
    """What was saved is not above the ends of this epoch. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _LOWERED, str(epoch).encode())


def _lowered(root: Path) -> int:
    try:
        return int(paths.read_bounded(run_dir(root) / _LOWERED, paths.SMALL_FILE_BYTES_MAX))
    except (OSError, ValueError):
        return 0


def write_control(root: Path, local: str) -> None:
    """Names the local socket of the supervisor. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _CONTROL_FILE, local.encode())


def read_control(root: Path) -> str:
    """The local socket of the node on this store; empty where none has been named. It may have
    ended. Raises OSError where this user may not look."""
    try:
        found = paths.read_bounded(run_dir(root) / _CONTROL_FILE, paths.SMALL_FILE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    text = found.decode("ascii", "replace")
    return text if text.startswith(_LOCAL) else ""


def make_right(folder: Path) -> str:
    """The right of the store; made when there is none. Raises OSError."""
    found = find_right(folder)
    if not found:
        found = secrets.token_hex(_RIGHT_BYTES)
        disk.write_atomically(folder / _RIGHT_FILE, found.encode())
    return found


def find_right(folder: Path) -> str:
    """The right of the store; empty when there is none."""
    try:
        found = (folder / _RIGHT_FILE).read_bytes()
    except FileNotFoundError:
        return ""
    text = found.decode("ascii", "replace")
    return text if len(text) == 2 * _RIGHT_BYTES and text.isalnum() else ""
