"""Offsets and times of queues (29 to 32), and offsets of groups (14, 15).

A consumer commits with each pull, and a broker keeps what it heard in memory for 5 s
(ConsumerOffsetManager). Here it is in memory for COMMIT_S at most, and those of a moment go to the
writer together (`Commits`); then it is the writer's (config/consumerOffset.json), as are the
cursors of our own client. A gateway that is killed loses what it has in memory: those messages are
consumed again. A commit with a reply is the writer's when the reply goes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import pass_on_error, run
from keelog.client.groups import committed
from keelog.gateway import groups, members, topics
from keelog.gateway.connection import Reply, Request
from keelog.gateway.places import ClientPlaces, GroupQueuePlace, PlaceVerdict, WaitingResets
from node.reader.answers import bounds_of, look_again, time_at
from node.reader.pull_desk import PullDesk
from node.runtime.event_log import fields
from node.runtime.process import machine_memory_bytes, met_damage
from node.store.query import look_up, pull
from node.store.query.look_up import Boundary
from protocol import errors, ids, names
from protocol.remoting import header_fields as hf
from protocol.remoting.codes import BadCommand, ResponseCode

log = logging.getLogger("keelog.gateway")

COMMIT_S = 0.1
"""Between two rounds: the first commit after a quiet time goes at once."""
RETRY_S = 1.0
"""The pause after the writer could not be reached."""
WAITING_MAX = 65_536
"""Offsets that the writer has not taken; further queues are refused as busy."""
COMMITS_AT_ONCE = 16
"""Requests under way."""
REPLY_S = 2.5
"""A Java client closes its connection after 3 s without a reply."""
STOP_S = 2.0
Places = dict[int, int]
"""By queue: the next offset to consume."""
OfTopics = Mapping[str, Mapping[int, int]]
"""As `Places`, by topic and queue."""
_BOUNDARIES = {one.value: one for one in Boundary}


class TopicGroup(NamedTuple):
    """A group's offsets of one topic share a request."""

    topic: str
    group: str


@dataclass(slots=True)
class _Unsent:
    """Offsets of one topic and group, and who waits until the writer has them."""

    generation: int = 0
    """Of the topic."""
    places: Places = field(default_factory=dict)
    asked: list[asyncio.Future[None]] = field(default_factory=list)

    def put_back(self, newer: "_Unsent | None") -> "_Unsent":
        """What waits after this was not sent."""
        if newer is None:
            return self
        if newer.generation > self.generation:
            self.end(_removed())
            return newer
        places = {**self.places, **newer.places}
        return _Unsent(self.generation, places, self.asked + newer.asked)

    def end(self, error: errors.MqError | None) -> None:
        """They are the writer's, or refused."""
        for one in self.asked:
            if one.done():
                continue
            if error is None:
                one.set_result(None)
            else:
                one.set_exception(error)


def _removed() -> errors.TopicRemoved:
    return errors.TopicRemoved("the topic was removed, and its offsets with it")


