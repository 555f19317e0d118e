"""The consumer groups of a node: how far each has come, and who reads for it now.

The offsets are the writer's, the ends of queues a reader's, the members the gateway's. A named
cursor is a group without members.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

from keelog.client import operations
from keelog.client.operations import Operation
from keelog.client.results import QueueOffsets
from keelog.client.transport.exchange import Call, NodeRole
from protocol.errors import UnknownTopic

AGES_MAX = 1_000
"""Queues of a topic whose oldest message one request asks for; of further ones it is unknown."""
ByQueue = Mapping[str, Mapping[str, Mapping[int, int]]]
"""By group, topic and queue: the next offset to consume, or when that changed last."""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """One connection of a client. `version` is RocketMQ's number of it."""

    client_id: str
    address: str
    language: str
    version: int
    beat_ms: int | None = None
    """When its last heart-beat came, in ms since 1970, as known some seconds ago."""


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """How far a group has come in one queue. `committed` is the next offset; None where it has
    none, and then the lag is all that the queue has. `client_id`: who pulled from it last;
    `pulled`: from which offset, some seconds ago. `lag_ms`: the age of the oldest message that is
    not committed, 0 without a lag, None where it cannot be read. `committed_ms`: when the
    place changed last, in ms since 1970; None where it did not since the node's start."""

    topic: str
    queue_id: int
    committed: int | None
    max: int
    lag: int
    client_id: str | None = None
    pulled: int | None = None
    lag_ms: int | None = 0
    committed_ms: int | None = None

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

    @property
    def lag_ms(self) -> int | None:
        """The age of its oldest message that is not committed, 0 without a lag; None where the
        message of a queue with a lag cannot be read."""
        return longest(self.queues)


def longest(queues: Iterable[GroupQueue]) -> int | None:
    """The longest lag of queues in time, as GroupInfo.lag_ms."""
    known = [queue.lag_ms for queue in queues if queue.lag]
    return max((one for one in known if one is not None), default=None if known else 0)


def groups(name: str | None, deadline: float) -> Operation[list[GroupInfo]]:
    """All groups, or the one of this name, by name."""
    known, moved = yield from committed(name, deadline)
    answer = yield Call(NodeRole.CONTROL, "members", {}, deadline)
    here: Mapping[str, Any] = answer.header["groups"]
    names = {*known, *here} if name is None else {name} & {*known, *here}
    return (yield from described(names, known, here, deadline, moved))


def committed(name: str | None, deadline: float) -> Operation[tuple[ByQueue, ByQueue]]:
    """The offsets of all groups, or of the one of this name, and when they changed last."""
    wanted = {} if name is None else {"group": name}
    answer = yield Call(NodeRole.WRITER, "groups", wanted, deadline)
    places: dict[str, dict[str, dict[int, int]]] = {}
    moved: dict[str, dict[str, dict[int, int]]] = {}
    for row in answer.header["groups"]:
        places.setdefault(row["group"], {})[row["topic"]] = dict(row["offsets"])
        moved.setdefault(row["group"], {})[row["topic"]] = dict(row.get("moved_ms", ()))
    return places, moved


def described(
    names: Iterable[str],
    known: ByQueue,
    here: Mapping[str, Any],
    deadline: float,
    moved: ByQueue = MappingProxyType({}),
) -> Operation[list[GroupInfo]]:
    """These groups, by name. `known` has their offsets, `here` the members and what they read,
    `moved` when offsets changed last."""
    ends: dict[str, list[QueueOffsets]] = {}
    found: list[GroupInfo] = []
    for group in sorted(names):
        places, now = known.get(group, {}), here.get(group, {})
        queues: list[GroupQueue] = []
        for topic in sorted({*places, *now.get("topics", ())}):
            if topic not in ends:
                try:
                    ends[topic] = yield from operations.offsets(topic, None, deadline)
                except UnknownTopic:
                    ends[topic] = []
            owners = now.get("queues", {}).get(topic, {})
            pulled = now.get("pulled", {}).get(topic, {})
            times = moved.get(group, {}).get(topic, {})
            some = _queues(topic, ends[topic], places.get(topic, {}), owners, pulled, times)
            queues += yield from _with_ages(topic, some, deadline)
        beats = now.get("beats_ms", {})
        members = tuple(
            GroupMemberInfo(**member, beat_ms=beats.get(member["address"]))
            for member in now.get("members", ())
        )
        found.append(GroupInfo(group, members, tuple(queues)))
    return found


def _with_ages(
    topic: str, queues: list[GroupQueue], deadline: float
) -> Operation[list[GroupQueue]]:
    """The queues with the age of the first message that each has not committed."""
    first = {one.queue_id: one.max - one.lag for one in queues if one.lag}
    asked = dict(islice(first.items(), AGES_MAX))
    if not asked:
        return queues
    try:
        ages = yield from operations.ages(topic, asked, deadline)
    except UnknownTopic:
        ages = {}
    return [replace(one, lag_ms=ages.get(one.queue_id)) if one.lag else one for one in queues]


def _queues(
    topic: str,
    ends: list[QueueOffsets],
    committed: Mapping[int, int],
    owners: Mapping[str, str],
    pulled: Mapping[str, int],
    moved: Mapping[int, int],
) -> list[GroupQueue]:
    found: list[GroupQueue] = []
    for queue in ends:
        place = committed.get(queue.queue_id)
        begin = queue.min_offset if place is None else max(place, queue.min_offset)
        number = str(queue.queue_id)
        found.append(
            GroupQueue(
                topic=topic,
                queue_id=queue.queue_id,
                committed=place,
                max=queue.max_offset,
                lag=max(0, queue.max_offset - begin),
                client_id=owners.get(number),
                pulled=pulled.get(number),
                committed_ms=moved.get(queue.queue_id),
            )
        )
    return found


def delete_group(name: str, deadline: float) -> Operation[bool]:
    """Forgets how far a group has come; False for one without a place."""
    answer = yield Call(NodeRole.WRITER, "delete_group", {"group": name}, deadline)
    return bool(answer.header["deleted"])
