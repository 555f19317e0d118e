"""A client returns a stored message: a consumer hands it back (36), a sender recalls it (370).

36: the group gets the message again after a delay, or never. The rules and their order are those of
RocketMQ's AbstractSendMessageProcessor#consumerSendMsgBack.

370: a client takes a timer message back, by the handle that its send returned. The rules and their
order are those of RocketMQ's RecallMessageProcessor. A message of the same second takes the other
one back; nobody looks whether that one is there.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from keelog.client.results import Receipt
from keelog.gateway.connection import Reply, Request, system_error
from keelog.gateway.groups import Groups
from keelog.gateway.sending.sends import Sends
from keelog.gateway.sending.stored_properties import (
    DelayRules,
    dead_letter_topic,
    handed_back,
    is_committed,
    retry_topic,
)
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.settings import REGION
from keelog.gateway.topics import Topics
from node.runtime.process import now_ms
from node.store.config.topics_file import Topic
from protocol.errors import MqError, NotAllowed, NotFound
from protocol.record.codec import Record
from protocol.record.waiting import RECALL_BODY, RealPlace, parse_recall_handle, recall_properties
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import (
    ConsumerSendMsgBackHeader,
    RecallMessageHeader,
    SendMessageHeader,
    request_fields,
)
from protocol.request_fields import WAIT_NONE

FIRST_RETRY_LEVEL = 3
"""Of a message that was never handed back: 10 s by the usual levels."""
_EXT = {"MSG_REGION": REGION}


@dataclass(slots=True, eq=False)
class SendBack:
    """One for each gateway. `_look_up` returns the record at a log offset."""

    _link: WriterLink
    _topics: Topics
    _groups: Groups
    _look_up: Callable[[int], Record]
    _level_max: int

    async def take(self, request: Request) -> Reply | None:
        """36. Replies at once, or when the message is stored."""
        wanted: ConsumerSendMsgBackHeader = request_fields(request.header)
        settings = self._groups.find(wanted.group)
        if settings is None:
            text = f"subscription group not exist, {wanted.group}"
            return Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=text)
        if settings.retry_queues <= 0:
            return Reply()
        name, is_unit = retry_topic(wanted.group), wanted.unit_mode
        topic = await self._writable(name, settings.retry_queues, is_unit=is_unit)
        try:
            record = self._look_up(wanted.offset)
        except NotFound as error:
            return system_error(error.reason)
        times_max = wanted.max_reconsume_times
        if times_max is None:
            times_max = settings.retry_times_max
        times = record.head.reconsume_times
        if wanted.delay_level < 0 or times >= times_max:
            topic, level = await self._writable(dead_letter_topic(wanted.group), 1), 0
        else:
            level = wanted.delay_level or FIRST_RETRY_LEVEL + times
        place = RealPlace(topic.name, random.randrange(max(topic.write_queues, 1)))
        crc = self._link.crc
        place, again = handed_back(record, place, level, self._level_max, crc)

        def done(outcome: Receipt | MqError) -> None:
            # A consumer that is refused sends the message to the retry topic by itself.
            if isinstance(outcome, MqError):
                request.answer(system_error(outcome.reason))
            else:
                request.answer(Reply())

        is_inner = level > 0 or is_committed(record)
        self._link.put(again, place, record.unique_key, done, WAIT_NONE, is_inner=is_inner)
        return None

    async def _writable(self, name: str, queues: int, *, is_unit: bool = False) -> Topic:
        """The topic, made where it is missing. Raises NotAllowed, and what the writer refuses."""
        topic = self._topics.find(name)
        if topic is None:
            topic = await self._topics.make(name, queues, is_unit=is_unit)
        if not topic.is_writable:
            raise NotAllowed(f"the topic {name} does not take messages (perm {topic.perm})")
        return topic


def recall(
    sends: Sends, topics: Topics, delays: DelayRules, is_enabled: bool, request: Request
) -> Reply | None:
    """370. Replies at once, or when the message is stored. `is_enabled`: RocketMQ's
    recallMessageEnable."""
    if not is_enabled:
        return _no_recall(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    wanted: RecallMessageHeader = request_fields(request.header)
    if topics.find(wanted.topic) is None:
        text = f"recall failed, the topic[{wanted.topic}] not exist"
        return _no_recall(ResponseCode.TOPIC_NOT_EXIST, text)
    illegal = ResponseCode.ILLEGAL_OPERATION
    handle = parse_recall_handle(wanted.recall_handle)
    if handle is None:
        return _no_recall(illegal, "recall handle is invalid")
    if handle.topic != wanted.topic:
        return _no_recall(illegal, "recall failed, topic not match")
    if handle.broker != delays.broker:
        return _no_recall(illegal, "recall failed, broker service not available")
    now = now_ms()
    if not 0 < handle.deliver_ms - now < delays.timer_ms_max:
        return _no_recall(illegal, "recall failed, timestamp invalid")
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

    def done(outcome: Receipt | MqError) -> None:
        if isinstance(outcome, MqError):
            text = "recall failed, execute error"
            request.answer(_no_recall(ResponseCode.SYSTEM_ERROR, text))
        else:
            request.answer(Reply(ext={**_EXT, "msgId": key}))

    sends.put(request, message, place, RECALL_BODY, b"", done)
    return None


def _no_recall(code: ResponseCode, text: str) -> Reply:
    return Reply(code, _EXT, remark=text)
