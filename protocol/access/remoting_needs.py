"""What each request of RocketMQ's clients and tools needs, by its code.

Where RocketMQ's DefaultAuthorizationContextBuilder has a rule, its actions are the ones that count
here. A code that is not here is for Super users alone: to serve one more, add what it needs to
`_OF_CLIENTS` or `_OF_TOOLS`, or the code to SUPER_ALONE.

Some requests name a record, and only the record says of which topic it is. Their handlers ask
`record_needs` when they have found it, before anything is answered, sent or stored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from protocol.access.decision import Action, Kind, Need
from protocol.access.needs import (
    ANYBODY,
    SUPER,
    Needs,
    Super,
    joined,
    need,
    needs_of_topics,
    refuse_unclear,
    topic_needs,
)
from protocol.errors import NotAllowed
from protocol.remoting import bodies
from protocol.remoting.codes import BadCommand
from protocol.remoting.codes import RequestCode as Code
from protocol.remoting.controller import ControllerCode
from protocol.remoting.header_fields import REQUEST_HEADERS, request_fields
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import read_body

CREDENTIALS = frozenset({"AccessKey", "Signature", "SecurityToken", "OnsChannel"})
"""Fields that prove who asks. They are for this node alone."""
NEEDS_MAX = 4_096
"""Of one request: each is looked up in the list of its user."""
DEFAULT_TOPIC = "TBW102"
"""Producers look at its route before they send to a topic that is not there yet."""
USER_PREFIX = "User:"
_SUB, _GET, _PUB, _UPDATE = Action.SUB, Action.GET, Action.PUB, Action.UPDATE
_GET_USER, _GET_ACL = 3004, 3009


class RequestParts(NamedTuple):
    """A request: its declared fields (None where its code declares none), all fields, its body."""

    fields: Any
    ext: Mapping[str, str]
    body: bytes | bytearray | memoryview
    cluster: str
    """The name of the node's cluster."""


Rule = Callable[[RequestParts], Needs]


def remoting_needs(
    header: RemotingHeader, body: bytes | bytearray | memoryview, cluster: str
) -> Needs:
    """What a request needs, as far as it says so by itself. `cluster`: the name of the node's own.

    Raises NotAllowed for a mandatory field or a body that is missing, or not as declared, and for
    more than NEEDS_MAX needs.
    """
    rule = NEEDS.get(header.code)
    if rule is None:
        return SUPER
    try:
        fields = request_fields(header) if header.code in REQUEST_HEADERS else None
        found = rule(RequestParts(fields, header.ext, body, cluster))
    except BadCommand as error:
        refuse_unclear(error.reason)
    if len(found) > NEEDS_MAX:
        raise NotAllowed(
            f"a request for {len(found)} topics and groups, {NEEDS_MAX} are allowed",
            "send several requests",
        )
    return found


def record_needs(code: int, topic: str) -> Needs:
    """What a request needs of the topic of a record, or of one more topic, that its handler found.

    `topic`: see `topic_that_counts`. A code of which that is not decided needs Super.
    """
    actions = RECORD_ACTIONS.get(code)
    return SUPER if actions is None else topic_needs(topic, *actions)


def group_settings_need(group: str, *, is_new: bool) -> Need:
    """What 200 and 225 need of each group, when it is known whether it has settings already."""
    return need(Kind.GROUP, group, Action.CREATE if is_new else Action.UPDATE)


def without_credentials(ext: Mapping[str, str]) -> dict[str, str]:
    """The fields of a request that may be passed on to somebody else."""
    return {name: value for name, value in ext.items() if name not in CREDENTIALS}


def is_administrative(code: int) -> bool:
    """Whether a code is sent by tools and brokers. Their fields are known; producers and consumers
    of other languages send some of their own."""
    return code not in _OF_CLIENTS


def unknown_fields(code: int, ext: Mapping[str, str]) -> list[str]:
    """The fields of an administrative request that nobody sends with this code, by name.

    Such a request is refused: what a tool has not been written to send, nobody should sign.
    """
    if not is_administrative(code):
        return []
    declared = REQUEST_HEADERS.get(code)
    known = {field.name for field in declared.fields} if declared is not None else set()
    return sorted(ext.keys() - known - _WITH_ANY_CODE - _ALSO_SENT.get(code, _NONE))


# Rules


