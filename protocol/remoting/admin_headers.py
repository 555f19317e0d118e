"""The fields of the requests of RocketMQ's admin tools, by request code.

`protocol.remoting.request_headers` joins them to those of clients.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from protocol.remoting.codes import RequestCode
from protocol.remoting.java_class import INT32_MAX, Int32, JavaClass


class TopicHeader(NamedTuple):
    """One topic."""

    topic: str


class GroupHeader(NamedTuple):
    """One group, and a topic of it where one counts alone."""

    group: str
    topic: str = ""


class TopicOfGroupHeader(NamedTuple):
    """A topic and a group."""

    topic: str
    group: str


class ProducerGroupHeader(NamedTuple):
    """One group of producers."""

    producer_group: str


class ConsumeStatsHeader(NamedTuple):
    """208: a group. `topic_list` has topics with `;` between them, whoever subscribes them."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""


class AllConsumeStatsHeader(NamedTuple):
    """317: all groups; `is_order` of ordered topics alone."""

    is_order: bool = False


class DeleteGroupHeader(NamedTuple):
    """207: a group to remove, with its offsets if `clean_offset`."""

    group_name: str
    clean_offset: bool = False


class PagedTopicsHeader(NamedTuple):
    """21: a page of the topics; all without numbers."""

    topic_seq: Int32 = 0
    max_topic_num: Int32 = INT32_MAX


class PagedGroupsHeader(NamedTuple):
    """201: a page of the groups; all without numbers."""

    group_seq: Int32 = 0
    max_group_num: Int32 = INT32_MAX


class ResetOffsetHeader(NamedTuple):
    """222: a group's new place in a topic: of a time in ms (-1: the end), or an offset of one
    queue."""

    topic: str
    group: str
    timestamp: int
    is_force: bool = False
    queue_id: Int32 = -1
    offset: int = -1


class ConsumerStatusHeader(NamedTuple):
    """223: a topic of a group, and the id of one of its clients where it counts alone."""

    topic: str
    group: str
    client_addr: str = ""


class RunningInfoHeader(NamedTuple):
    """307: a client of a group."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(NamedTuple):
    """309: a client of a group that shall consume the message with this offset id."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""
    topic: str = ""


class CloneOffsetHeader(NamedTuple):
    """314: the group whose offsets another gets."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class StatsHeader(NamedTuple):
    """315: a statistic, as TOPIC_PUT_NUMS, and of what."""

    stats_name: str
    stats_key: str


class QueryQueueHeader(NamedTuple):
    """321: units of a queue, from an offset on."""

    topic: str
    queue_id: Int32
    first: Annotated[int, "index"]
    units: Annotated[int, 32, "count"]
    consumer_group: str | None = None


class KvHeader(NamedTuple):
    """100 to 102: a name of a namespace, and its value."""

    namespace: str
    key: str
    value: str = ""


class NamespaceHeader(NamedTuple):
    """219: a namespace."""

    namespace: str


class ClusterHeader(NamedTuple):
    """224: a cluster."""

    cluster: str


class BrokerNameHeader(NamedTuple):
    """205 and 327: a broker."""

    broker_name: str


class RequestModeHeader(NamedTuple):
    """401, a body: how a group gets a topic's messages."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0


_TOPIC = JavaClass(TopicHeader)
_GROUP = JavaClass(GroupHeader)
_BROKER = JavaClass(BrokerNameHeader)
_KV = JavaClass(KvHeader)
ADMIN_HEADERS: Mapping[int, JavaClass[Any]] = {
    RequestCode.GET_TOPIC_CONFIG: _TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER: _TOPIC,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _TOPIC,
    RequestCode.GET_TOPIC_STATS_INFO: _TOPIC,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: _TOPIC,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: _GROUP,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: _GROUP,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: _GROUP,
    RequestCode.QUERY_CONSUME_TIME_SPAN: JavaClass(TopicOfGroupHeader),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: JavaClass(ProducerGroupHeader),
    RequestCode.GET_CONSUME_STATS: JavaClass(ConsumeStatsHeader),
    RequestCode.GET_BROKER_CONSUME_STATS: JavaClass(AllConsumeStatsHeader),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: JavaClass(DeleteGroupHeader),
    RequestCode.GET_ALL_TOPIC_CONFIG: JavaClass(PagedTopicsHeader),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: JavaClass(PagedGroupsHeader),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: JavaClass(ResetOffsetHeader),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: JavaClass(ConsumerStatusHeader),
    RequestCode.GET_CONSUMER_RUNNING_INFO: JavaClass(RunningInfoHeader),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: JavaClass(ConsumeDirectlyHeader),
    RequestCode.CLONE_GROUP_OFFSET: JavaClass(CloneOffsetHeader),
    RequestCode.VIEW_BROKER_STATS_DATA: JavaClass(StatsHeader),
    RequestCode.QUERY_CONSUME_QUEUE: JavaClass(QueryQueueHeader),
    RequestCode.PUT_KV_CONFIG: _KV,
    RequestCode.GET_KV_CONFIG: _KV,
    RequestCode.DELETE_KV_CONFIG: _KV,
    RequestCode.GET_KVLIST_BY_NAMESPACE: JavaClass(NamespaceHeader),
    RequestCode.GET_TOPICS_BY_CLUSTER: JavaClass(ClusterHeader),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _BROKER,
}
