"""Each address that the Dashboard 2.1.0 serves, with arguments that suit both sides, in order.

Names in braces are filled in for each side (`AdminSide.names`, and what earlier replies had). What
changes something comes after what only looks. A page's JSON is compared without what differs
between two runs in any case: times, addresses, ids.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.clients.mqadmin.side_by_side import LOAD_KEYS, masked_text

_TIMES_MS = range(1_600_000_000_000, 2_000_000_000_000)
_RATE = re.compile(r"tps$|^cost(Time)?$|^spentTimeMills$", re.IGNORECASE)
"""Members whose value is how fast something was."""
_FIGURE = re.compile(r",\d+\b")
_STACK = "jstack"
Json = Any
TRACED = "Traced"
"""The topic of the messages with traces, of which each second is among LIVE's dead letters."""
NOTHING: Mapping[str, str] = {}
_TOPIC = {
    "topicName": "Fresh", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": False,
    "clusterNameList": ["{cluster}"], "brokerNameList": [], "messageType": "NORMAL",
}  # fmt: skip
_GROUP = {
    "clusterNameList": ["{cluster}"], "brokerNameList": [],
    "subscriptionGroupConfig": {
        "groupName": "fresh-group", "consumeEnable": True, "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True, "retryQueueNums": 2, "retryMaxTimes": 5, "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
    },
}  # fmt: skip
_DEAD = {
    "topicName": "%DLQ%{live}", "consumerGroup": "{live}", "msgId": "{dead_id}",
    "clientId": "{client_id}",
}  # fmt: skip
_USER = {"username": "joe", "password": "secret12", "userStatus": "enable", "userType": "Normal"}
_POLICY = {
    "clusterName": "{cluster}", "brokerName": "{name}", "subject": "User:joe",
    "policies": [{"policyType": "Custom", "entries": [{
        "resource": ["Topic:{topic}"], "actions": ["Pub"], "sourceIps": [], "decision": "Allow",
    }]}],
}  # fmt: skip


class PageCase(NamedTuple):
    """One request of a page to the Dashboard. `query` goes into the address, `body` is JSON."""

    method: str
    path: str
    query: Mapping[str, str] = NOTHING
    body: Json = None
    keeps: Mapping[str, str] = NOTHING
    """Names for later cases, each with its place in the answer."""
    after_s: float = 0.0
    """The pause before it: a Java consumer commits each 5 s."""
    is_own: bool = False
    """Whether the Dashboard replies by itself, without a broker."""
    is_chart: bool = False
    """It has points a minute after the start, and then one for each minute."""
    has_loads: bool = False
    """Whether it shows what a process does and has done: their names count."""

    @property
    def subject(self) -> str:
        """What the table is about."""
        return self.path

    @property
    def label(self) -> str:
        """Its address, and what it sends."""
        query = "&".join(f"{name}={value}" for name, value in self.query.items())
        place = f"{self.path}?{query}" if query else self.path
        return place if self.body is None else f"{place} {json.dumps(self.body)}"


def _get(path: str, **query: str) -> PageCase:
    return PageCase("GET", path, query)


def _post(path: str, body: Json = None, **query: str) -> PageCase:
    return PageCase("POST", path, query, body)


def _reset(group: str, time_ms: str, *, force: bool) -> Json:
    return {
        "consumerGroupList": [group], "topic": "{topic}", "resetTime": time_ms, "force": force,
    }  # fmt: skip


def _page(topic: str, number: int, task: str, size: int = 20) -> Json:
    return {
        "topic": topic, "begin": "{begin_ms}", "end": "{end_ms}", "pageNum": number,
        "pageSize": size, "taskId": task,
    }  # fmt: skip


def _sent(topic: str, key: str, *, traced: bool = False) -> Json:
    return {
        "topic": topic, "tag": "tagA", "key": key, "messageBody": f"hello {key}",
        "traceEnabled": traced,
    }  # fmt: skip


def _fresh(name: str, message_type: str) -> PageCase:
    changed = {**_TOPIC, "topicName": name, "messageType": message_type}
    return _post("/topic/createOrUpdate.do", changed)