def _anybody(_: RequestParts) -> Needs:
    return ANYBODY


def _cluster(action: Action) -> Rule:
    return lambda asked: (need(Kind.CLUSTER, asked.cluster, action),)


def _topic(*actions: Action) -> Rule:
    return lambda asked: topic_needs(asked.fields.topic, *actions)


def _group(attribute: str, *actions: Action) -> Rule:
    return lambda asked: (need(Kind.GROUP, getattr(asked.fields, attribute), *actions),)


def _both(attribute: str, *actions: Action) -> Rule:
    """Of topic and group. A retry topic is of its own group, whichever group asks."""
    of_topic, of_group = _topic(*actions), _group(attribute, *actions)
    return lambda asked: joined(of_topic(asked), of_group(asked))


def _topic_if_named(topic: str, *actions: Action) -> Needs:
    return topic_needs(topic, *actions) if topic.strip() else ANYBODY


def _group_if_named(group: str | None, *actions: Action) -> Needs:
    return (need(Kind.GROUP, group, *actions),) if group and group.strip() else ANYBODY


def _route(asked: RequestParts) -> Needs:
    topic = asked.fields.topic
    return ANYBODY if topic == DEFAULT_TOPIC else topic_needs(topic, _PUB, _SUB, _GET)


def _beat(asked: RequestParts) -> Needs:
    """34: a heart-beat is refused as a whole. Of producers it says nothing that gives a right.
    Nobody joins a group without a name."""
    beat = read_body(bodies.HeartbeatData, asked.body)
    joins = [one for one in beat.consumer_data_set if one.group_name]
    groups = (need(Kind.GROUP, one.group_name, _SUB) for one in joins)
    topics = (each.topic for one in joins for each in one.subscription_data_set)
    return joined(tuple(groups), needs_of_topics(topics, _SUB))


def _check_client(asked: RequestParts) -> Needs:
    wanted = read_body(bodies.CheckClientBody, asked.body)
    group = need(Kind.GROUP, wanted.group, _SUB)
    return joined((group,), topic_needs(wanted.subscription_data.topic, _SUB))


def _locks(asked: RequestParts) -> Needs:
    wanted = read_body(bodies.LockBatchBody, asked.body)
    topics = needs_of_topics((queue.topic for queue in wanted.mq_set), _SUB)
    return joined((need(Kind.GROUP, wanted.consumer_group, _SUB),), topics)


def _new_topics(asked: RequestParts) -> Needs:
    configs = read_body(bodies.TopicConfigs, asked.body).topic_config_list
    return needs_of_topics((config.topic_name for config in configs), Action.CREATE)


def _settings_of(groups: Iterable[bodies.SubscriptionGroupConfig]) -> Needs:
    """Whether a group is new its handler finds out: `group_settings_need`."""
    actions = Action.CREATE, _UPDATE
    return joined(tuple(need(Kind.GROUP, one.group_name, *actions) for one in groups))


def _group_settings(asked: RequestParts) -> Needs:
    return _settings_of((read_body(bodies.SubscriptionGroupConfig, asked.body),))


def _groups_settings(asked: RequestParts) -> Needs:
    return _settings_of(read_body(bodies.GroupConfigs, asked.body).group_config_list)


def _consume_stats(asked: RequestParts) -> Needs:
    topics = [asked.fields.topic, *asked.fields.topic_list.split(";")]
    named = (_topic_if_named(topic, _GET) for topic in topics)
    return joined((need(Kind.GROUP, asked.fields.consumer_group, _GET),), *named)


def _clone(asked: RequestParts) -> Needs:
    """314. Without a topic the handler asks `record_needs` of each that the group reads."""
    source, to, topic, _ = asked.fields
    groups = need(Kind.GROUP, source, _GET), need(Kind.GROUP, to, _UPDATE)
    return joined(groups, _topic_if_named(topic, _UPDATE))


def _units(asked: RequestParts) -> Needs:
    of_group = _group_if_named(asked.fields.consumer_group, _GET)
    return joined(topic_needs(asked.fields.topic, _GET), of_group)


def _subscription(asked: RequestParts) -> Needs:
    of_topic = _topic_if_named(asked.fields.topic, _GET)
    return joined((need(Kind.GROUP, asked.fields.group, _GET),), of_topic)


