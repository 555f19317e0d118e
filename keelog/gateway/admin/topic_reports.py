"""Reports on topics for tools: their queues (202, 321), and how old messages are (303).

As RocketMQ's AdminBrokerProcessor replies.
"""

from keelog.gateway.admin.counts import BrokerCounts
from keelog.gateway.admin.group_offsets import GroupOffsets
from keelog.gateway.admin.queue_facts import QueueFacts
from keelog.gateway.connection import Reply, Request
from keelog.gateway.members import Members
from keelog.gateway.topics import Topics
from node.reader.answers import NO_TIME, look_again
from node.runtime.process import now_ms
from protocol.remoting.bodies import (
    ConsumeTimeSpans,
    MessageQueue,
    QueueTimeSpan,
    TopicOffset,
    TopicStatsTable,
    UnitOfQueue,
    UnitsOfQueue,
)
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import QueryQueueHeader, TopicOfGroupHeader, request_fields
from protocol.remoting.java_json import write_body

UNITS_MAX = 1_024
"""Of one reply to 321, where the tool asks for more."""


class TopicReports:
    """One for each gateway, in the thread of its loop."""

    def __init__(
        self,
        facts: QueueFacts,
        topics: Topics,
        members: Members,
        offsets: GroupOffsets,
        counts: BrokerCounts,
    ) -> None:
        self._facts = facts
        self._topics = topics
        self._members = members
        self._offsets = offsets
        self._counts = counts

    def stats(self, request: Request) -> Reply:
        """202: the bounds of all queues of a topic, and when each got its last message."""
        topic = self._topics.need(request_fields(request.header).topic)
        self._facts.look()
        table = {}
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            low, high = self._facts.bounds(topic.name, queue_id)
            last = self._facts.time_at(topic.name, queue_id, high - 1) if high else 0
            queue = MessageQueue(topic.name, self._topics.name.broker, queue_id)
            table[queue] = TopicOffset(low, high, max(0, last))
        stats = TopicStatsTable(table, self._counts.put_tps(topic.name))
        return Reply(body=write_body(stats, standard=True))

    async def time_span(self, request: Request) -> Reply:
        """303: for each queue the times of its first and last message, and of the last that a
        group has consumed."""
        wanted: TopicOfGroupHeader = request_fields(request.header)
        topic = self._topics.need(wanted.topic)
        committed = await self._offsets.of_topic(topic.name, wanted.group)
        self._facts.look()
        spans = tuple(
            self._span(topic.name, queue_id, committed.get(queue_id, -1))
            for queue_id in range(topic.write_queues)
        )
        return Reply(body=write_body(ConsumeTimeSpans(spans), standard=True))

    def _span(self, topic: str, queue_id: int, committed: int) -> QueueTimeSpan:
        facts = self._facts
        low, high = facts.bounds(topic, queue_id)
        first = facts.time_at(topic, queue_id, low)
        consumed = facts.time_at(topic, queue_id, committed - 1) if committed > 0 else first
        delay = 0
        if committed < high:
            following = facts.time_at(topic, queue_id, committed)
            delay = now_ms() - following if following != NO_TIME else now_ms() + 1
        return QueueTimeSpan(
            MessageQueue(topic, self._topics.name.broker, queue_id),
            first,
            facts.time_at(topic, queue_id, high - 1),
            consumed,
            delay,
        )

    def units(self, request: Request) -> Reply:
        """321: units of a queue as they are in its files."""
        wanted: QueryQueueHeader = request_fields(request.header)
        self._facts.look()
        store = self._facts.desk.store
        queue = look_again(store, lambda: store.queue(wanted.topic, wanted.queue_id))
        if queue is None:
            text = f"{wanted.queue_id}@{wanted.topic} is not exist!"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text)
        subscription, filter_data = None, None
        if wanted.consumer_group is not None:
            group = self._members.find(wanted.consumer_group)
            subscription = None if group is None else group.subscriptions.get(wanted.topic)
            offline = f"{wanted.consumer_group}@{wanted.topic} is not online!"
            filter_data = offline if subscription is None else "null"
        low, high = queue.min_offset, queue.max_offset
        if not low <= wanted.first < high:
            text = f"Index {wanted.first} of {wanted.queue_id}@{wanted.topic} is not exist!"
            return Reply(remark=text)
        last = min(high, wanted.first + max(0, min(wanted.units, UNITS_MAX)))
        units = [queue.unit(number) for number in range(wanted.first, last)]
        rows = tuple(
            UnitOfQueue(one.physical_offset, one.size, one.tags_code)
            for one in units
            if one is not None
        )
        body = UnitsOfQueue(rows, high, low, subscription, filter_data)
        return Reply(body=write_body(body, standard=True))