_CLUSTER = (
    _get("/cluster/list.query")._replace(has_loads=True),
    _get("/cluster/brokerConfig.query", brokerAddr="{broker}"),
    _get("/rocketmq/nsaddr.query")._replace(is_own=True),
    _get("/ops/homePage.query")._replace(is_own=True),
    _get("/ops/rocketMqStatus.query"),
    _get("/proxy/homePage.query")._replace(is_own=True),
    _get("/login/check.query")._replace(is_own=True),
)
_TOPICS = (
    _get("/topic/list.query", skipSysProcess="false", skipRetryAndDlq="false"),
    _get("/topic/list.query", skipSysProcess="true", skipRetryAndDlq="true"),
    _get("/topic/list.queryTopicType"),
    _get("/topic/stats.query", topic="{topic}"),
    _get("/topic/stats.query", topic="nosuch"),
    _get("/topic/route.query", topic="{topic}"),
    _get("/topic/route.query", topic="nosuch"),
    _get("/topic/examineTopicConfig.query", topic="{topic}"),
    _get("/topic/queryConsumerByTopic.query", topic="{topic}"),
    _get("/topic/queryTopicConsumerInfo.query", topic="{topic}"),
)
_GROUPS = (
    _get("/consumer/groupList.query", skipSysGroup="false"),
    _get("/consumer/group.refresh", consumerGroup="{live}"),
    _get("/consumer/group.refresh.all"),
    _get("/consumer/group.query", consumerGroup="{live}"),
    _get("/consumer/group.query", consumerGroup="{group}"),
    _get("/consumer/examineSubscriptionGroupConfig.query", consumerGroup="{live}"),
    _get("/consumer/fetchBrokerNameList.query", consumerGroup="{live}"),
    _get("/consumer/queryTopicByConsumer.query", consumerGroup="{live}", address="{broker}"),
    _get("/consumer/queryTopicByConsumer.query", consumerGroup="{group}", address="{broker}"),
    _get("/consumer/consumerConnection.query", consumerGroup="{live}", address="{broker}"),
    _get("/consumer/consumerConnection.query", consumerGroup="{group}", address="{broker}"),
    _get(
        "/consumer/consumerRunningInfo.query",
        consumerGroup="{live}", clientId="{client_id}", jstack="false",
    ),
    _get(
        "/consumer/consumerRunningInfo.query",
        consumerGroup="{live}", clientId="{client_id}", jstack="true",
    ),
    _get("/producer/producerConnection.query", producerGroup="{producers}", topic="{side_topic}"),
    _get("/producer/producerConnection.query", producerGroup="nosuch", topic="{side_topic}"),
)  # fmt: skip
_MESSAGES = (
    _get("/message/viewMessage.query", topic="{topic}", msgId="{unique_key}"),
    _get("/message/viewMessage.query", topic="{topic}", msgId="{offset_id}"),
    _get("/message/viewMessage.query", topic="{topic}", msgId="nosuch"),
    _get("/message/queryMessageByTopicAndKey.query", topic="{topic}", key="key-7"),
    _get("/message/queryMessageByTopicAndKey.query", topic="{topic}", key="nosuch"),
    _get(
        "/message/queryMessageByTopic.query", topic="{topic}", begin="{begin_ms}", end="{end_ms}"
    ),
    _post("/message/queryMessagePageByTopic.query", _page("{topic}", 1, ""))._replace(
        keeps={"task": "data.taskId"}
    ),
    _post("/message/queryMessagePageByTopic.query", _page("{topic}", 2, "{task}")),
    _post("/message/queryMessagePageByTopic.query", _page("nosuch", 1, "")),
    _post(
        "/message/consumeMessageDirectly.do",
        topic="{topic}", consumerGroup="{live}", msgId="{unique_key}", clientId="{client_id}",
    ),
    _post(
        "/message/consumeMessageDirectly.do",
        topic="{topic}", consumerGroup="{live}", msgId="{unique_key}",
    ),
    _get("/messageTrace/viewMessage.query", topic=TRACED, msgId="{traced_id}"),
    _get("/messageTrace/viewMessageTraceDetail.query", msgId="{traced_id}"),
    _get("/messageTrace/viewMessageTraceGraph.query", msgId="{traced_id}"),
    _get("/messageTrace/viewMessageTraceGraph.query", msgId="{dead_id}"),
    _get(
        "/messageTrace/viewMessageTraceGraph.query",
        msgId="{traced_id}", traceTopic="RMQ_SYS_TRACE_TOPIC",
    ),
    _post("/dlqMessage/queryDlqMessageByConsumerGroup.query", _page("%DLQ%{live}", 1, "")),
    _post("/dlqMessage/queryDlqMessageByConsumerGroup.query", _page("%DLQ%{group}", 1, "")),
    _get("/dlqMessage/exportDlqMessage.do", consumerGroup="{live}", msgId="{dead_id}"),
    _post("/dlqMessage/batchExportDlqMessage.do", [_DEAD]),
    _post("/dlqMessage/batchResendDlqMessage.do", [_DEAD]),
)  # fmt: skip
_CHANGES = (
    _fresh("Fresh", "NORMAL"),
    _fresh("FreshOrdered", "FIFO"),
    _fresh("FreshTransactions", "TRANSACTION"),
    _fresh("FreshDelayed", "DELAY"),
    _get("/topic/examineTopicConfig.query", topic="Fresh"),
    _get("/topic/examineTopicConfig.query", topic="FreshTransactions"),
    _get("/topic/list.queryTopicType"),
    _post("/topic/sendTopicMessage.do", _sent("Fresh", "one", traced=True))._replace(
        keeps={"sent_id": "data.msgId"}
    ),
    _post("/topic/sendTopicMessage.do", _sent("FreshTransactions", "two")),
    _get("/messageTrace/viewMessageTraceGraph.query", msgId="{sent_id}")._replace(after_s=2.0),
    _get("/message/viewMessage.query", topic="Fresh", msgId="{sent_id}"),
    _get("/topic/stats.query", topic="FreshTransactions"),
    _post("/topic/createOrUpdate.do", {**_TOPIC, "readQueueNums": 5, "perm": 4}),
    _get("/topic/examineTopicConfig.query", topic="Fresh"),
    _get("/topic/route.query", topic="Fresh"),
    _post("/topic/deleteTopicByBroker.do", brokerName="{name}", topic="FreshDelayed"),
    _post("/topic/deleteTopic.do", clusterName="{cluster}", topic="FreshOrdered"),
    _post("/topic/deleteTopic.do", topic="Fresh"),
    _post("/topic/deleteTopic.do", topic="TBW102"),
    _get("/topic/route.query", topic="Fresh"),
    _post("/consumer/createOrUpdate.do", _GROUP),
    _get("/consumer/examineSubscriptionGroupConfig.query", consumerGroup="fresh-group"),
    _get("/consumer/fetchBrokerNameList.query", consumerGroup="fresh-group"),
    _post(
        "/consumer/deleteSubGroup.do", {"groupName": "fresh-group", "brokerNameList": ["{name}"]}
    ),
    _get("/consumer/examineSubscriptionGroupConfig.query", consumerGroup="fresh-group"),
    _post("/consumer/resetOffset.do", _reset("{group}", "{begin_ms}", force=True)),
    _get("/consumer/queryTopicByConsumer.query", consumerGroup="{group}", address="{broker}"),
    _post("/consumer/skipAccumulate.do", _reset("{group}", "-1", force=True)),
    _get("/consumer/queryTopicByConsumer.query", consumerGroup="{group}", address="{broker}"),
    _post("/consumer/resetOffset.do", _reset("{live}", "{begin_ms}", force=True)),
    _post("/consumer/resetOffset.do", _reset("nosuch", "{begin_ms}", force=True)),
    _get(
        "/consumer/queryTopicByConsumer.query", consumerGroup="{live}", address="{broker}"
    )._replace(after_s=40.0),
)
_CHARTS = (
    _get("/dashboard/broker.query", date="{day}")._replace(is_chart=True),
    _get("/dashboard/topic.query", date="{day}", topicName="{topic}")._replace(is_chart=True),
    _get("/dashboard/topic.query", date="{day}")._replace(is_chart=True),
    _get("/dashboard/topicCurrent.query")._replace(is_chart=True),
)
_ACCESS = (
    _get("/acl/users.query", brokerName="{name}", clusterName="{cluster}"),
    _get("/acl/acls.query", brokerName="{name}", clusterName="{cluster}"),
    _post(
        "/acl/createUser.do",
        {"clusterName": "{cluster}", "brokerName": "{name}", "userInfo": _USER},
    ),
    _post(
        "/acl/updateUser.do",
        {"clusterName": "{cluster}", "brokerName": "{name}", "userInfo": _USER},
    ),
    _post("/acl/createAcl.do", _POLICY),
    _post("/acl/updateAcl.do", _POLICY),
    PageCase("DELETE", "/acl/deleteAcl.do", {"brokerName": "{name}", "subject": "User:joe"}),
    PageCase("DELETE", "/acl/deleteUser.do", {"brokerName": "{name}", "username": "joe"}),
)
_OWN = tuple(case._replace(is_own=True) for case in (
    _post(
        "/monitor/createOrUpdateConsumerMonitor.do",
        consumeGroupName="{live}", minCount="1", maxDiffTotal="100",
    ),
    _get("/monitor/consumerMonitorConfig.query"),
    _get("/monitor/consumerMonitorConfigByGroupName.query", consumeGroupName="{live}"),
    _post("/monitor/deleteConsumerMonitor.do", consumeGroupName="{live}"),
    _post("/login/login.do", {"username": "nobody", "password": "none"}),
    _post("/login/logout.do"),
    _post("/proxy/addProxyAddr.do", newProxyAddr="127.0.0.1:1"),
    _post("/proxy/updateProxyAddr.do", proxyAddr="127.0.0.1:1"),
    _post("/ops/updateUseTLS.do", useTLS="false"),
    _post("/ops/addNameSvrAddr.do", newNamesrvAddr="{name_server}"),
    _post("/ops/updateNameSvrAddr.do", nameSvrAddrList="{name_server}"),
    _post("/ops/updateIsVIPChannel.do", useVIPChannel="true"),
))  # fmt: skip
_LAST = (
    # By the port of old clients, two below the broker's.
    _get("/topic/stats.query", topic="{topic}"),
    # It sends to TestTopic from then on.
    _get("/test/runTask.do"),
    _get("/topic/examineTopicConfig.query", topic="TestTopic")._replace(after_s=5.0),
)
CASES = (*_CLUSTER, *_TOPICS, *_GROUPS, *_MESSAGES, *_CHARTS, *_CHANGES, *_ACCESS, *_OWN, *_LAST)


