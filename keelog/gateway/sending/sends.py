"""Messages from RocketMQ's clients: sent (10, 310, 320), handed back (36), or recalled (370).

The checks and their order are those of RocketMQ's SendMessageProcessor,
AbstractSendMessageProcessor#consumerSendMsgBack and RecallMessageProcessor.

36: a group gets a message again after a delay, or never. 370: a client takes a timer message back,
by the handle that its send returned. A message of the same second takes the other one back; nobody
looks whether that one is there.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from time import monotonic
from typing import Any
from zlib import crc32

import numpy as np

from keelog.client.results import Receipt
from keelog.client.send.encode import UniqueKeys
from keelog.client.send.record_batch import BatchReceipt, EncodedColumns
from keelog.client.send.sender import SEND_BYTES_MAX
from keelog.gateway import groups, settings, topics
from keelog.gateway.asked_replies import AskedReplies
from keelog.gateway.connection import Reply, Request, system_error
from keelog.gateway.guard import check_found
from keelog.gateway.sending import stored_properties as stored
from keelog.gateway.sending.half import HALF_PLACE, asks_for_transaction, half_properties
from keelog.gateway.sending.writer_link import BatchDone, RecordDone, WriterLink
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from node.store.config.topics_file import Topic
from protocol import errors, names
from protocol.ids import IPV4_BYTES
from protocol.record import encode, waiting
from protocol.record import properties as props
from protocol.record.codec import TRANSACTION_MASK, Record
from protocol.record.waiting import RealPlace
from protocol.remoting import header_fields as hf
from protocol.remoting.batch import BatchItem, ItemTemplate, batch_items, encode_items, packed_names
from protocol.remoting.codes import ResponseCode
from protocol.request_fields import WAIT_NONE

SendMessageHeader = hf.SendMessageHeader
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Of all clients' messages that the writer has not taken; beyond it, sends are refused as busy."""
_SPECIAL = packed_names(stored.SPECIAL_NAMES)
_CODES = {
    "PUT_OK": ResponseCode.SUCCESS,
    "FLUSH_DISK_TIMEOUT": ResponseCode.FLUSH_DISK_TIMEOUT,
    "FLUSH_SLAVE_TIMEOUT": ResponseCode.FLUSH_SLAVE_TIMEOUT,
    "SLAVE_NOT_AVAILABLE": ResponseCode.SLAVE_NOT_AVAILABLE,
}
FIRST_RETRY_LEVEL = 3
"""Of a message that was never handed back: 10 s by the usual levels."""
_REGION_EXT = {"MSG_REGION": settings.REGION}
_check_for_clients = lru_cache(maxsize=4096)(names.check_topic_for_send)
"""Raises NotAllowed for the system's own topics, which a store of a broker has."""
_WAITING = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.HALF_TOPIC)
"""The topics of messages that consumers get later, elsewhere."""


