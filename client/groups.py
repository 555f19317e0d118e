"""The consumer groups of a node: how far each has come, and who reads for it now.

The offsets are the writer's, the ends of queues a reader's, the members the gateway's. A named
cursor is a group without members.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from client import operations
from client.operations import Operation
from client.transport.request import Call, NodeRole
from protocol.errors import UnknownTopic


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """One connection of a client. `version` is RocketMQ's number of it."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """How far a group has come in one queue. `committed` is the next offset; None where it has
    none, and then the lag is all that the queue has. `client_id`: who pulled from it last;
    `pulled`: from which offset, some seconds ago."""

    topic: str
    queue_id: int
    committed: int | None
    max: int
    lag: int
    client_id: str | None = None
    pulled: int | None = None

    @property
    def in_flight(self) -> int:
        """Messages that members have and did not commit."""
        if self.pulled is None:
            return 0
        return min(self.lag, max(0, self.pulled - (self.committed or 0)))


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group with its members, and the queues of the topics that it reads."""

    group: str
    members: tuple[GroupMemberInfo, ...]
    queues: tuple[GroupQueue, ...]

    @property
    def lag(self) -> int:
        """Messages of all its queues that it has not committed."""
        return sum(queue.lag for queue in self.queues)


Committed = Mapping[str, Mapping[str, Mapping[int, int]]]
"""By group, topic and queue: the next offset to consume."""


def groups(name: str | None, deadline: float) -> Operation[list[GroupInfo]]:
    """All groups, or the one of this name, by name."""
    known = yield from committed(name, deadline)
    answer = yield Call(NodeRole.CONTROL, "members", {}, deadline)
    here: Mapping[str, Any] = answer.header["groups"]
    names = {*known, *here} if name is None else {name} & {*known, *here}
    return (yield from described(names, known, here, deadline))


def committed(name: str | None, deadline: float) -> Operation[Committed]:
    """The offsets of all groups, or of the one of this name."""
    wanted = {} if name is None else {"group": name}
    answer = yield Call(NodeRole.WRITER, "groups", wanted, deadline)
    found: dict[str, dict[str, dict[int, int]]] = {}
    for row in answer.header["groups"]:
        of_group = found.setdefault(row["group"], {})
        of_group[row["topic"]] = dict(row["offsets"])
    return found


def described(
    names: Iterable[str],
    known: Committed,
    here: Mapping[str, Any],
    deadline: float,
) -> Operation[list[GroupInfo]]:
    """These groups, by name. `known` has their offsets, `here` the members and what they read."""
    ends: dict[str, list[Any]] = {}
    found: list[GroupInfo] = []
    for group in sorted(names):
        places, now = known.get(group, {}), here.get(group, {})
        queues: list[GroupQueue] = []
        for topic in sorted({*places, *now.get("topics", ())}):
            if topic not in ends:
                ends[topic] = yield from _ends(topic, deadline)
            owners = now.get("queues", {}).get(topic, {})
            pulled = now.get("pulled", {}).get(topic, {})
            queues += _queues(topic, ends[topic], places.get(topic, {}), owners, pulled)
        members = tuple(GroupMemberInfo(**member) for member in now.get("members", ()))
        found.append(GroupInfo(group, members, tuple(queues)))
    return found


def _ends(topic: str, deadline: float) -> Operation[list[Any]]:
    try:
        return list((yield from operations.offsets(topic, None, deadline)))
    except UnknownTopic:
        return []


def _queues(
    topic: str,
    ends: list[Any],
    committed: Mapping[int, int],
    owners: Mapping[str, str],
    pulled: Mapping[str, int],
) -> list[GroupQueue]:
    found: list[GroupQueue] = []
    for queue in ends:
        place = committed.get(queue.queue_id)
        begin = queue.min_offset if place is None else max(place, queue.min_offset)
        lag = max(0, queue.max_offset - begin)
        number = str(queue.queue_id)
        owner, at = owners.get(number), pulled.get(number)
        found.append(GroupQueue(topic, queue.queue_id, place, queue.max_offset, lag, owner, at))
    return found


def delete_group(name: str, deadline: float) -> Operation[bool]:
    """Forgets how far a group has come; False for one without a place."""
    answer = yield Call(NodeRole.WRITER, "delete_group", {"group": name}, deadline)
    return bool(answer.header["deleted"])