def masked(value: Json, name: str = "", *, loads: bool = False) -> Json:
    """`name` is the member's. `loads`: members that LOAD_KEYS has count by their names alone.

    The order of lists does not count: many are sets in Java.
    """
    if loads and isinstance(value, str | int | float) and LOAD_KEYS.match(name):
        return "<load>"
    match value:
        case dict():
            return {
                masked_text(key): masked(one, key, loads=loads)
                for key, one in sorted(value.items())
            }
        case list():
            return sorted((masked(one, name, loads=loads) for one in value), key=json.dumps)
        case bool() | None:
            return value
        case float():
            return "<decimal>"
        case int():
            return "<n>" if _RATE.search(name) or value in _TIMES_MS else value
        case str() if name == _STACK and value:
            return "<stack>"
        case str():
            return masked_text(value)
    raise TypeError(type(value))


def drawn(value: Json) -> Json:
    """A masked chart as what is drawn: its figures are of the last minute, which the two sides look
    at in different moments, and points that look the same count once."""
    match value:
        case dict():
            return {name: drawn(one) for name, one in value.items()}
        case list():
            return sorted({_FIGURE.sub(",<n>", point) for point in value})
    return value


def lines(value: Json, place: str = "") -> Iterator[str]:
    """One line for each plain value: where it is, and what."""
    match value:
        case dict() if value:
            for name, one in value.items():
                yield from lines(one, f"{place}.{name}" if place else name)
        case list() if value:
            for number, one in enumerate(value):
                yield from lines(one, f"{place}[{number}]")
        case _:
            yield f"{place} = {value}"
