"""370: a client takes a timer message back, by the handle that its send returned.

The rules and their order are those of RocketMQ's RecallMessageProcessor. A message of the same
second takes the other one back; nobody looks whether that one is there.
"""

from keelog.client.results import Receipt
from keelog.gateway.connection import Reply, Request
from keelog.gateway.names import REGION
from keelog.gateway.sending.delayed import DelayRules
from keelog.gateway.sending.sends import Sends
from keelog.gateway.topics import Topics
from node.runtime.process import now_ms
from protocol.errors import MqError
from protocol.record.waiting import RECALL_BODY, RealPlace, parse_recall_handle, recall_properties
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import RecallMessageHeader, SendMessageHeader, request_fields

_EXT = {"MSG_REGION": REGION}


class _Recalled:
    """The request, until its message is stored."""

    __slots__ = ("key", "request")

    def __init__(self, request: Request, key: str) -> None:
        self.request = request
        self.key = key

    def refused(self, _: MqError) -> None:
        """It is not, or nobody knows."""
        self.request.answer(_refusal(ResponseCode.SYSTEM_ERROR, "recall failed, execute error"))

    def stored(self, _: Receipt) -> None:
        """It is."""
        self.request.answer(Reply(ResponseCode.SUCCESS, {**_EXT, "msgId": self.key}))


class Recalls:
    """One for each gateway. `is_enabled`: RocketMQ's recallMessageEnable."""

    def __init__(self, sends: Sends, topics: Topics, delays: DelayRules, is_enabled: bool) -> None:
        self._sends = sends
        self._topics = topics
        self._delays = delays
        self._is_enabled = is_enabled

    def take(self, request: Request) -> Reply | None:
        """370. Replies at once, or when the message is stored."""
        if not self._is_enabled:
            return _refusal(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        wanted: RecallMessageHeader = request_fields(request.header)
        if self._topics.find(wanted.topic) is None:
            text = f"recall failed, the topic[{wanted.topic}] not exist"
            return _refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        handle = parse_recall_handle(wanted.recall_handle)
        if handle is None:
            return _illegal("recall handle is invalid")
        if handle.topic != wanted.topic:
            return _illegal("recall failed, topic not match")
        if handle.broker != self._delays.broker:
            return _illegal("recall failed, broker service not available")
        now = now_ms()
        if not 0 < handle.deliver_ms - now < self._delays.timer_ms_max:
            return _illegal("recall failed, timestamp invalid")
        group, key = wanted.producer_group, handle.unique_key
        message = SendMessageHeader(
            producer_group=group,
            topic=wanted.topic,
            default_topic="",
            default_topic_queue_nums=0,
            queue_id=0,
            sys_flag=0,
            born_timestamp=now,
            flag=0,
            properties=recall_properties(key, handle.deliver_ms, now, group).decode(),
        )
        place = RealPlace(wanted.topic, 0)
        self._sends.put(request, message, place, RECALL_BODY, b"", _Recalled(request, key))
        return None


def _illegal(text: str) -> Reply:
    return _refusal(ResponseCode.ILLEGAL_OPERATION, text)


def _refusal(code: ResponseCode, text: str) -> Reply:
    return Reply(code, _EXT, remark=text)