@dataclass(eq=False)
class Sends:
    """The sends of all connections, in the thread of the loop. `_look_up` returns the record at a
    log offset."""

    _link: WriterLink
    _topics: topics.Topics
    _groups: groups.Groups
    _cluster: str
    _delays: stored.DelayRules
    _settings: Settings
    _look_up: Callable[[int], Record]
    _keys: UniqueKeys = field(default_factory=lambda: UniqueKeys(bytes(IPV4_BYTES)))
    _making_bytes: int = 0
    """Of messages whose topic is being made."""
    asked_replies: AskedReplies = field(default_factory=AskedReplies)
    """Where users log in: who waits for a reply."""

    def __post_init__(self) -> None:
        self._once = self._settings.idempotent_remoting and self._settings.idempotent_window > 0
        """Whether the writer is asked to store each unique key once."""
        self._added = stored.broker_properties(self._cluster)

    def send(self, request: Request, wanted: SendMessageHeader) -> Any:
        """10, 310, 320: stores messages. Replies later, or returns what has to be awaited."""
        if request.asker is not None:
            self.asked_replies.note(request.asker.user.name, wanted, monotonic())
        if wanted.topic.startswith(names.RETRY_PREFIX):
            wanted = self._or_dead_letter(wanted)
        topic = self._topics.find(wanted.topic)
        if topic is None:
            self._topics.check_may_make(wanted.topic, wanted.default_topic)
            return self._make_and_send(request, wanted, bytes(request.body))
        self._send_to(topic, request, wanted, request.body)
        return None

    def _or_dead_letter(self, wanted: SendMessageHeader) -> SendMessageHeader:
        """A message to a retry topic, or as a dead letter where it has failed too often. An orderly
        group, which has locks, tries again by itself before."""
        group = wanted.topic.removeprefix(names.RETRY_PREFIX)
        times_max = wanted.max_reconsume_times
        if times_max is None:
            times_max = self._groups.settings(group).retry_times_max
        if wanted.reconsume_times <= times_max and not self._groups.has_locks(group):
            return wanted
        properties = stored.dead_letter(wanted.properties.encode()).decode()
        return wanted._replace(
            topic=stored.dead_letter_topic(group), queue_id=encode.ANY_QUEUE, properties=properties
        )

    async def _make_and_send(
        self, request: Request, wanted: SendMessageHeader, body: bytes
    ) -> None:
        self._check_room(len(body))
        self._making_bytes += len(body)
        try:
            topic = await self._topics.make_for_send(wanted)
        finally:
            self._making_bytes -= len(body)
        self._send_to(topic, request, wanted, memoryview(body))

    def _check_room(self, more: int = 0) -> None:
        """Raises NodeBusy."""
        waiting = self._link.waiting_bytes + self._making_bytes
        if waiting + more > WAITING_BYTES_MAX:
            raise errors.NodeBusy(f"{waiting} bytes wait for the writer", "send again later")

    async def place_of(self, wanted: SendMessageHeader) -> RealPlace:
        """Where a single message goes; makes the topic where that is missing. Raises what refuses a
        send."""
        topic = self._topics.find(wanted.topic)
        if topic is None:
            self._topics.check_may_make(wanted.topic, wanted.default_topic)
            topic = await self._topics.make_for_send(wanted)
        return self._place_in(topic, wanted)

    def _place_in(self, topic: Topic, wanted: SendMessageHeader) -> RealPlace:
        """Raises NodeBusy, NotAllowed, BadRequest, IllegalMessage."""
        self._check_room()
        _check_for_clients(topic.name)
        if not topic.is_writable:
            raise _not_writable(topic)
        queue_id = _queue_of(topic, wanted.queue_id)
        if wanted.sys_flag & encode.FORBIDDEN_SYS_FLAGS:
            raise errors.IllegalMessage(
                f"sysFlag {wanted.sys_flag:#x} marks an inner batch, which this node does not"
                " offer, or a transaction that no property names",
                "send plain messages",
            )
        return RealPlace(topic.name, queue_id)

    def _send_to(
        self, topic: Topic, request: Request, wanted: SendMessageHeader, body: memoryview
    ) -> None:
        """Raises NodeBusy, NotAllowed, BadRequest, IllegalMessage and its kinds."""
        is_half = self._is_half(wanted)
        if is_half:
            wanted = wanted._replace(sys_flag=wanted.sys_flag & ~TRANSACTION_MASK)
        place = self._place_in(topic, wanted)
        if wanted.batch:
            self._send_batch(request, wanted, place, body)
        else:
            self.put(request, wanted, place, body, self._added, is_half=is_half)

    def _is_half(self, wanted: SendMessageHeader) -> bool:
        """Whether a message is the half of a transaction; one that is handed back keeps the
        property, and is none (SendMessageProcessor). Raises NotAllowed."""
        if wanted.batch or not asks_for_transaction(wanted.properties):
            return False
        if wanted.reconsume_times > 0 and stored.delay_level_of(wanted.properties.encode(), 1):
            return False
        if self._settings.reject_transaction_message:
            raise errors.NotAllowed("this node refuses messages of transactions")
        return True

    def put(
        self,
        request: Request,
        wanted: SendMessageHeader,
        place: RealPlace,
        body: bytes | memoryview,
        added: bytes,
        done: RecordDone | None = None,
        is_half: bool = False,
    ) -> None:
        """Sends one message to the writer, `added` at the end of its properties. `done` gets the
        outcome, which is else replied: it names the queue of the message, not that in which it
        waits. Raises IllegalMessage and its kinds."""
        given = wanted.properties.encode()
        if request.asker is not None:
            given = stored.own_recall(given, place.topic)
        properties = stored.stored_properties(given, added, self._keys.next)
        wait = None if stored.waits_for_disk(properties) else WAIT_NONE
        now = now_ms()
        if is_half:
            waiting.timed(properties, place, now, self._delays.timer_ms_max)  # may refuse it
            properties, waits_at, later = half_properties(properties, place), HALF_PLACE, None
        else:
            properties, waits_at, later = self._delays.delayed(properties, place, now)
        handle = "" if later is None else self._delays.recall_handle(later, place)
        done = done or partial(_sent, request, place.queue_id, recall_handle=handle)
        template = _template(request, wanted, waits_at)
        record, key = self._record(template, body, properties, wanted.flag)
        once = later is None and not is_half and self._asks_once(wanted.topic)
        is_inner = waits_at is not place
        self._link.put(record, waits_at, key, done, wait, is_inner=is_inner, once=once)

    def _asks_once(self, topic: str) -> bool:
        """Not for retry topics: a message that fails again comes with the key that it had."""
        return self._once and not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))

    def _send_batch(
        self, request: Request, wanted: SendMessageHeader, place: RealPlace, body: memoryview
    ) -> None:
        if wanted.topic.startswith(names.RETRY_PREFIX):
            raise errors.IllegalMessage("a batch to a retry topic", "send them one by one")
        parts = list(_parts(self._columns(request, wanted, place, body)))
        done = _batch_done(request, len(parts), place.queue_id)
        once = self._asks_once(wanted.topic)
        for part in parts:
            self._link.put_batch(part, done, once)

    def _columns(
        self, request: Request, wanted: SendMessageHeader, place: RealPlace, body: memoryview
    ) -> EncodedColumns:
        """The records of a batch. Raises IllegalMessage and its kinds, BadCommand."""
        template = _template(request, wanted, place)
        found = encode_items(body, template, _SPECIAL, self._link.body_bytes_max, self._link.crc)
        if found is not None:
            return EncodedColumns(place.topic, place.queue_id, *found)
        items = [self._item(template, item) for item in batch_items(body)]
        records = b"".join(record for record, _ in items)
        sizes = np.array([len(record) for record, _ in items], np.uint32)
        encoded = encode.EncodedBatch(np.frombuffer(records, np.uint8), sizes, crc32(records))
        return EncodedColumns(place.topic, place.queue_id, encoded, [key for _, key in items])

    def _item(self, template: ItemTemplate, item: BatchItem) -> tuple[bytes, str]:
        """The record of one message of a batch, and its unique key: a broker adds nothing to it."""
        given = bytes(item.properties)
        if asks_for_transaction(given.decode("utf-8", "replace")):
            raise errors.IllegalMessage("a transaction in a batch", "send such messages one by one")
        properties = stored.stored_properties(given, b"", self._keys.next)
        level = stored.delay_level_of(properties, self._delays.level_max)
        if level or waiting.is_timed(properties):
            raise errors.IllegalMessage("a delay in a batch", "send delayed messages one by one")
        return self._record(template, item.body, properties, item.flag)

    def _record(
        self, template: ItemTemplate, body: bytes | memoryview, properties: bytes, flag: int
    ) -> tuple[bytes, str]:
        """A record and its unique key. Raises MessageTooLarge, IllegalMessage."""
        if len(body) > self._link.body_bytes_max:
            raise errors.MessageTooLarge(
                f"the body has {len(body)} bytes, {self._link.body_bytes_max} are allowed",
                "split the body, or raise max_message_size",
            )
        own = props.CRC_PROPERTY_BYTES if self._link.crc else 0
        props.check_properties_length(len(properties) + own)
        if own:
            properties += props.EMPTY_CRC_PROPERTY
        record = encode.pack_fields(
            template.topic, body, template.queue_id, properties,
            template.born_timestamp, template.born_host,
            flag, template.sys_flag, template.reconsume_times,
        )  # fmt: skip
        return record, stored.unique_key_of(properties).decode("utf-8", "replace")

    async def take_back(
        self, request: Request, wanted: hf.ConsumerSendMsgBackHeader
    ) -> Reply | None:
        """36. Replies at once, or when the message is stored."""
        group = self._groups.find(wanted.group)
        if group is None:
            text = f"subscription group not exist, {wanted.group}"
            return Reply(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=text)
        if group.retry_queues <= 0:
            return Reply()
        name, is_unit = stored.retry_topic(wanted.group), wanted.unit_mode
        topic = await self._writable(name, group.retry_queues, is_unit=is_unit)
        try:
            record = self._look_up(wanted.offset)
        except errors.NotFound as error:
            return system_error(error.reason)
        check_found(request, record)
        times_max = wanted.max_reconsume_times
        if times_max is None:
            times_max = group.retry_times_max
        times = record.head.reconsume_times
        if wanted.delay_level < 0 or times >= times_max:
            level, name = 0, stored.dead_letter_topic(wanted.group)
            topic = await self._writable(name, 1)
        else:
            level = wanted.delay_level or FIRST_RETRY_LEVEL + times
        place = RealPlace(topic.name, random.randrange(max(topic.write_queues, 1)))
        level_max, crc = self._delays.level_max, self._link.crc
        place, again = stored.handed_back(record, place, level, level_max, crc)

        def done(outcome: Receipt | errors.MqError) -> None:
            # A consumer that is refused sends the message to the retry topic by itself.
            refused = isinstance(outcome, errors.MqError) and system_error(outcome.reason)
            request.answer(refused or Reply())

        is_inner = level > 0 or stored.is_committed(record)
        self._link.put(again, place, record.unique_key, done, WAIT_NONE, is_inner=is_inner)
        return None

    async def _writable(self, name: str, queues: int, *, is_unit: bool = False) -> Topic:
        """The topic, made where it is missing. Raises NotAllowed, and what the writer refuses."""
        topic = self._topics.find(name)
        if topic is None:
            topic = await self._topics.make(name, queues, is_unit=is_unit)
        if not topic.is_writable:
            raise _not_writable(topic)
        return topic

    def recall(self, request: Request, wanted: hf.RecallMessageHeader) -> Reply | None:
        """370. Replies at once, or when the message is stored."""
        if self._topics.find(wanted.topic) is None:
            text = f"the topic[{wanted.topic}] not exist"
            return no_recall(text, ResponseCode.TOPIC_NOT_EXIST)
        handle = waiting.parse_recall_handle(wanted.recall_handle)
        if handle is None:
            text = "recall handle is invalid"
            return Reply(ResponseCode.ILLEGAL_OPERATION, _REGION_EXT, remark=text)
        if handle.topic != wanted.topic:
            return no_recall("topic not match")
        if handle.broker != self._delays.broker:
            return no_recall("broker service not available")
        now = now_ms()
        if not 0 < handle.deliver_ms - now < self._delays.timer_ms_max:
            return no_recall("timestamp invalid")
        group, key = wanted.producer_group, handle.unique_key
        properties = waiting.recall_properties(key, handle.deliver_ms, now, group).decode()
        message = SendMessageHeader(group, wanted.topic, "", 0, 0, 0, now, 0, properties)

        def done(outcome: Receipt | errors.MqError) -> None:
            if isinstance(outcome, errors.MqError):
                request.answer(no_recall("execute error", ResponseCode.SYSTEM_ERROR))
            else:
                request.answer(Reply(ext={**_REGION_EXT, "msgId": key}))

        place = RealPlace(wanted.topic, 0)
        self.put(request, message, place, waiting.RECALL_BODY, b"", done)
        return None


