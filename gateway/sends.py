"""Sends of RocketMQ's clients: 10, 310 and 320 become records, gathered for the writer.

Those of one turn of the loop go as one request (`client.send.record_batch`), whoever sent them.
The checks and their order are those of RocketMQ's SendMessageProcessor.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any

from client.aio.channel import AsyncioChannel
from client.core import ClientCore
from client.results import Receipt
from client.send.receipts import Results
from client.send.record_batch import EncodedMessage, EntryBatch
from client.send.send_coalescer import SEND_BYTES_MAX, SEND_RECORDS_MAX, UNDER_WAY_MAX
from client.send.unique_key import UniqueKeys
from client.transport.routes import NO_ROUTES
from gateway.connection import Reply, Request
from gateway.names import RETRY_PREFIX, SEND_EXT
from gateway.stored_properties import (
    broker_properties,
    stored_properties,
    unique_key_of,
    waits_for_disk,
)
from gateway.topics import Topics
from node.store.topics_file import Topic
from protocol.errors import (
    BadRequest,
    IllegalMessage,
    MessageTooLarge,
    MqError,
    NodeBusy,
    NotAllowed,
    OutcomeUnknownError,
)
from protocol.message_id import IPV4_BYTES
from protocol.names import check_topic_for_send
from protocol.record.encode import FORBIDDEN_SYS_FLAGS, pack_fields
from protocol.record.properties import (
    CRC_PROPERTY_BYTES,
    EMPTY_CRC_PROPERTY,
    check_properties_length,
)
from protocol.remoting.batch import BatchItem, batch_items
from protocol.remoting.codes import ResponseCode
from protocol.remoting.request_headers import SendMessageHeader, request_fields
from protocol.request_checks import WAIT_NONE

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Of all clients' messages that the writer has not taken; beyond it, sends are refused as busy."""
TIMEOUT_S = 10.0
"""How long the writer may take: clients give up after 3 s, and then ask again."""
_CODES = {
    "PUT_OK": ResponseCode.SUCCESS,
    "FLUSH_DISK_TIMEOUT": ResponseCode.FLUSH_DISK_TIMEOUT,
}


class _Sent:
    """The messages of one request, until all have their outcome."""

    __slots__ = ("left", "receipts", "request")

    def __init__(self, request: Request, left: int) -> None:
        self.request = request
        self.left = left
        self.receipts: list[Receipt] = []

    def refused(self, error: MqError) -> None:
        """One of them was not stored."""
        self.request.answer(refusal_of_send(error))

    def stored(self, receipt: Receipt) -> None:
        """One of them was."""
        self.receipts.append(receipt)
        if len(self.receipts) == self.left:
            self.request.answer(_answer(self.receipts))


