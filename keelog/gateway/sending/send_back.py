"""36: a consumer hands a message back, and its group gets it again after a delay, or never.

The rules and their order are those of RocketMQ's
AbstractSendMessageProcessor#consumerSendMsgBack.
"""

import random
from collections.abc import Callable

from keelog.client.results import Receipt
from keelog.client.send.record_batch import EncodedMessage
from keelog.gateway.connection import Reply, Request
from keelog.gateway.groups import Groups
from keelog.gateway.sending.delayed import (
    dead_letter_topic,
    handed_back,
    is_committed,
    is_dead,
    retry_level,
    retry_topic,
)
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.topics import Topics
from node.store.config.topics_file import Topic
from protocol.errors import MqError, NotAllowed, NotFound
from protocol.record.codec import Record
from protocol.record.waiting import RealPlace
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import ConsumerSendMsgBackHeader, request_fields
from protocol.request_fields import WAIT_NONE


class _HandedBack:
    """The request, until its message is stored again."""

    __slots__ = ("request",)

    def __init__(self, request: Request) -> None:
        self.request = request

    def refused(self, error: MqError) -> None:
        """The consumer sends the message to the retry topic by itself then."""
        self.request.answer(Reply(ResponseCode.SYSTEM_ERROR, remark=error.reason))

    def stored(self, _: Receipt) -> None:
        """It is."""
        self.request.answer(Reply())


class SendBack:
    """One for each gateway. `look_up` returns the record at a log offset."""

    def __init__(
        self,
        link: WriterLink,
        topics: Topics,
        groups: Groups,
        look_up: Callable[[int], Record],
        level_max: int,
    ) -> None:
        self._link = link
        self._topics = topics
        self._groups = groups
        self._look_up = look_up
        self._level_max = level_max

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
            return Reply(ResponseCode.SYSTEM_ERROR, remark=error.reason)
        times_max = wanted.max_reconsume_times
        if times_max is None:
            times_max = settings.retry_times_max
        times = record.head.reconsume_times
        if is_dead(wanted.delay_level, times, times_max):
            topic, level = await self._writable(dead_letter_topic(wanted.group), 1), 0
        else:
            level = retry_level(wanted.delay_level, times)
        place = RealPlace(topic.name, random.randrange(max(topic.write_queues, 1)))
        crc = self._link.crc
        place, again = handed_back(record, place, level, self._level_max, crc)
        slot = _HandedBack(request)
        entry = EncodedMessage(again, *place, None, record.unique_key, slot)
        is_inner = level > 0 or is_committed(record)
        self._link.put(entry, WAIT_NONE, is_inner=is_inner)
        return None

    async def _writable(self, name: str, queues: int, *, is_unit: bool = False) -> Topic:
        """The topic, made where it is missing. Raises NotAllowed, and what the writer refuses."""
        topic = self._topics.find(name)
        if topic is None:
            topic = await self._topics.make(name, queues, is_unit=is_unit)
        if not topic.is_writable:
            raise NotAllowed(f"the topic {name} does not take messages (perm {topic.perm})")
        return topic
