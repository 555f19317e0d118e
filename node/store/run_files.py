"""Small files in `keelog/run` by which the processes of a node inform each other.

`members`: who is in which group now, from the gateway for the supervisor, as JSON. The gateway
replaces the file when something has changed. The next gateway reads it when it starts: whom it
awaits. `groups`: the lag of consumer groups, from the tasks for the supervisor, as JSON. A node
without a gateway has no tasks, and neither file says anything.

`recovered`: where the queues of messages that wait ended when the writer began. The process that
delivers them lowers its progress to the ends, once for each start of the writer, before new
messages can have taken the offsets of lost ones. `lowered` is the epoch for which it has done so.
No disk has to keep either: without them it lowers once more.

`right`: the right of a node's own processes to append to the system's topics, a random text that
only the owner of the store can read: whoever can read it could write the store's files as well. The
writer makes it once; gateway and tasks send it along.
"""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from node.runtime import disk
from node.runtime.run_files import RunFile
from node.runtime.state_page import run_dir
from node.runtime.store_paths import (
    OFFSETS_FILE_BYTES_MAX,
    QUEUES_FILE_BYTES_MAX,
    SMALL_FILE_BYTES_MAX,
    read_bounded,
)
from protocol.status import Fact

GROUP_ROWS_MAX = 500
"""Pairs of a group and a topic in the file, the largest lag first; the others are summed up."""

_MEMBERS_FILE = "members"
_GROUPS_FILE = "groups"
_SUMS = ("lag", "in_flight")
_LOWERED = "lowered"
_RIGHT_FILE = "right"
_RIGHT_BYTES = 16


def write_members(root: Path, groups: dict[str, Any]) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _MEMBERS_FILE, json.dumps(groups).encode())


def read_members(root: Path) -> dict[str, Any]:
    """By group: `members`, `awaited`, `topics`, and `queues`, who pulled last. Empty without a
    file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _MEMBERS_FILE, OFFSETS_FILE_BYTES_MAX))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_group_lags(root: Path, lags: Mapping[str, Any]) -> None:
    """Replaces the file, which no disk has to keep. Raises OSError."""
    disk.replace_unsynced(run_dir(root) / _GROUPS_FILE, json.dumps(lags).encode())


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


def read_group_lags(root: Path) -> GroupsStatus:
    """Zeros without a file."""
    try:
        found = json.loads(read_bounded(run_dir(root) / _GROUPS_FILE, QUEUES_FILE_BYTES_MAX))
        groups, members, *sums = (int(found[name]) for name in ("groups", "members", *_SUMS))
        rows = tuple(_group_row(row) for row in found["rows"][:GROUP_ROWS_MAX])
        others = LagSums(*(int(found["others"][name]) for name in _SUMS))
        return GroupsStatus(groups, members, *LagSums(*sums), rows, others)
    except (OSError, ValueError, KeyError, TypeError):
        return GroupsStatus()


def _group_row(found: Mapping[str, Any]) -> GroupLagRow:
    queues, members, *sums = (int(found[name]) for name in ("queues", "members", *_SUMS))
    lag_ms = None if found["lag_ms"] is None else int(found["lag_ms"])
    group, topic = str(found["group"]), str(found["topic"])
    return GroupLagRow(group, topic, queues, members, *LagSums(*sums), lag_ms)


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
        return int(read_bounded(run_dir(root) / _LOWERED, SMALL_FILE_BYTES_MAX))
    except (OSError, ValueError):
        return 0


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
