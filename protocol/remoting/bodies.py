"""The bodies of requests and replies as classes of Java: names, types and defaults are Java's.

To add one, declare it. `protocol.remoting.java_json` reads and writes it. A body that is only
written, in one place, is a map there, with its keys in Java's order. Those of the replies to
RocketMQ's admin tools come last.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from protocol.remoting.java_json import Int32

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker. It is also a key of maps."""

    topic: str
    broker_name: str
    queue_id: Int32


class DataVersion(NamedTuple):
    """How new a table is: `counter` grows with each change."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


# Heart-beats and groups


class SubscriptionData(NamedTuple):
    """What a group wants of a topic: an expression, and a tag's texts and hashes."""

    topic: str = ""
    sub_string: str = ""
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int32, ...] = ()
    sub_version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ConsumerData(NamedTuple):
    """A consumer group of a client, with all that it subscribes."""

    group_name: str = ""
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False


class ProducerData(NamedTuple):
    """A producer group of a client."""

    group_name: str = ""


class HeartbeatData(NamedTuple):
    """34: a client's id, and the groups of which it is a member."""

    client_id: Annotated[str, "clientID"]
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()
    heartbeat_fingerprint: Int32 = 0
    without_sub: bool = False


class ConsumerIdList(NamedTuple):
    """38: the members of a group."""

    consumer_id_list: tuple[str, ...] = ()


class CheckClientBody(NamedTuple):
    """46: whether a broker takes an expression."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
    namespace: str | None = None


class LockBatchBody(NamedTuple):
    """41 and 42: queues that a client locks or unlocks for its group."""

    consumer_group: str
    client_id: str
    mq_set: tuple[MessageQueue, ...] = ()
    only_this_broker: bool = False


class LockedQueues(NamedTuple):
    """41: the queues that a client has locked."""

    lock_ok_mq_set: Annotated[tuple[MessageQueue, ...], "lockOKMQSet"] = ()


# Topics and routes


class BrokerData(NamedTuple):
    """The addresses of one broker name, by broker id."""

    broker_name: str
    broker_addrs: Mapping[int, str]
    cluster: str | None = None
    enable_acting_master: bool = False
    zone_name: str | None = None


class QueueData(NamedTuple):
    """How many queues of a topic a broker has."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class TopicRouteData(NamedTuple):
    """105: the brokers of a topic."""

    broker_datas: tuple[BrokerData, ...] = ()
    queue_datas: tuple[QueueData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = _EMPTY
    order_topic_conf: str | None = None


class ClusterInfo(NamedTuple):
    """106: all brokers, and the broker names of each cluster."""

    broker_addr_table: Mapping[str, BrokerData] = _EMPTY
    cluster_addr_table: Mapping[str, tuple[str, ...]] = _EMPTY


class TopicList(NamedTuple):
    """206: names of topics."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class TopicConfig(NamedTuple):
    """351, and an entry of topics.json."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: Mapping[str, str] = _EMPTY


class TopicConfigTable(NamedTuple):
    """21 and 103: all topics of a broker. The maps of static topics are passed on as they are."""

    topic_config_table: Mapping[str, TopicConfig] = _EMPTY
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_detail_map: Any = None
    topic_queue_mapping_info_map: Any = None


class RegisterBrokerBody(NamedTuple):
    """103, not compressed: the topics that a broker registers with a name server."""

    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()
    filter_server_list: tuple[str, ...] = ()


# Subscription groups and offsets


class SubscriptionGroupConfig(NamedTuple):
    """200, 352, and an entry of subscriptionGroup.json."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: Any = MappingProxyType({"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    subscription_data_set: Any = None
    attributes: Mapping[str, str] = _EMPTY


class TopicOffset(NamedTuple):
    """The bounds of one queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(NamedTuple):
    """202: the bounds of a topic's queues."""

    offset_table: Mapping[MessageQueue, TopicOffset] = _EMPTY
    topic_put_tps: float = 0.0


class OffsetWrapper(NamedTuple):
    """How far a group has come in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0


class ConsumeStats(NamedTuple):
    """208: how far a group has come."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = _EMPTY
    consume_tps: float = 0.0


class ConsumeStatsList(NamedTuple):
    """317: how far all groups of a broker have come."""

    consume_stats_list: tuple[Mapping[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: int = 0
    total_inflight_diff: int = 0


class ResetOffsetBody(NamedTuple):
    """222, and 220 to a client: the new offset of each queue."""

    offset_table: Mapping[MessageQueue, int] = _EMPTY


class GetConsumerStatusBody(NamedTuple):
    """221 from a client, and 223: its offsets, or those of each client id."""

    message_queue_table: Mapping[MessageQueue, int] = _EMPTY
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] = _EMPTY


class KVTable(NamedTuple):
    """28: names and values."""

    table: Mapping[str, str] = _EMPTY


class StatsOfSpan(NamedTuple):
    """A statistic over a span of time: the sum, and that by second and by time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class TopicConfigs(NamedTuple):
    """18: topics to make or change."""

    topic_config_list: tuple[TopicConfig, ...] = ()


class GroupConfigs(NamedTuple):
    """225: groups to make or change, each as in 200."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()
