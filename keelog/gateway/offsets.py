"""Offsets and times of queues (29 to 32), and offsets of groups (14, 15).

Those of groups are the writer's (config/consumerOffset.json), as are the cursors of our own client.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway.commits import Commits
from keelog.gateway.connection import Reply, Request
from keelog.gateway.groups import Groups
from keelog.gateway.members import Members
from keelog.gateway.places import ClientPlaces, GroupQueuePlace, PlaceVerdict, WaitingResets
from keelog.gateway.topics import Topics
from node.reader.answers import bounds_of, look_again, time_at
from node.reader.pull_desk import PullDesk
from node.runtime.process import machine_memory_bytes, met_damage
from node.store.query.look_up import Boundary, offset_by_time
from node.store.query.pull import store_time
from protocol.errors import MessageDamaged, NotFound, TopicRemoved
from protocol.ids import Queue
from protocol.names import RETRY_PREFIX
from protocol.remoting.codes import BadCommand, ResponseCode
from protocol.remoting.header_fields import (
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
    request_fields,
)

_BOUNDARIES = {one.value: one for one in Boundary}


class StoredOffsets(NamedTuple):
    """The first offset that a queue still has, and that of its next message."""

    min: int
    max: int


class QueueFacts:
    """Asks the store as it is now. `desk` follows the log, `now` makes it look."""

    def __init__(self, desk: PullDesk, now: Callable[[], float]) -> None:
        self.desk = desk
        self._now = now

    def look(self) -> None:
        """Takes in how far the log has grown. Call it before questions that belong together."""
        self.desk.see_end(self._now())

    def end(self) -> int:
        """Where the log ends."""
        self.look()
        return self.desk.store.log.end

    def bounds(self, topic: str, queue_id: int) -> StoredOffsets:
        """Zeros for a queue that does not exist. Raises StoreDamaged."""
        desk, queue = self.desk, Queue(topic, queue_id)
        return StoredOffsets(
            *look_again(desk.store, lambda: bounds_of(desk.store, desk.tail, queue))
        )

    def time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, in ms; NO_TIME where there is none that can be read."""
        desk = self.desk
        return time_at(desk.store, desk.tail, Queue(topic, queue_id), offset)

    def offset_at(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The first offset of a store time in ms, or with `boundary` the last."""
        desk = self.desk

        def look() -> int:
            queue = desk.store.queue(topic, queue_id)
            return offset_by_time(desk.store.log, queue, timestamp, boundary)

        return look_again(desk.store, look)


@dataclass(slots=True, eq=False)
class Offsets:
    """One for each gateway, in the thread of its loop."""

    _core: ClientCore
    _topics: Topics
    _commits: Commits
    _facts: QueueFacts
    _resets: WaitingResets
    _groups: Groups
    _members: Members
    _places: ClientPlaces

    # Of queues

    def max(self, request: Request) -> Reply:
        """30: the offset of the next message of a queue; 0 for one that does not exist."""
        return _reply(self._bounds(request).max)

    def min(self, request: Request) -> Reply:
        """31: the offset of the first message that a queue still has."""
        return _reply(self._bounds(request).min)

    def _bounds(self, request: Request) -> StoredOffsets:
        self._facts.look()
        return self._facts.bounds(*request_fields(request.header))

    def by_time(self, request: Request) -> Reply:
        """29: the offset of a store time."""
        self._facts.look()
        wanted: SearchOffsetHeader = request_fields(request.header)
        boundary = _BOUNDARIES.get(wanted.boundary_type.lower())
        if boundary is None:
            raise BadCommand(f"boundaryType is {wanted.boundary_type[:40]!a}", "lower or upper")
        place = wanted.topic, wanted.queue_id, wanted.timestamp
        return _reply(self._facts.offset_at(*place, boundary))

    def earliest_time(self, request: Request) -> Reply:
        """32: when the first message of a queue was stored, in ms; -1 without one that can be
        read."""
        self._facts.look()
        wanted, store = request_fields(request.header), self._facts.desk.store

        def look() -> int:
            queue = store.queue(wanted.topic, wanted.queue_id)
            unit = None if queue is None else queue.unit(queue.min_offset)
            if queue is None or unit is None:
                return -1
            try:
                return store_time(store.log, queue, queue.min_offset, unit)
            except MessageDamaged as damage:
                met_damage.note(damage)
                return -1

        return Reply(ext={"timestamp": str(look_again(store, look))})

    # Of groups

    async def stored(self, request: Request) -> Reply:
        """14: the next offset that a group consumes; 22 where it has none, so that the client
        begins as its group says.

        A young topic is consumed from its begin: that is the case where its first message is
        among the newest, as RocketMQ has it (ConsumerManageProcessor#queryConsumerOffset).
        """
        self._facts.look()
        wanted: QueryConsumerOffsetHeader = request_fields(request.header)
        topic, group = wanted.topic, wanted.consumer_group
        found = self._resets.find(topic, group, wanted.queue_id)
        if found is None:
            found = await self.committed(topic, group, wanted.queue_id)
        # What the client hears now, it has of the topic that is there.
        self._places.note(request.connection, GroupQueuePlace(topic, group, wanted.queue_id))
        if found is not None:
            return _reply(found)
        if wanted.set_zero_if_not_found and self._is_young(topic, wanted.queue_id):
            return _reply(0)
        raise NotFound(
            f"group {wanted.consumer_group} has no offset in queue {wanted.queue_id} of"
            f" {wanted.topic}"
        )

    async def committed(self, topic: str, group: str, queue_id: int) -> int | None:
        """The next offset of a group, as its members have committed it; None where they did not.
        Raises what the writer refuses."""
        found = self._commits.waiting(topic, group).get(queue_id)
        if found is None:
            asked = operations.cursor_places(topic, group, self._core.deadline(None))
            found = (await run(self._core, asked)).get(queue_id)
        return found

    async def commit(self, request: Request) -> Reply:
        """15: notes the next offset that a group consumes. A negative one is ignored, and each
        while the group shall go on from another one.

        Raises UnknownTopic, NodeBusy, and what the writer refuses.
        """
        wanted: UpdateConsumerOffsetHeader = request_fields(request.header)
        if not self._groups.has(wanted.consumer_group):
            text = f"Group {wanted.consumer_group} not exist!"
            return Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=text)
        self._topics.need(wanted.topic)
        place = wanted.topic, wanted.consumer_group, wanted.queue_id, wanted.commit_offset
        if self._resets.find(*place[:3]) is not None or self._is_of_removed(request, wanted):
            return Reply()
        if request.header.is_one_way:
            self._commits.note(*place)
        else:
            await self._commits.commit(*place)
        return Reply()

    def _is_of_removed(self, request: Request, wanted: UpdateConsumerOffsetHeader) -> bool:
        """Whether an offset may be one of a topic that was removed: that of a member which has not
        pulled, or asked, since. A tool's is what somebody wants. Raises TopicRemoved for a client
        that heeds it."""
        connection, group = request.connection, wanted.consumer_group
        place = GroupQueuePlace(wanted.topic, group, wanted.queue_id)
        verdict = self._places.verdict(connection, place, wanted.known_at)
        if verdict is PlaceVerdict.SOUND or wanted.commit_offset <= 0:
            return False
        if wanted.known_at is not None:
            raise TopicRemoved(f"topic {wanted.topic} was removed, and its offsets with it")
        is_tool = not request.header.is_one_way and not self._members.has(group, connection)
        return not is_tool

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether the first message of a queue is there still, and within the newest part of the
        log that is taken to be in memory.

        An empty queue of a topic counts as young, too, unlike at a broker: a client that then asks
        where the queue ends would miss what is sent in between. Not so a retry queue, which clients
        begin at 0 in any case: they would commit 0, and tools would show it.
        """
        self._facts.look()
        store = self._facts.desk.store

        def look() -> Any:
            queue = store.queue(topic, queue_id)
            unit = None if queue is None else queue.unit(0)
            if queue is None or unit is None:
                is_empty = queue is None or queue.max_offset == 0
                known = self._topics.find(topic)
                is_there = known is not None and queue_id < known.read_queues
                return is_empty and is_there and not topic.startswith(RETRY_PREFIX)
            share = store.settings.access_message_in_memory_max_ratio
            hot_bytes = machine_memory_bytes() * share // 100
            return queue.min_offset == 0 and unit.physical_offset >= store.log.end - hot_bytes

        return bool(look_again(store, look))


def _reply(offset: int) -> Reply:
    return Reply(ext={"offset": str(offset)})