def no_recall(why: str, code: int = ResponseCode.ILLEGAL_OPERATION) -> Reply:
    """The refusal of a recall."""
    return Reply(code, _REGION_EXT, remark=f"recall failed, {why}")


def _not_writable(topic: Topic) -> errors.NotAllowed:
    return errors.NotAllowed(f"the topic {topic.name} does not take messages (perm {topic.perm})")


def _sent(
    request: Request, queue_id: int, outcome: Receipt | errors.MqError, recall_handle: str = ""
) -> None:
    """The message of a request has its outcome. `queue_id`: the one that its client gets to know;
    `recall_handle`: what takes a timer message back."""
    if isinstance(outcome, errors.MqError):
        request.answer(refusal_of_send(outcome))
        return
    ext = _answer_fields(outcome, outcome.msg_id, queue_id)
    if recall_handle:
        ext["recallHandle"] = recall_handle
    request.answer(Reply(_CODES.get(outcome.status, ResponseCode.SUCCESS), ext))


def _batch_done(request: Request, count: int, queue_id: int) -> BatchDone:
    """Takes the outcomes of a request's messages, which go to the writer in `count` parts."""
    found: list[BatchReceipt] = []

    def done(outcome: BatchReceipt | errors.MqError) -> None:
        if isinstance(outcome, errors.MqError):
            request.answer(refusal_of_send(outcome))
            return
        found.append(outcome)
        if len(found) == count:
            ids = ",".join([part.joined_ids() for part in found])
            # One that is not as durable as was asked is what the client has to know.
            codes = [_CODES.get(part.status, ResponseCode.SUCCESS) for part in found]
            worst = max(codes, key=lambda code: code != ResponseCode.SUCCESS)
            request.answer(Reply(worst, _answer_fields(found[0][0], ids, queue_id)))

    return done


