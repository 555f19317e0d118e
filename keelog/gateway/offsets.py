"""Offsets of queues (29 to 32) and of groups (14, 15).

Those of groups are the writer's (config/consumerOffset.json), as are the cursors of our own client.
"""

from dataclasses import dataclass
from typing import Any

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway.commits import Commits
from keelog.gateway.connection import Reply, Request
from keelog.gateway.groups import Groups
from keelog.gateway.members import Members
from keelog.gateway.places import ClientPlaces, GroupQueuePlace, PlaceVerdict, WaitingResets
from keelog.gateway.topics import Topics
from node.reader.answers import bounds_of, look_again
from node.reader.pull_desk import PullDesk
from node.runtime.process import machine_memory_bytes, met_damage
from node.store.query.look_up import Boundary, offset_by_time
from node.store.query.verified_read import store_time
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


@dataclass(slots=True, eq=False)
class Offsets:
    """One for each gateway, in the thread of its loop."""

    _core: ClientCore
    _topics: Topics
    _commits: Commits
    _desk: PullDesk
    _resets: WaitingResets
    _groups: Groups
    _members: Members
    _places: ClientPlaces

    # Of queues

    def max(self, request: Request, now: float) -> Reply:
        """30: the offset of the next message of a queue; 0 for one that does not exist."""
        return _reply(self._bounds(request, now)[1])

    def min(self, request: Request, now: float) -> Reply:
        """31: the offset of the first message that a queue still has."""
        return _reply(self._bounds(request, now)[0])

    def by_time(self, request: Request, now: float) -> Reply:
        """29: the offset of a store time."""
        wanted: SearchOffsetHeader = request_fields(request.header)
        boundary = _BOUNDARIES.get(wanted.boundary_type.lower())
        if boundary is None:
            raise BadCommand(f"boundaryType is {wanted.boundary_type[:40]!a}", "lower or upper")
        desk = self._desk
        desk.see_end(now)

        def look() -> int:
            queue = desk.store.queue(wanted.topic, wanted.queue_id)
            return offset_by_time(desk.store.log, queue, wanted.timestamp, boundary)

        return _reply(look_again(desk.store, look))

    def earliest_time(self, request: Request, now: float) -> Reply:
        """32: when the first message of a queue was stored, in ms; -1 without one that can be
        read."""
        wanted = request_fields(request.header)
        desk = self._desk
        desk.see_end(now)

        def look() -> int:
            queue = desk.store.queue(wanted.topic, wanted.queue_id)
            unit = None if queue is None else queue.unit(queue.min_offset)
            if queue is None or unit is None:
                return -1
            try:
                return store_time(desk.store.log, queue, queue.min_offset, unit)
            except MessageDamaged as damage:
                met_damage.note(damage)
                return -1

        return Reply(ext={"timestamp": str(look_again(desk.store, look))})

    def _bounds(self, request: Request, now: float) -> tuple[int, int]:
        wanted = request_fields(request.header)
        desk = self._desk
        desk.see_end(now)
        queue = Queue(wanted.topic, wanted.queue_id)
        return look_again(desk.store, lambda: bounds_of(desk.store, desk.tail, queue))

    # Of groups

    async def stored(self, request: Request, now: float) -> Reply:
        """14: the next offset that a group consumes; 22 where it has none, so that the client
        begins as its group says.

        A young topic is consumed from its begin: that is the case where its first message is
        among the newest, as RocketMQ has it (ConsumerManageProcessor#queryConsumerOffset).
        """
        wanted: QueryConsumerOffsetHeader = request_fields(request.header)
        topic, group = wanted.topic, wanted.consumer_group
        found = self._resets.find(topic, group, wanted.queue_id)
        if found is None:
            found = await self.committed(topic, group, wanted.queue_id)
        # What the client hears now, it has of the topic that is there.
        self._places.note(request.connection, GroupQueuePlace(topic, group, wanted.queue_id))
        if found is not None:
            return _reply(found)
        if wanted.set_zero_if_not_found and self._is_young(topic, wanted.queue_id, now):
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

    def _is_young(self, topic: str, queue_id: int, now: float) -> bool:
        """Whether the first message of a queue is there still, and within the newest part of the
        log that is taken to be in memory.

        An empty queue of a topic counts as young, too, unlike at a broker: a client that then asks
        where the queue ends would miss what is sent in between. Not so a retry queue, which clients
        begin at 0 in any case: they would commit 0, and tools would show it.
        """
        desk = self._desk
        desk.see_end(now)

        def look() -> Any:
            store = desk.store
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

        return bool(look_again(desk.store, look))


def _reply(offset: int) -> Reply:
    return Reply(ext={"offset": str(offset)})
