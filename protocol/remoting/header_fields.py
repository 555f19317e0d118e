"""The fields of headers: those of requests, by their codes, and those that name a damaged message.

To add a request's, declare what a node heeds, and name its codes. Those of the admin tools come
first. Other fields may be there and are ignored, as `lo`, `ns`, `nsd`, `bname`, `oway` of 5.x,
`AccessKey`, `Signature`, `SecurityToken`.

A pull's answer names a damaged message by fields that RocketMQ's clients ignore.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from protocol.errors import MessageDamaged
from protocol.remoting.codes import STANDARD_JSON_VERSION
from protocol.remoting.codes import RequestCode as Code
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import INT32_MAX, Int32, JavaClass, java_class

_LETTERS = "abcdefghijklmn"
_FILE, _PLACE, _FOUND, _HINT = "damagedFile", "damagedPlace", "damageFound", "damageHint"
_NEXT = "nextBeginOffset"


class TopicHeader(NamedTuple):
    topic: str


class RouteHeader(NamedTuple):
    """105: a topic, and whether keys that are numbers have to be in quotes."""

    topic: str
    accept_standard_json_only: bool = False


class GroupHeader(NamedTuple):
    """One group, and a topic of it where one counts alone."""

    group: str
    topic: str = ""


class ProducerGroupHeader(NamedTuple):
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
    queue_id: Int32 = -1
    offset: int = -1


class ConsumerStatusHeader(NamedTuple):
    """223, 303: a topic of a group; in 223 the id of one of its clients where it counts alone."""

    topic: str
    group: str
    client_addr: str = ""


class RunningInfoHeader(NamedTuple):
    consumer_group: str
    client_id: str


class ConsumeDirectlyHeader(NamedTuple):
    """309: a client of a group that shall consume the message with this offset id."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""


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
    namespace: str


class ClusterHeader(NamedTuple):
    cluster: str


class BrokerNameHeader(NamedTuple):
    broker_name: str


class RequestModeHeader(NamedTuple):
    """401, a body: how a group gets a topic's messages."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: Int32 = 0


class SendMessageHeader(NamedTuple):
    """A message or a batch, whose body is the frame's. In V2 each name is a letter, from a on.

    `properties` is the text that a record stores (`protocol.record.properties`).
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: int
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    """True: the body is a batch, whatever the request's code is."""
    broker_name: Annotated[str | None, "bname"] = None


class PullMessageHeader(NamedTuple):
    """A pull. `subscription` counts when `sys_flag` says so, else that of the heart-beat."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: int
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str = "TAG"
    max_msg_bytes: Int32 = INT32_MAX
    request_source: Int32 | None = None
    known_at: int | None = None
    """Of our own client alone: a log offset at which it knew the place."""


class QueryConsumerOffsetHeader(NamedTuple):
    """The offset of a group in a queue. Of `set_zero_if_not_found` RocketMQ's clients say nothing,
    which is true, or false."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool = True


class UpdateConsumerOffsetHeader(NamedTuple):
    """The next offset that a group will consume."""

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: int
    known_at: int | None = None
    """As of a pull."""


class SearchOffsetHeader(NamedTuple):
    """The offset of a time, in ms."""

    topic: str
    queue_id: Int32
    timestamp: int
    boundary_type: str = "lower"


class QueueHeader(NamedTuple):
    topic: str
    queue_id: Int32


class QueryMessageHeader(NamedTuple):
    """Messages with a key, stored in [`begin_timestamp`, `end_timestamp`] ms.

    `index_type` is K for keys, U for unique keys, T for tags. `unique_key_query`: the key is a
    unique one.
    """

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: int
    end_timestamp: int
    index_type: str = ""
    unique_key_query: Annotated[bool, "_UNIQUE_KEY_QUERY"] = False


class ViewMessageHeader(NamedTuple):
    offset: int


class UnregisterClientHeader(NamedTuple):
    client_id: Annotated[str, "clientID"]
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerSendMsgBackHeader(NamedTuple):
    """A message that a group wants again, by its physical offset."""

    offset: int
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessageHeader(NamedTuple):
    """A timer message to take back."""

    topic: str
    producer_group: str = ""
    recall_handle: str = ""