def _of_oneself(name: str, prefix: str = "") -> Rule:
    """A user may look at what is known of itself. `name`: the field that names the user."""

    def rule(asked: RequestParts) -> Needs:
        text = asked.ext.get(name)
        if not text:
            raise BadCommand(f"field {name} is missing")
        user = text.removeprefix(prefix)
        return (Super(user if text == prefix + user else ""),)

    return rule


_MANAGE, _LOOK = _cluster(_UPDATE), _cluster(_GET)
_SEND, _READ = _topic(_PUB), _both("consumer_group", _SUB)
_QUEUE = _topic(_SUB, _GET)
_OF_CLIENTS: Mapping[int, Rule] = {
    Code.SEND_MESSAGE: _SEND,
    Code.SEND_MESSAGE_V2: _SEND,
    Code.SEND_BATCH_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE: _SEND,
    Code.SEND_REPLY_MESSAGE_V2: _SEND,
    Code.RECALL_MESSAGE: _SEND,
    Code.PULL_MESSAGE: _READ,
    Code.LITE_PULL_MESSAGE: _READ,
    Code.QUERY_MESSAGE: _QUEUE,
    Code.VIEW_MESSAGE_BY_ID: _anybody,  # its record's topic counts
    Code.QUERY_CONSUMER_OFFSET: _both("consumer_group", _SUB, _GET),
    Code.UPDATE_CONSUMER_OFFSET: _both("consumer_group", _SUB, _UPDATE),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _QUEUE,
    Code.GET_MAX_OFFSET: _QUEUE,
    Code.GET_MIN_OFFSET: _QUEUE,
    Code.GET_EARLIEST_MSG_STORETIME: _QUEUE,
    Code.HEART_BEAT: _beat,
    Code.UNREGISTER_CLIENT: lambda asked: _group_if_named(asked.fields.consumer_group, _SUB),
    Code.CONSUMER_SEND_MSG_BACK: _group("group", _SUB),
    Code.END_TRANSACTION: _anybody,  # its half message's topic counts
    Code.GET_CONSUMER_LIST_BY_GROUP: _group("consumer_group", _SUB, _GET),
    Code.CHECK_CLIENT_CONFIG: _check_client,
    Code.LOCK_BATCH_MQ: _locks,
    Code.UNLOCK_BATCH_MQ: _locks,
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
}
_OF_TOOLS: Mapping[int, Rule] = {
    # Topics
    Code.UPDATE_AND_CREATE_TOPIC: _topic(Action.CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _new_topics,
    Code.DELETE_TOPIC_IN_BROKER: _topic(Action.DELETE),
    Code.GET_TOPIC_STATS_INFO: _topic(_GET),
    Code.GET_TOPIC_CONFIG: _topic(_GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _topic(_GET),
    Code.QUERY_CONSUME_TIME_SPAN: _both("group", _GET),
    Code.QUERY_CONSUME_QUEUE: _units,
    # Groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group_settings,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups_settings,
    Code.DELETE_SUBSCRIPTIONGROUP: _group("group_name", Action.DELETE),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _group("group", _GET),
    Code.GET_CONSUMER_CONNECTION_LIST: _group("consumer_group", _GET),
    Code.GET_CONSUMER_RUNNING_INFO: _group("consumer_group", _GET),
    Code.CONSUME_MESSAGE_DIRECTLY: _group("consumer_group", _SUB),
    Code.GET_CONSUME_STATS: _consume_stats,
    Code.QUERY_TOPICS_BY_CONSUMER: _group("group", _GET),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _subscription,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _both("group", _UPDATE),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both("group", _GET),
    Code.CLONE_GROUP_OFFSET: _clone,
    # The node, and what slaves copy
    **dict.fromkeys(
        (
            *(Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO, Code.VIEW_BROKER_STATS_DATA),
            *(Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_ALL_PRODUCER_INFO),
            *(Code.GET_BROKER_CONSUME_STATS, Code.GET_ALL_MESSAGE_REQUEST_MODE),
            *(Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            *(Code.GET_ALL_CONSUMER_OFFSET, Code.GET_ALL_DELAY_OFFSET),
            *(Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS),
            *(Code.EXCHANGE_BROKER_HA_INFO, Code.GET_BROKER_HA_STATUS),
            *(ControllerCode.GET_BROKER_EPOCH_CACHE, Code.GET_KV_CONFIG),
            Code.GET_KVLIST_BY_NAMESPACE,
        ),
        _LOOK,
    ),
    **dict.fromkeys(
        (
            *(Code.PUT_KV_CONFIG, Code.DELETE_KV_CONFIG, Code.DELETE_TOPIC_IN_NAMESRV),
            *(Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER),
        ),
        _MANAGE,
    ),
    # Lists, cut to what the user may see
    **dict.fromkeys(
        (
            *(Code.GET_BROKER_CLUSTER_INFO, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            *(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
            *(Code.GET_UNIT_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_TOPIC_LIST),
            *(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Code.GET_TOPICS_BY_CLUSTER),
        ),
        _anybody,
    ),
    # Users
    _GET_USER: _of_oneself("username"),
    _GET_ACL: _of_oneself("subject", USER_PREFIX),
}
NEEDS: Mapping[int, Rule] = {**_OF_CLIENTS, **_OF_TOOLS}
RECORD_ACTIONS: Mapping[int, tuple[Action, ...]] = {
    Code.QUERY_MESSAGE: (_SUB, _GET),
    Code.VIEW_MESSAGE_BY_ID: (_SUB, _GET),
    Code.CONSUMER_SEND_MSG_BACK: (_SUB,),
    Code.END_TRANSACTION: (_PUB,),
    Code.CONSUME_MESSAGE_DIRECTLY: (_SUB,),
    Code.CLONE_GROUP_OFFSET: (_UPDATE,),
}
"""By code: what its handler asks for when it knows the topic."""
LISTS_OF_TOPICS = frozenset(
    {
        *(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Code.GET_TOPICS_BY_CLUSTER),
        *(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_UNIT_TOPIC_LIST),
        *(Code.GET_HAS_UNIT_SUB_TOPIC_LIST, Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    }
)
"""Anybody may ask; the answer names topics that the user may see (`sight_need`), and no other."""
SUPER_ALONE = frozenset(
    {
        Code.UPDATE_BROKER_CONFIG,
        *(Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.POP_ROLLBACK),
        *(Code.SET_MESSAGE_REQUEST_MODE, Code.RESET_MASTER_FLUSH_OFFSET),
        ControllerCode.NOTIFY_BROKER_ROLE_CHANGED,
        *(set(range(Code.AUTH_CREATE_USER, Code.AUTH_LIST_ACL + 1)) - {_GET_USER, _GET_ACL}),
    }
)
"""Codes of which it was decided that no list gives a right to them."""
_NONE: frozenset[str] = frozenset()
_WITH_ANY_CODE = CREDENTIALS | {
    *("lo", "ns", "nsd", "bname", "oway"),  # RpcRequestHeader, TopicRequestHeader
    *("ReqT", "__ZONE_NAME", "__ZONE_MODE"),  # StreamTypeRPCHook, DynamicalExtFieldRPCHook
}
_ROLE = "masterAddress masterEpoch syncStateSetEpoch masterBrokerId"
_ALSO_SENT: Mapping[int, frozenset[str]] = {
    code: frozenset(names.split())
    for code, names in {
        Code.UPDATE_AND_CREATE_TOPIC: "force",
        Code.GET_ALL_TOPIC_CONFIG: "dataVersion",
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "dataVersion",
        Code.DELETE_TOPIC_IN_NAMESRV: "clusterName",
        Code.INVOKE_BROKER_TO_RESET_OFFSET: "isForce",
        Code.GET_CONSUMER_RUNNING_INFO: "jstackEnable",
        Code.CONSUME_MESSAGE_DIRECTLY: "brokerName topic topicSysFlag groupSysFlag",
        Code.EXCHANGE_BROKER_HA_INFO: "masterHaAddress masterFlushOffset masterAddress",
        Code.RESET_MASTER_FLUSH_OFFSET: "masterFlushOffset",
        ControllerCode.NOTIFY_BROKER_ROLE_CHANGED: _ROLE,
        **dict.fromkeys((3001, 3002, 3003, _GET_USER), "username"),
        3005: "filter publicKeys",
        **dict.fromkeys((3006, 3007, _GET_ACL), "subject"),
        3008: "subject policyType resource",
        Code.AUTH_LIST_ACL: "subjectFilter resourceFilter",
    }.items()
}
"""Fields that RocketMQ's tools and brokers send, and a node does not heed."""
