"""Topics as tools make, change and remove them (17, 18, 215), or report on them; name servers.

The checks and their texts are those of RocketMQ's
AdminBrokerProcessor and AttributeUtil. Reports are on the queues of topics (202, 321), and on how
old messages are (303), as AdminBrokerProcessor replies.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway import members, topics
from keelog.gateway.admin.broker_info import BrokerCounts
from keelog.gateway.connection import Reply, Request, json_reply, system_error
from keelog.gateway.guard import seen_topics
from keelog.gateway.offsets import Commits, QueueFacts
from keelog.gateway.places import WaitingResets
from keelog.gateway.settings import SELF_TEST_TOPIC, TBW102
from node.reader.answers import NO_TIME, look_again
from node.runtime.process import now_ms
from node.store.config import topics_file
from node.store.config.config_table import ConfigTable
from protocol import errors, names
from protocol.remoting import bodies
from protocol.remoting import header_fields as hf
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import read_body

KEYS_KEPT_MAX = 10_000
"""Values of all namespaces of a name server together."""
VALUE_CHARS_MAX = 4_096
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
        *(TBW102, SELF_TEST_TOPIC, names.TRACE_TOPIC, "CHECKPOINT_TOPIC", "BenchmarkTest"),
        *("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"),
        *names.NOT_FOR_CLIENTS,
    }
)
"""Those of every broker, whether they exist or not."""
UNITS_MAX = 1_024
"""Of one reply to 321, where the tool asks for more."""


@dataclass(slots=True, eq=False)
class TopicHandlers:
    """One for each gateway, in the thread of its loop. The writer makes and removes topics."""

    _core: ClientCore
    _topics: topics.Topics
    _members: members.Members
    _resets: WaitingResets
    _facts: QueueFacts
    _commits: Commits
    _counts: BrokerCounts

    # Changes

    async def create(self, _: Request, wanted: hf.CreateTopicHeader) -> Reply:
        """17: makes a topic, or changes it."""
        attributes = _parsed_attributes(wanted.attributes or "")
        await self._put(wanted.topic, wanted, attributes)
        return Reply()

    async def create_all(self, request: Request) -> Reply:
        """18: several topics, each as by 17; those before one that is refused are made."""
        configs = read_body(bodies.TopicConfigs, request.body).topic_config_list
        if len(configs) > TOPICS_AT_ONCE_MAX:
            raise BadCommand(f"{len(configs)} topics", f"send {TOPICS_AT_ONCE_MAX} at a time")
        for config in configs:
            self._check_name(config.topic_name)
        for config in configs:
            await self._put(config.topic_name, config, config.attributes)
        return Reply()

    async def _put(
        self,
        name: str,
        wanted: hf.CreateTopicHeader | bodies.TopicConfig,
        changes: Mapping[str, str],
    ) -> None:
        self._check_name(name)
        if changes.get(f"+{topics_file.MESSAGE_TYPE}") == MIXED:
            raise errors.BadRequest("MIXED message type is not supported.")
        attributes = _changed_attributes(self._topics.find(name), changes)
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
            raise errors.BadRequest("The specified topic is blank.")
        try:
            names.check_topic(name)
        except errors.IllegalMessage as error:
            text = f"The specified topic: {name[:300]}, {error.reason}"
            raise errors.BadRequest(text) from None
        if is_system_topic(name, self._topics):
            raise errors.BadRequest(f"The topic[{name}] is conflict with system topic.")

    async def delete(self, _: Request, wanted: hf.TopicHeader) -> Reply:
        """215: removes a topic with its messages and all offsets of it."""
        name = wanted.topic
        self._check_name(name)
        with suppress(errors.UnknownTopic):  # a broker takes what is not there as removed
            await run(self._core, operations.delete_topic(name, self._core.deadline(None)))
        self._resets.forget_topic(name)
        self._topics.look()
        return Reply()

    def forget_route(self, _: Request, __: hf.TopicHeader) -> Reply:
        """216: of a name server. The route has gone with the topic."""
        self._topics.look()
        return Reply()

    # Reports

    def stats(self, _: Request, wanted: hf.TopicHeader) -> Reply:
        """202: the bounds of all queues of a topic, and when each got its last message."""
        topic = self._topics.need(wanted.topic)
        self._facts.look()
        table = {}
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            low, high = self._facts.bounds(topic.name, queue_id)
            last = self._facts.time_at(topic.name, queue_id, high - 1) if high else 0
            queue = bodies.MessageQueue(topic.name, self._topics.name.broker, queue_id)
            table[queue] = bodies.TopicOffset(low, high, max(0, last))
        return json_reply(bodies.TopicStatsTable(table, self._counts.put_tps(topic.name)))

    async def time_span(self, _: Request, wanted: hf.ConsumerStatusHeader) -> Reply:
        """303: for each queue the times of its first and last message, and of the last that a
        group has consumed."""
        topic = self._topics.need(wanted.topic)
        committed = (await self._commits.of(wanted.group)).get(topic.name, {})
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
            "messageQueue": bodies.MessageQueue(topic, self._topics.name.broker, queue_id),
            "minTimeStamp": first,
        }

    def units(self, _: Request, wanted: hf.QueryQueueHeader) -> Reply:
        """321: units of a queue as they are in its files."""
        self._facts.look()
        store = self._facts.desk.store
        queue = look_again(store, lambda: store.queue(wanted.topic, wanted.queue_id))
        if queue is None:
            return system_error(f"{wanted.queue_id}@{wanted.topic} is not exist!")
        subscription, filter_data = None, None
        if wanted.consumer_group is not None:
            group = self._members.groups.get(wanted.consumer_group)
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
        body = {
            "filterData": filter_data,
            "maxQueueIndex": high,
            "minQueueIndex": low,
            "queueData": rows,
            "subscriptionData": subscription,
        }
        return json_reply(body)


class NameServerHandlers:
    """Of a name server, where the node is its own: 100 to 102, 205, 219, 224, 304, 311 to 313, 327.

    Values of names are kept in `config/kvConfig.json`, the file of a name server (KVConfigManager),
    which the gateway owns. As there, unless `orderMessageEnable` is set, nothing heeds the order of
    topics in them.
    """

    def __init__(self, root: Path, known: topics.Topics) -> None:
        self._topics = known
        self.file = ConfigTable(root / names.KV_CONFIG_FILE, "configTable", now_ms)

    def _table(self) -> Mapping[str, bodies.TopicConfig]:
        return self._topics.announced().topic_config_table

    def put(self, _: Request, wanted: hf.KvHeader) -> Reply:
        """100: gives a name a value. Raises NotAllowed."""
        self.file.check_readable()
        known = self.file.entries.get(wanted.namespace, {})
        count = sum(map(len, self.file.entries.values()))
        if count >= KEYS_KEPT_MAX and wanted.key not in known:
            raise errors.NotAllowed(f"{KEYS_KEPT_MAX} names have values already")
        if max(map(len, wanted)) > VALUE_CHARS_MAX:
            raise errors.NotAllowed(f"more than {VALUE_CHARS_MAX} characters")
        self.file.entries[wanted.namespace] = {**known, wanted.key: wanted.value}
        self.file.touch()
        return Reply()

    def get(self, _: Request, wanted: hf.KvHeader) -> Reply:
        """101: the value of a name."""
        found = self.file.entries.get(wanted.namespace, {}).get(wanted.key)
        if found is None:
            raise errors.NotFound(
                f"No config item, Namespace: {wanted.namespace} Key: {wanted.key}"
            )
        return Reply(ext={"value": str(found)})

    def delete(self, _: Request, wanted: hf.KvHeader) -> Reply:
        """102: takes a name's value away."""
        self.file.check_readable()
        known = dict(self.file.entries.get(wanted.namespace, {}))
        if known.pop(wanted.key, None) is not None:
            self.file.entries[wanted.namespace] = known
            self.file.touch()
        return Reply()

    def values(self, _: Request, wanted: hf.NamespaceHeader) -> Reply:
        """219: all names of a namespace."""
        found = self.file.entries.get(wanted.namespace)
        if found is None:
            raise errors.NotFound(f"No config item, Namespace: {wanted.namespace}")
        return json_reply(bodies.KVTable({name: str(value) for name, value in found.items()}))

    def set_wiped(self, is_wiped: bool, _: Request, wanted: hf.BrokerNameHeader) -> Reply:
        """205: routes say that nothing can be sent, until 327 or a restart of the gateway. Returns
        how many topics that concerns: none of another broker."""
        count = 0
        if wanted.broker_name == self._topics.name.broker:
            self._topics.is_wiped = is_wiped
            count = len(self._table())
        return Reply(ext={"wipeTopicCount" if is_wiped else "addTopicCount": str(count)})

    def topics_of_cluster(self, request: Request, wanted: hf.ClusterHeader) -> Reply:
        """224: the topics of a cluster, which is this node."""
        is_ours = wanted.cluster == self._topics.name.cluster
        names = tuple(self._table()) if is_ours else ()
        return json_reply(bodies.TopicList(seen_topics(request, names)))

    def system_topics(self, request: Request) -> Reply:
        """304: the cluster and the broker, which have topics of their names."""
        address = self._topics.name.address or request.connection.address
        names = (self._topics.name.cluster, self._topics.name.broker)
        return json_reply(bodies.TopicList(names, address))

    def flagged(self, has: int, lacks: int, request: Request) -> Reply:
        """311 to 313: the topics of which the flags have a bit, and lack another."""
        flags = {n: t.topic_sys_flag for n, t in self._table().items()}
        names = (name for name, flag in flags.items() if flag & has and not flag & lacks)
        return json_reply(bodies.TopicList(seen_topics(request, names)))

    def own_system_topics(self, request: Request) -> Reply:
        """305: of a broker: the topics that clients may not make, also those that nobody has made:
        tools show what is not among them as a topic of users."""
        known = self._table()
        names = SYSTEM_TOPICS.union(name for name in known if is_system_topic(name, self._topics))
        return json_reply(bodies.TopicList(seen_topics(request, sorted(names))))


def is_system_topic(name: str, of: topics.Topics) -> bool:
    """Whether clients may not make or remove a topic (TopicValidator#isSystemTopic)."""
    own = (of.name.cluster, of.name.broker, of.name.reply_topic)
    return name in SYSTEM_TOPICS or name in own or name.startswith(names.SYSTEM_PREFIX)


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