class Sends:
    """The sends of all connections, in the thread of the loop."""

    def __init__(self, core: ClientCore, topics: Topics, cluster: str) -> None:
        self._core = core
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._link = AsyncioChannel(core.io, self._loop)
        core.adopt(self._link)
        self._keys = UniqueKeys(bytes(IPV4_BYTES))
        self._added = broker_properties(cluster)
        self._waiting: dict[str | None, list[EncodedMessage]] = {}
        self._waiting_bytes = 0
        self._under_way = 0
        self._is_due = False

    def send(self, request: Request) -> Any:
        """10, 310, 320: stores messages. Replies later, or returns what has to be awaited."""
        wanted: SendMessageHeader = request_fields(request.header)
        topic = self._topics.find(wanted.topic)
        if topic is None:
            self._topics.check_may_make(wanted.topic, wanted.default_topic)
            return self._make_and_send(request, wanted, bytes(request.body))
        self._send_to(topic, request, wanted, request.body)
        return None

    async def _make_and_send(
        self, request: Request, wanted: SendMessageHeader, body: bytes
    ) -> None:
        topic = await self._topics.make(wanted.topic, wanted.default_topic_queue_nums)
        self._send_to(topic, request, wanted, memoryview(body))

    def _send_to(
        self, topic: Topic, request: Request, wanted: SendMessageHeader, body: memoryview
    ) -> None:
        """Raises NodeBusy, NotAllowed, BadRequest, IllegalMessage and its kinds."""
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise NodeBusy(f"{self._waiting_bytes} bytes wait for the writer", "send again later")
        _check_for_clients(topic.name)
        if not topic.is_writable:
            raise NotAllowed(f"the topic {topic.name} does not take messages (perm {topic.perm})")
        queue_id = _queue_of(topic, wanted.queue_id)
        if wanted.sys_flag & FORBIDDEN_SYS_FLAGS:
            raise IllegalMessage(
                f"sysFlag {wanted.sys_flag:#x} marks a transaction or an inner batch, which this"
                " node does not offer",
                "send plain messages",
            )
        wait = None
        if wanted.batch:
            if wanted.topic.startswith(RETRY_PREFIX):
                raise IllegalMessage("a batch to a retry topic", "send them one by one")
            items = batch_items(body)
            sent = _Sent(request, len(items))
            entries = [self._item(wanted, queue_id, item, request, sent) for item in items]
        else:
            properties = stored_properties(
                wanted.properties.encode(), self._added, self._keys.next()
            )
            wait = None if waits_for_disk(properties) else WAIT_NONE
            sent = _Sent(request, 1)
            entries = [self._entry(wanted, queue_id, body, properties, wanted.flag, request, sent)]
        for entry in entries:
            self._gather(wait, entry)

    def _item(
        self,
        wanted: SendMessageHeader,
        queue_id: int,
        item: BatchItem,
        request: Request,
        sent: _Sent,
    ) -> EncodedMessage:
        """One message of a batch: a broker adds nothing to it."""
        properties = stored_properties(bytes(item.properties), b"", self._keys.next())
        return self._entry(wanted, queue_id, item.body, properties, item.flag, request, sent)

    def _entry(
        self,
        wanted: SendMessageHeader,
        queue_id: int,
        body: memoryview,
        properties: bytes,
        flag: int,
        request: Request,
        sent: _Sent,
    ) -> EncodedMessage:
        routes = self._core.io.routes or NO_ROUTES
        if len(body) > routes.max_message_bytes:
            raise MessageTooLarge(
                f"the body has {len(body)} bytes, {routes.max_message_bytes} are allowed",
                "split the body, or raise max_message_size",
            )
        own = CRC_PROPERTY_BYTES if routes.crc else 0
        check_properties_length(len(properties) + own)
        record = pack_fields(
            wanted.topic, body, queue_id, properties + EMPTY_CRC_PROPERTY if own else properties,
            wanted.born_timestamp, request.connection.peer,
            flag, wanted.sys_flag, wanted.reconsume_times,
        )  # fmt: skip
        key = unique_key_of(properties).decode("utf-8", "replace")
        return EncodedMessage(record, wanted.topic, queue_id, None, key, sent)

    # To the writer

    def _gather(self, wait: str | None, entry: EncodedMessage) -> None:
        self._waiting.setdefault(wait, []).append(entry)
        self._waiting_bytes += len(entry.record)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        """Sends what waits, unless enough is under way: the next answer does it then."""
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            wait, entries = next(iter(self._waiting.items()))
            count = _count_of_request(entries)
            rest = entries[count:]
            if rest:
                self._waiting[wait] = rest
            else:
                del self._waiting[wait]
            self._send(wait, entries[:count] if rest else entries)
        self._is_due = bool(self._waiting)

    def _send(self, wait: str | None, entries: list[EncodedMessage]) -> None:
        self._under_way += 1
        left = len(entries)
        sender = self._core.sender

        def deliver(some: Sequence[EncodedMessage], results: Results) -> None:
            if self._link.is_here():
                take(some, results)
                return
            with suppress(RuntimeError):  # the loop is closed: so are all connections
                self._loop.call_soon_threadsafe(take, some, results)

        def take(some: Sequence[EncodedMessage], results: Results) -> None:
            nonlocal left
            left -= len(some)
            for row, entry in enumerate(some):
                self._waiting_bytes -= len(entry.record)
                if isinstance(results, MqError):
                    entry.slot.refused(results)
                else:
                    entry.slot.stored(results[row])
            if not left:
                self._under_way -= 1
                self._go()

        batch = EntryBatch(wait, monotonic() + TIMEOUT_S, deliver, True, entries)
        if not sender.carry(batch, self._link.carry):
            sender.send(batch)

    def close(self) -> None:
        """Ends the link to the writer. Sends without an answer fail."""
        self._core.drop(self._link)


@lru_cache(maxsize=4096)
def _check_for_clients(topic: str) -> None:
    """Raises NotAllowed for the system's own topics, which a store of a broker has."""
    check_topic_for_send(topic)


def _queue_of(topic: Topic, wanted: int) -> int:
    """The queue that the client named, or any. Raises BadRequest, NotAllowed."""
    if wanted < 0:
        if not topic.write_queues:
            raise NotAllowed(f"topic {topic.name} has no queue to write to")
        return random.randrange(topic.write_queues)
    queues = max(topic.read_queues, topic.write_queues)
    if wanted >= queues:
        raise BadRequest(f"queue {wanted} of topic {topic.name} is outside [0, {queues - 1}]")
    return wanted


def _count_of_request(entries: list[EncodedMessage]) -> int:
    """How many of the entries go as one request: at least one."""
    size = 0
    for row, entry in enumerate(entries[:SEND_RECORDS_MAX]):
        size += len(entry.record)
        if size > SEND_BYTES_MAX and row:
            return row
    return min(len(entries), SEND_RECORDS_MAX)


def _answer(receipts: Sequence[Receipt]) -> Reply:
    """Of one message, or of all those of a batch: their ids are joined by commas."""
    first = receipts[0]
    ext = {
        **SEND_EXT,
        "msgId": ",".join(receipt.msg_id for receipt in receipts),
        "queueId": str(first.queue_id),
        "queueOffset": str(first.queue_offset),
        "transactionId": first.unique_key,
    }
    return Reply(_CODES.get(first.status, ResponseCode.SUCCESS), ext)


def refusal_of_send(error: MqError) -> Reply:
    """A refusal has the fields that a Java client reads without a check.

    Where the outcome is unknown, the client tries again, as after a time-out of its own.
    """
    is_unknown = isinstance(error, OutcomeUnknownError)
    code = ResponseCode.SYSTEM_ERROR if is_unknown else error.code
    return Reply(code, SEND_EXT, remark=error.reason)