def _template(request: Request, wanted: SendMessageHeader, place: RealPlace) -> ItemTemplate:
    born = wanted.born_timestamp, request.connection.peer
    return ItemTemplate(*place, *born, wanted.sys_flag, wanted.reconsume_times)


def _parts(columns: EncodedColumns) -> Iterator[EncodedColumns]:
    """A batch as the requests that the writer takes: most are one."""
    records, sizes = columns.encoded.records, columns.encoded.sizes
    if len(records) <= SEND_BYTES_MAX:
        yield columns
        return
    ends = np.cumsum(sizes, dtype=np.int64)
    row = start = 0
    while row < len(sizes):
        stop = max(row + 1, int(np.searchsorted(ends, start + SEND_BYTES_MAX, "right")))
        end = int(ends[stop - 1])
        some = records[start:end]
        encoded = encode.EncodedBatch(some, sizes[row:stop], crc32(some.data))
        yield columns._replace(encoded=encoded, unique_keys=columns.unique_keys[row:stop])
        row, start = stop, end


def _queue_of(topic: Topic, wanted: int) -> int:
    """The queue that the client named, or any. Raises BadRequest, NotAllowed."""
    if wanted < 0:
        if not topic.write_queues:
            raise errors.NotAllowed(f"topic {topic.name} has no queue to write to")
        return random.randrange(topic.write_queues)
    queues = max(topic.read_queues, topic.write_queues)
    if wanted >= queues:
        raise errors.BadRequest(
            f"queue {wanted} of topic {topic.name} is outside [0, {queues - 1}]"
        )
    return wanted


def _answer_fields(first: Receipt, msg_ids: str, queue_id: int) -> dict[str, str]:
    """Of one message, or of all those of a batch: their ids are joined by commas. A delayed message
    is in another queue than its client asked for, and hears of. A repeated one is where the first
    one is."""
    if first.topic not in _WAITING:
        queue_id = first.queue_id
    return {
        **settings.SEND_EXT,
        "msgId": msg_ids,
        "queueId": str(queue_id),
        "queueOffset": str(first.queue_offset),
        "transactionId": first.unique_key,
    }


def refusal_of_send(error: errors.MqError) -> Reply:
    """A refusal has the fields that a Java client reads without a check. Where the outcome is
    unknown, the client tries again, as after a time-out of its own."""
    is_unknown = isinstance(error, errors.OutcomeUnknownError)
    code = ResponseCode.SYSTEM_ERROR if is_unknown else error.code
    return Reply(code, settings.SEND_EXT, remark=error.reason)