class EndTransactionHeader(NamedTuple):
    """The end of a transaction. `commit_or_rollback` is the transaction type of a sysFlag: 8, 12,
    or 0 while the producer does not know."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: Int32
    from_transaction_check: bool = False


class ConsumerGroupHeader(NamedTuple):
    consumer_group: str


class CreateTopicHeader(NamedTuple):
    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str | None = None


_CODES: Mapping[type[Any], tuple[int, ...]] = {
    SendMessageHeader: (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE),
    PullMessageHeader: (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE),
    QueryConsumerOffsetHeader: (Code.QUERY_CONSUMER_OFFSET,),
    UpdateConsumerOffsetHeader: (Code.UPDATE_CONSUMER_OFFSET,),
    SearchOffsetHeader: (Code.SEARCH_OFFSET_BY_TIMESTAMP,),
    QueueHeader: (Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET, Code.GET_EARLIEST_MSG_STORETIME),
    QueryMessageHeader: (Code.QUERY_MESSAGE,),
    ViewMessageHeader: (Code.VIEW_MESSAGE_BY_ID,),
    UnregisterClientHeader: (Code.UNREGISTER_CLIENT,),
    ConsumerSendMsgBackHeader: (Code.CONSUMER_SEND_MSG_BACK,),
    RecallMessageHeader: (Code.RECALL_MESSAGE,),
    EndTransactionHeader: (Code.END_TRANSACTION,),
    ConsumerGroupHeader: (
        *(Code.GET_CONSUMER_LIST_BY_GROUP, Code.NOTIFY_CONSUMER_IDS_CHANGED),
        Code.GET_CONSUMER_CONNECTION_LIST,
    ),
    CreateTopicHeader: (Code.UPDATE_AND_CREATE_TOPIC,),
    TopicHeader: (
        *(Code.GET_TOPIC_CONFIG, Code.GET_TOPIC_STATS_INFO, Code.QUERY_TOPIC_CONSUME_BY_WHO),
        *(Code.DELETE_TOPIC_IN_BROKER, Code.DELETE_TOPIC_IN_NAMESRV),
    ),
    RouteHeader: (Code.GET_ROUTEINFO_BY_TOPIC,),
    GroupHeader: (
        *(Code.QUERY_TOPICS_BY_CONSUMER, Code.QUERY_SUBSCRIPTION_BY_CONSUMER),
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    ),
    ProducerGroupHeader: (Code.GET_PRODUCER_CONNECTION_LIST,),
    ConsumeStatsHeader: (Code.GET_CONSUME_STATS,),
    AllConsumeStatsHeader: (Code.GET_BROKER_CONSUME_STATS,),
    DeleteGroupHeader: (Code.DELETE_SUBSCRIPTIONGROUP,),
    PagedTopicsHeader: (Code.GET_ALL_TOPIC_CONFIG,),
    PagedGroupsHeader: (Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,),
    ResetOffsetHeader: (Code.INVOKE_BROKER_TO_RESET_OFFSET,),
    ConsumerStatusHeader: (
        *(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.QUERY_CONSUME_TIME_SPAN),
    ),
    RunningInfoHeader: (Code.GET_CONSUMER_RUNNING_INFO,),
    ConsumeDirectlyHeader: (Code.CONSUME_MESSAGE_DIRECTLY,),
    CloneOffsetHeader: (Code.CLONE_GROUP_OFFSET,),
    StatsHeader: (Code.VIEW_BROKER_STATS_DATA,),
    QueryQueueHeader: (Code.QUERY_CONSUME_QUEUE,),
    KvHeader: (Code.PUT_KV_CONFIG, Code.GET_KV_CONFIG, Code.DELETE_KV_CONFIG),
    NamespaceHeader: (Code.GET_KVLIST_BY_NAMESPACE,),
    ClusterHeader: (Code.GET_TOPICS_BY_CLUSTER,),
    BrokerNameHeader: (Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER),
}
_SEND_V2 = JavaClass(SendMessageHeader, _LETTERS)
REQUEST_HEADERS: Mapping[int, JavaClass[Any]] = {
    **{code: java_class(row) for row, codes in _CODES.items() for code in codes},
    Code.SEND_MESSAGE_V2: _SEND_V2,
    Code.SEND_BATCH_MESSAGE: _SEND_V2,
    Code.SEND_REPLY_MESSAGE_V2: _SEND_V2,
}
"""34, 41, 42, 46 and 200 have bodies alone."""


def request_fields(header: RemotingHeader) -> Any:
    """Returns the declared fields of a request. Raises BadCommand for the first that is wrong.

    The code of the request has to be one of REQUEST_HEADERS.
    """
    return REQUEST_HEADERS[header.code].read_ext(header.ext)


def wants_standard_json(header: RemotingHeader, accept_standard_json_only: bool) -> bool:
    """Whether a name server puts integer keys into quotes for the sender of a request."""
    return accept_standard_json_only or header.version >= STANDARD_JSON_VERSION


def damage_fields(damage: MessageDamaged) -> dict[str, str]:
    """The fields of a damaged message, with the queue offset where its queue goes on."""
    return {
        _FILE: damage.where,
        _PLACE: str(damage.offset),
        _FOUND: damage.found,
        _HINT: damage.hint,
        _NEXT: str(damage.next_offset),
    }


def named_damage(ext: Mapping[str, str]) -> MessageDamaged | None:
    """The damaged message that an answer names; None for any other answer."""
    place, following = ext.get(_PLACE, ""), ext.get(_NEXT, "")
    if not (place.isascii() and place.isdigit() and following.isascii() and following.isdigit()):
        return None
    return MessageDamaged(
        ext.get(_FILE, ""),
        int(place),
        ext.get(_FOUND, ""),
        ext.get(_HINT, ""),
        int(following) - 1,
        int(following),
    )
