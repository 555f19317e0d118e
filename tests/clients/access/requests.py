"""Requests of clients and tools, as they are sent to both sides: what each of them needs is asked.

Each is about TOPIC and GROUP, and complete: its handler would take it. `missing` is a field
without which RocketMQ cannot say what a request needs; without a name nothing is mandatory.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from protocol.remoting.codes import RequestCode as Code
from tests.clients.sides import BROKER, CLUSTER
from tests.support.remoting import pull_fields, send_fields

TOPIC, GROUP, OTHER_GROUP = "asked", "askers", "others"
REPLIES = f"{CLUSTER}_REPLY_TOPIC"
BODY = "the body"
"""In the place of a field: the body is what is missing."""
_MESSAGE_ID = "7F00000100002A9F0000000000000000"


class AskedRequest(NamedTuple):
    """One request."""

    name: str
    code: int
    ext: Mapping[str, object] = MappingProxyType({})
    body: bytes = b""
    missing: str = ""

    def incomplete(self) -> "AskedRequest":
        """The same without what must be there."""
        if self.missing == BODY:
            return self._replace(body=b"")
        left = {name: value for name, value in self.ext.items() if name != self.missing}
        return self._replace(ext=left)


def _body(told: Any) -> bytes:
    return json.dumps(told).encode()


def _long_fields(topic: str) -> dict[str, object]:
    """The fields of 10, by their names."""
    return {
        "producerGroup": "producers", "topic": topic, "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0, "bornTimestamp": 1_700_000_000_000,
        "flag": 0, "properties": "", "reconsumeTimes": 0, "unitMode": False, "batch": False,
    }  # fmt: skip


def _beat(group: str, topic: str) -> dict[str, object]:
    wanted = {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [wanted],
        "unitMode": False,
    }  # fmt: skip
    return {"clientID": "asker", "producerDataSet": [], "consumerDataSet": [consumer]}


_QUEUE = {"topic": TOPIC, "queueId": 0}
_TOPIC_ALONE = {"topic": TOPIC}
_OF_GROUP = {"consumerGroup": GROUP}
_NEW_TOPIC = {
    "topic": "made", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
}  # fmt: skip
_TOPIC_CONFIG = {"topicName": "made-too", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
_LOCKS = _body(
    {
        "consumerGroup": GROUP, "clientId": "asker",
        "mqSet": [{"topic": TOPIC, "brokerName": BROKER, "queueId": 0}],
    }
)  # fmt: skip
_USER = {"username": "somebody"}
_SUBJECT = {"subject": "User:somebody"}
_LIST = _body({"subject": "User:somebody", "policies": []})
OF_CLIENTS = (
    AskedRequest("a send", Code.SEND_MESSAGE_V2, send_fields(TOPIC), b"hello", "b"),
    AskedRequest("a send, old", Code.SEND_MESSAGE, _long_fields(TOPIC), b"hello", "topic"),
    AskedRequest("a batch", Code.SEND_BATCH_MESSAGE, send_fields(TOPIC, m=True), b"", "b"),
    AskedRequest(
        "a send to a retry topic", Code.SEND_MESSAGE_V2, send_fields(f"%RETRY%{GROUP}"), b"hello"
    ),
    AskedRequest("a reply", Code.SEND_REPLY_MESSAGE_V2, send_fields(REPLIES), b"hello", "b"),
    AskedRequest(
        "a recall", Code.RECALL_MESSAGE,
        {"producerGroup": "producers", "topic": TOPIC, "recallHandle": "none"}, b"", "topic",
    ),
    AskedRequest(
        "a pull", Code.PULL_MESSAGE, pull_fields(TOPIC, 0, 0, consumerGroup=GROUP), b"", "topic"
    ),
    AskedRequest(
        "a pull of a retry topic", Code.PULL_MESSAGE,
        pull_fields(f"%RETRY%{GROUP}", 0, 0, consumerGroup=GROUP), b"", "consumerGroup",
    ),
    AskedRequest(
        "a pull of another group's retry topic", Code.PULL_MESSAGE,
        pull_fields(f"%RETRY%{OTHER_GROUP}", 0, 0, consumerGroup=GROUP),
    ),
    AskedRequest(
        "a lite pull", Code.LITE_PULL_MESSAGE, pull_fields(TOPIC, 0, 0, consumerGroup=GROUP)
    ),
    AskedRequest(
        "a look-up by key", Code.QUERY_MESSAGE,
        {**_TOPIC_ALONE, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 42},
        b"", "topic",
    ),
    AskedRequest("an offset", Code.QUERY_CONSUMER_OFFSET, {**_QUEUE, **_OF_GROUP}, b"", "topic"),
    AskedRequest(
        "a commit", Code.UPDATE_CONSUMER_OFFSET, {**_QUEUE, **_OF_GROUP, "commitOffset": 0},
        b"", "topic",
    ),
    AskedRequest("the end of a queue", Code.GET_MAX_OFFSET, _QUEUE, b"", "topic"),
    AskedRequest("the start of a queue", Code.GET_MIN_OFFSET, _QUEUE, b"", "topic"),
    AskedRequest("a queue's first time", Code.GET_EARLIEST_MSG_STORETIME, _QUEUE, b"", "topic"),
    AskedRequest(
        "an offset by time", Code.SEARCH_OFFSET_BY_TIMESTAMP, {**_QUEUE, "timestamp": 0},
        b"", "topic",
    ),
    AskedRequest("a heart-beat", Code.HEART_BEAT, {}, _body(_beat(GROUP, TOPIC)), BODY),
    AskedRequest(
        "a client's end", Code.UNREGISTER_CLIENT, {"clientID": "asker", **_OF_GROUP}, b"",
        "clientID",
    ),
    AskedRequest("members", Code.GET_CONSUMER_LIST_BY_GROUP, _OF_GROUP, b"", "consumerGroup"),
    AskedRequest(
        "a client's subscription", Code.CHECK_CLIENT_CONFIG, {},
        _body({
            "clientId": "asker", "group": GROUP,
            "subscriptionData": {"topic": TOPIC, "subString": "a > 1", "expressionType": "SQL92"},
        }),
    ),
    AskedRequest(
        "handing back", Code.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": GROUP, "delayLevel": 1}, b"", "group",
    ),
    AskedRequest("locks of queues", Code.LOCK_BATCH_MQ, {}, _LOCKS, BODY),
    AskedRequest("the end of locks", Code.UNLOCK_BATCH_MQ, {}, _LOCKS, BODY),
)  # fmt: skip
OF_TOOLS = (
    AskedRequest("a new topic", Code.UPDATE_AND_CREATE_TOPIC, _NEW_TOPIC, b"", "topic"),
    AskedRequest(
        "new topics", Code.UPDATE_AND_CREATE_TOPIC_LIST, {},
        _body({"topicConfigList": [_TOPIC_CONFIG]}),
    ),
    AskedRequest(
        "settings of a group", Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {},
        _body({"groupName": "made-group"}),
    ),
    AskedRequest(
        "the end of a topic", Code.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}, b"", "topic"
    ),
    AskedRequest(
        "the end of a group", Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "gone-group"}, b"",
        "groupName",
    ),
    AskedRequest("a topic's queues", Code.GET_TOPIC_STATS_INFO, _TOPIC_ALONE, b"", "topic"),
    AskedRequest("a topic's settings", Code.GET_TOPIC_CONFIG, _TOPIC_ALONE, b"", "topic"),
    AskedRequest("a topic's groups", Code.QUERY_TOPIC_CONSUME_BY_WHO, _TOPIC_ALONE, b"", "topic"),
    AskedRequest(
        "times of a group", Code.QUERY_CONSUME_TIME_SPAN, {"topic": TOPIC, "group": GROUP}, b"",
        "topic",
    ),
    AskedRequest(
        "units of a queue", Code.QUERY_CONSUME_QUEUE, {**_QUEUE, "index": 0, "count": 1}, b"",
        "topic",
    ),
    AskedRequest("connections", Code.GET_CONSUMER_CONNECTION_LIST, _OF_GROUP, b"", "consumerGroup"),
    AskedRequest("progress of a group", Code.GET_CONSUME_STATS, _OF_GROUP, b"", "consumerGroup"),
    AskedRequest(
        "topics of a group", Code.QUERY_TOPICS_BY_CONSUMER, {"group": GROUP}, b"", "group"
    ),
    AskedRequest(
        "settings of a group, shown", Code.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, b"",
        "group",
    ),
    AskedRequest(
        "a client's state", Code.GET_CONSUMER_RUNNING_INFO, {**_OF_GROUP, "clientId": "nobody"},
        b"", "consumerGroup",
    ),
    AskedRequest(
        "a message to a client", Code.CONSUME_MESSAGE_DIRECTLY,
        {**_OF_GROUP, "clientId": "nobody", "msgId": _MESSAGE_ID}, b"", "consumerGroup",
    ),
    AskedRequest(
        "a reset", Code.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": True}, b"", "topic",
    ),
    AskedRequest(
        "a group's copy", Code.CLONE_GROUP_OFFSET,
        {"srcGroup": GROUP, "destGroup": OTHER_GROUP, "topic": TOPIC, "offline": False}, b"",
        "destGroup",
    ),
    AskedRequest("changed settings", Code.UPDATE_BROKER_CONFIG, {}, b"none=1"),
    AskedRequest("settings", Code.GET_BROKER_CONFIG),
    AskedRequest("figures", Code.GET_BROKER_RUNTIME_INFO),
    AskedRequest("connections of producers", Code.GET_ALL_PRODUCER_INFO),
    AskedRequest(
        "a figure", Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC},
        b"", "statsName",
    ),
    AskedRequest("progress of all", Code.GET_BROKER_CONSUME_STATS, {"isOrder": False}),
    AskedRequest("all topics", Code.GET_ALL_TOPIC_CONFIG),
    AskedRequest("all groups", Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    AskedRequest("all offsets", Code.GET_ALL_CONSUMER_OFFSET),
    AskedRequest("cleaning", Code.CLEAN_UNUSED_TOPIC),
    AskedRequest("a new user", 3001, _USER, _body({"password": "secret-12", "userType": "Normal"})),
    AskedRequest("a changed user", 3002, _USER, _body({"password": "secret-13"})),
    AskedRequest("the end of a user", 3003, {"username": "nobody-there"}),
    AskedRequest("a user", 3004, _USER),
    AskedRequest("users", 3005, {"filter": "somebody"}),
    AskedRequest("a new list", 3006, _SUBJECT, _LIST),
    AskedRequest("the end of a list", 3008, _SUBJECT),
    AskedRequest("a list", 3009, _SUBJECT),
    AskedRequest("lists", 3010, {"subjectFilter": "somebody"}),
)  # fmt: skip
REQUESTS = (*OF_CLIENTS, *OF_TOOLS)