class Commits:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, core: ClientCore, generation_of: Callable[[str], int]) -> None:
        """`generation_of` gives that of a topic."""
        self._generation_of = generation_of
        self.fail: Callable[[BaseException], None] = lambda error: None
        """Is called with an unexpected error; its owner sets it."""
        self._core = core
        self._waiting: dict[TopicGroup, _Unsent] = {}
        self._under_way: dict[TopicGroup, _Unsent] = {}
        self._sending: asyncio.Task[None] | None = None
        self._round_at = 0.0
        self._count = 0
        """Offsets that wait or are under way; one that is both counts twice."""

    def note(self, topic: str, group: str, queue_id: int, offset: int) -> _Unsent | None:
        """Takes one offset; a negative one says nothing. Raises NodeBusy."""
        if offset < 0:
            return None
        key, generation = TopicGroup(topic, group), self._generation_of(topic)
        unsent = self._waiting.get(key)
        if unsent is not None and unsent.generation < generation:
            self._count -= len(self._waiting.pop(key).places)
            unsent.end(_removed())
            unsent = None
        if unsent is None or queue_id not in unsent.places:
            if self._count >= WAITING_MAX:
                raise errors.NodeBusy(f"{WAITING_MAX} offsets wait for the writer")
            self._count += 1
        if unsent is None:
            unsent = self._waiting[key] = _Unsent(generation)
        unsent.places[queue_id] = offset
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send())
            self._sending.add_done_callback(lambda task: pass_on_error(task, self.fail))
        return unsent

    async def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """As `note`; returns when the writer has it. Raises what the writer refuses, NodeBusy."""
        unsent = self.note(topic, group, queue_id, offset)
        if unsent is not None:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            unsent.asked.append(done)
            try:
                async with asyncio.timeout(REPLY_S):
                    await done
            except TimeoutError:
                raise errors.NodeBusy("the writer has not taken the offset yet") from None

    def waiting(self, topic: str, group: str) -> Mapping[int, int]:
        """What the writer may not have yet, by queue."""
        key = TopicGroup(topic, group)
        found: Places = {}
        for table in (self._under_way, self._waiting):
            if key in table and table[key].generation >= self._generation_of(topic):
                found |= table[key].places
        return found

    # Of groups, as the writer has them, and on their way to it. All raise what the writer refuses.

    async def committed(self, topic: str, group: str, queue_id: int) -> int | None:
        """The next offset of a group, as its members have committed it; None where they did not."""
        found = self.waiting(topic, group).get(queue_id)
        if found is None:
            asked = operations.cursor_places(topic, group, self._core.deadline(None))
            found = (await run(self._core, asked)).get(queue_id)
        return found

    async def of(self, group: str) -> OfTopics:
        return (await self.of_all(group)).get(group, {})

    async def of_all(self, group: str | None = None) -> Mapping[str, OfTopics]:
        """Those of all groups, by group, or of one."""
        known, _ = await run(self._core, committed(group, self._core.deadline(None)))
        return {
            name: {topic: {**places, **self.waiting(topic, name)} for topic, places in of.items()}
            for name, of in known.items()
        }

    async def close(self) -> None:
        """Sends what waits, for STOP_S at most."""
        if self._sending is not None:
            self._sending.cancel()
            with suppress(asyncio.CancelledError):
                await self._sending
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._round()

    async def _send(self) -> None:
        while self._waiting:
            # Also where nothing has to be waited for, so that the rest of the turn goes along.
            await asyncio.sleep(max(0.0, self._round_at + COMMIT_S - monotonic()))
            is_reached = await self._round()
            self._round_at = monotonic()
            if not is_reached:
                await asyncio.sleep(RETRY_S)

    async def _round(self) -> bool:
        """Sends what waits now; False if the writer could not be reached."""
        now = list(self._waiting)
        parts = [now[at : at + COMMITS_AT_ONCE] for at in range(0, len(now), COMMITS_AT_ONCE)]
        for part in parts:
            if not await self._send_part(part):
                return False
        return True

    async def _send_part(self, some: list[TopicGroup]) -> bool:
        self._under_way = {key: self._waiting.pop(key) for key in some}
        try:
            return all(await asyncio.gather(*map(self._commit, some)))
        finally:
            # Cancelled, or not reached.
            for key, unsent in self._under_way.items():
                newer = self._waiting.get(key)
                both = self._waiting[key] = unsent.put_back(newer)
                if newer is not None:
                    self._count -= len(unsent.places) + len(newer.places) - len(both.places)
            self._under_way = {}

    async def _commit(self, key: TopicGroup) -> bool:
        unsent, refused = self._under_way[key], None
        deadline = self._core.deadline(None)
        try:
            asked = operations.commit_cursor(
                *key, unsent.places, deadline, generation=unsent.generation
            )
            await run(self._core, asked)
        except errors.RefusedError as error:
            refused = error
            why = fields(topic=key.topic, group=key.group, why=error)
            log.warning("offsets were not committed", extra=why)
        except errors.MqError as error:
            log.warning("offsets wait for the writer", extra=fields(why=error))
            return False
        del self._under_way[key]
        self._count -= len(unsent.places)
        unsent.end(refused)
        return True


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
        self.look()
        return self.desk.store.log.end

    def bounds(self, topic: str, queue_id: int) -> StoredOffsets:
        """Zeros for a queue that does not exist. Raises StoreDamaged."""
        desk, queue = self.desk, ids.Queue(topic, queue_id)
        return StoredOffsets(
            *look_again(desk.store, lambda: bounds_of(desk.store, desk.tail, queue))
        )

    def time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, in ms; NO_TIME where there is none that can be read."""
        desk = self.desk
        return time_at(desk.store, desk.tail, ids.Queue(topic, queue_id), offset)

    def offset_at(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """The first offset of a store time in ms, or with `boundary` the last."""
        desk = self.desk

        def look() -> int:
            queue = desk.store.queue(topic, queue_id)
            return look_up.offset_by_time(desk.store.log, queue, timestamp, boundary)

        return look_again(desk.store, look)


@dataclass(slots=True, eq=False)
class Offsets:
    """One for each gateway, in the thread of its loop."""

    _topics: topics.Topics
    _commits: Commits
    _facts: QueueFacts
    _resets: WaitingResets
    _groups: groups.Groups
    _members: members.Members
    _places: ClientPlaces

    # Of queues

    def max(self, _: Request, wanted: hf.QueueHeader) -> Reply:
        """30: the offset of the next message of a queue; 0 for one that does not exist."""
        self._facts.look()
        return _reply(self._facts.bounds(*wanted).max)

    def min(self, _: Request, wanted: hf.QueueHeader) -> Reply:
        """31: the offset of the first message that a queue still has."""
        self._facts.look()
        return _reply(self._facts.bounds(*wanted).min)

    def by_time(self, _: Request, wanted: hf.SearchOffsetHeader) -> Reply:
        """29: the offset of a store time."""
        self._facts.look()
        boundary = _BOUNDARIES.get(wanted.boundary_type.lower())
        if boundary is None:
            raise BadCommand(f"boundaryType is {wanted.boundary_type[:40]!a}", "lower or upper")
        place = wanted.topic, wanted.queue_id, wanted.timestamp
        return _reply(self._facts.offset_at(*place, boundary))

    def earliest_time(self, _: Request, wanted: hf.QueueHeader) -> Reply:
        """32: when the first message of a queue was stored, in ms; -1 without one that can be
        read."""
        self._facts.look()
        store = self._facts.desk.store

        def look() -> int:
            queue = store.queue(wanted.topic, wanted.queue_id)
            unit = None if queue is None else queue.unit(queue.min_offset)
            if queue is None or unit is None:
                return -1
            try:
                return pull.store_time(store.log, queue, queue.min_offset, unit)
            except errors.MessageDamaged as damage:
                met_damage.note(damage)
                return -1

        return Reply(ext={"timestamp": str(look_again(store, look))})

    # Of groups

    async def stored(self, request: Request, wanted: hf.QueryConsumerOffsetHeader) -> Reply:
        """14: the next offset that a group consumes; 22 where it has none, so that the client
        begins as its group says.

        A young topic is consumed from its begin: that is the case where its first message is
        among the newest, as RocketMQ has it (ConsumerManageProcessor#queryConsumerOffset).
        """
        self._facts.look()
        topic, group = wanted.topic, wanted.consumer_group
        found = self._resets.find(topic, group, wanted.queue_id)
        if found is None:
            found = await self._commits.committed(topic, group, wanted.queue_id)
        # What the client hears now, it has of the topic that is there.
        self._places.note(request.connection, GroupQueuePlace(topic, group, wanted.queue_id))
        if found is not None:
            return _reply(found)
        if wanted.set_zero_if_not_found and self._is_young(topic, wanted.queue_id):
            return _reply(0)
        raise errors.NotFound(
            f"group {wanted.consumer_group} has no offset in queue {wanted.queue_id} of"
            f" {wanted.topic}"
        )

    async def commit(self, request: Request, wanted: hf.UpdateConsumerOffsetHeader) -> Reply:
        """15: notes the next offset that a group consumes. A negative one is ignored, and each
        while the group shall go on from another one. Raises UnknownTopic, NodeBusy, and what the
        writer refuses."""
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

    def _is_of_removed(self, request: Request, wanted: hf.UpdateConsumerOffsetHeader) -> bool:
        """Whether an offset may be one of a topic that was removed: that of a member which has not
        pulled, or asked, since. A tool's is what somebody wants. Raises TopicRemoved for a client
        that heeds it."""
        connection, group = request.connection, wanted.consumer_group
        place = GroupQueuePlace(wanted.topic, group, wanted.queue_id)
        verdict = self._places.verdict(connection, place, wanted.known_at)
        if verdict is PlaceVerdict.SOUND or wanted.commit_offset <= 0:
            return False
        if wanted.known_at is not None:
            raise errors.TopicRemoved(f"topic {wanted.topic} was removed, and its offsets with it")
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
                return is_empty and is_there and not topic.startswith(names.RETRY_PREFIX)
            share = store.settings.access_message_in_memory_max_ratio
            hot_bytes = machine_memory_bytes() * share // 100
            return queue.min_offset == 0 and unit.physical_offset >= store.log.end - hot_bytes

        return bool(look_again(store, look))


def _reply(offset: int) -> Reply:
    return Reply(ext={"offset": str(offset)})
