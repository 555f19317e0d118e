"""Topics as tools make, change and remove them (17, 18, 215, 216), or report on them.

216 is as a name server does it. The checks and their texts are those of RocketMQ's
AdminBrokerProcessor and AttributeUtil. Reports are on the queues of topics (202, 321), and on how
old messages are (303), as AdminBrokerProcessor replies.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway.admin.figures import BrokerCounts
from keelog.gateway.commits import GroupOffsets
from keelog.gateway.connection import Reply, Request, json_reply, system_error
from keelog.gateway.members import Members
from keelog.gateway.offsets import QueueFacts
from keelog.gateway.places import WaitingResets
from keelog.gateway.settings import SELF_TEST_TOPIC, TBW102
from keelog.gateway.topics import Topics
from node.reader.answers import NO_TIME, look_again
from node.runtime.process import now_ms
from node.store.config import topics_file
from protocol.errors import BadRequest, IllegalMessage, UnknownTopic
from protocol.names import NOT_FOR_CLIENTS, SYSTEM_PREFIX, TRACE_TOPIC, check_topic
from protocol.remoting.bodies import (
    MessageQueue,
    TopicConfig,
    TopicConfigs,
    TopicOffset,
    TopicStatsTable,
)
from protocol.remoting.codes import BadCommand
from protocol.remoting.header_fields import (
    CreateTopicHeader,
    QueryQueueHeader,
    TopicOfGroupHeader,
    request_fields,
)
from protocol.remoting.java_json import read_body

TOPICS_AT_ONCE_MAX = 1_000
"""Of one request to make several."""
_MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")
MIXED = "MIXED"
_VALUES: Mapping[str, tuple[str, ...]] = {
    topics_file.QUEUE_TYPE: ("BatchCQ", "SimpleCQ"),
    topics_file.CLEANUP: ("COMPACTION", "DELETE"),
    topics_file.MESSAGE_TYPE: (*_MESSAGE_TYPES, MIXED),
    topics_file.RESERVE_TIME: (),
    topics_file.LITE_EXPIRATION: (),
}
"""What each attribute may be at a broker; without values it is a number. The writer refuses those
that a node does not offer."""
_FIXED = frozenset((topics_file.QUEUE_TYPE, topics_file.CLEANUP))
"""Attributes that a topic keeps for its life."""

SYSTEM_TOPICS = frozenset(
    {
        *(TBW102, SELF_TEST_TOPIC, TRACE_TOPIC, "CHECKPOINT_TOPIC", "BenchmarkTest"),
        *("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"),
        *NOT_FOR_CLIENTS,
    }
)
"""Those of every broker, whether they exist or not."""
UNITS_MAX = 1_024
"""Of one reply to 321, where the tool asks for more."""


@dataclass(slots=True, eq=False)
class TopicHandlers:
    """One for each gateway, in the thread of its loop. The writer makes and removes topics."""

    _core: ClientCore
    _topics: Topics
    _members: Members
    _resets: WaitingResets
    _facts: QueueFacts
    _offsets: GroupOffsets
    _counts: BrokerCounts

    # Changes

    async def create(self, request: Request) -> Reply:
        """17: makes a topic, or changes it."""
        wanted: CreateTopicHeader = request_fields(request.header)
        await self._put(
            TopicConfig(
                wanted.topic,
                wanted.read_queue_nums,
                wanted.write_queue_nums,
                wanted.perm,
                wanted.topic_filter_type,
                wanted.topic_sys_flag,
                wanted.order,
                _parsed_attributes(wanted.attributes or ""),
            )
        )
        return Reply()

    async def create_all(self, request: Request) -> Reply:
        """18: several topics, each as by 17; those before one that is refused are made."""
        configs = read_body(TopicConfigs, request.body).topic_config_list
        if len(configs) > TOPICS_AT_ONCE_MAX:
            raise BadCommand(f"{len(configs)} topics", f"send {TOPICS_AT_ONCE_MAX} at a time")
        for config in configs:
            self._check_name(config.topic_name)
        for config in configs:
            await self._put(config)
        return Reply()

    async def _put(self, wanted: TopicConfig) -> None:
        name = wanted.topic_name
        self._check_name(name)
        if wanted.attributes.get(f"+{topics_file.MESSAGE_TYPE}") == MIXED:
            raise BadRequest("MIXED message type is not supported.")
        attributes = _changed_attributes(self._topics.find(name), wanted.attributes)
        hours = int(attributes.pop(topics_file.RESERVE_TIME, 0))
        fields = {
            "topic": name,
            "queues": wanted.write_queue_nums,
            "read_queues": wanted.read_queue_nums,
            "perm": wanted.perm,
            "order": wanted.order,
            "sys_flag": wanted.topic_sys_flag,
            "attributes": attributes,
            "retention_hours": max(0, hours),
        }
        await run(self._core, operations.create_topic(fields, self._core.deadline(None)))
        self._topics.look()

    def _check_name(self, name: str) -> None:
        """Raises BadRequest, as TopicValidator."""
        if not name.strip():
            raise BadRequest("The specified topic is blank.")
        try:
            check_topic(name)
        except IllegalMessage as error:
            raise BadRequest(f"The specified topic: {name[:300]}, {error.reason}") from None
        if is_system_topic(name, self._topics):
            raise BadRequest(f"The topic[{name}] is conflict with system topic.")

    async def delete(self, request: Request) -> Reply:
        """215: removes a topic with its messages and all offsets of it."""
        name = request_fields(request.header).topic
        self._check_name(name)
        with suppress(UnknownTopic):  # a broker takes what is not there as removed
            await run(self._core, operations.delete_topic(name, self._core.deadline(None)))
        self._resets.forget_topic(name)
        self._topics.look()
        return Reply()

    def forget_route(self, _: Request) -> Reply:
        """216: of a name server. The route has gone with the topic."""
        self._topics.look()
        return Reply()

    # Reports

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
        return json_reply(TopicStatsTable(table, self._counts.put_tps(topic.name)))

    async def time_span(self, request: Request) -> Reply:
        """303: for each queue the times of its first and last message, and of the last that a
        group has consumed."""
        wanted: TopicOfGroupHeader = request_fields(request.header)
        topic = self._topics.need(wanted.topic)
        committed = (await self._offsets.of(wanted.group)).get(topic.name, {})
        self._facts.look()
        spans = [
            self._span(topic.name, queue_id, committed.get(queue_id, -1))
            for queue_id in range(topic.write_queues)
        ]
        return json_reply({"consumeTimeSpanSet": spans})

    def _span(self, topic: str, queue_id: int, committed: int) -> Mapping[str, Any]:
        facts = self._facts
        low, high = facts.bounds(topic, queue_id)
        first = facts.time_at(topic, queue_id, low)
        consumed = facts.time_at(topic, queue_id, committed - 1) if committed > 0 else first
        delay = 0
        if committed < high:
            following = facts.time_at(topic, queue_id, committed)
            delay = now_ms() - following if following != NO_TIME else now_ms() + 1
        return {
            "consumeTimeStamp": consumed,
            "delayTime": delay,
            "maxTimeStamp": facts.time_at(topic, queue_id, high - 1),
            "messageQueue": MessageQueue(topic, self._topics.name.broker, queue_id),
            "minTimeStamp": first,
        }

    def units(self, request: Request) -> Reply:
        """321: units of a queue as they are in its files."""
        wanted: QueryQueueHeader = request_fields(request.header)
        self._facts.look()
        store = self._facts.desk.store
        queue = look_again(store, lambda: store.queue(wanted.topic, wanted.queue_id))
        if queue is None:
            return system_error(f"{wanted.queue_id}@{wanted.topic} is not exist!")
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
        rows = [
            {
                "eval": False,
                "physicOffset": one.physical_offset,
                "physicSize": one.size,
                "tagsCode": one.tags_code,
            }
            for one in units
            if one is not None
        ]
        return json_reply(
            {
                "filterData": filter_data,
                "maxQueueIndex": high,
                "minQueueIndex": low,
                "queueData": rows,
                "subscriptionData": subscription,
            }
        )


def is_system_topic(name: str, topics: Topics) -> bool:
    """Whether clients may not make or remove a topic (TopicValidator#isSystemTopic)."""
    names = (topics.name.cluster, topics.name.broker, topics.name.reply_topic)
    return name in SYSTEM_TOPICS or name in names or name.startswith(SYSTEM_PREFIX)


def _parsed_attributes(changes: str) -> dict[str, str]:
    """`+name=value,-name` by sign and name (AttributeParser). Raises BadCommand."""
    found: dict[str, str] = {}
    for change in filter(None, changes.split(",")):
        name, equals, value = change.partition("=")
        if (equals and not name.startswith("+")) or (not equals and not name.startswith("-")):
            raise BadCommand(f"kv string format wrong: {change[:80]}")
        if name in found:
            raise BadCommand(f"key duplication: {name[:80]}")
        found[name] = value
    return found


def _changed_attributes(
    known: topics_file.Topic | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Attributes of a topic after changes, as AttributeUtil#alterCurrentAttributes. Raises
    BadCommand."""
    found = {} if known is None else dict(known.attributes)
    if known is not None and known.retention_hours:
        found[topics_file.RESERVE_TIME] = str(known.retention_hours)
    for signed, value in changes.items():
        name, is_added = signed[1:], signed.startswith("+")
        if not name or "+" in name or "-" in name:
            raise BadCommand("kv string format wrong.")
        if known is None and not is_added:
            raise BadCommand(f"only add attribute is supported while creating topic. key: {name}")
        if not is_added and name not in found:
            raise BadCommand(f"attempt to delete a nonexistent key: {name}")
        if name not in _VALUES:
            raise BadCommand(f"unsupported key: {name}")
        if known is not None and name in _FIXED:
            raise BadCommand(f"attempt to update an unchangeable attribute. key: {name}")
        if is_added:
            _check_value(name, value)
            found[name] = value
        else:
            del found[name]
    return found


def _check_value(name: str, value: str) -> None:
    values = _VALUES[name]
    if values and value not in values:
        raise BadCommand(f"value is not in set: [{', '.join(values)}]")
    if not values and not value.removeprefix("-").isdecimal():
        raise BadCommand(f"attribute {name} is {value[:40]!a}: name a number")
