"""From what a caller says to an encoded record, ready for a batch.

Most messages are a body with at most a tag and keys. Those take a short way, a third of the cost
of the general one, and the general one is its oracle in the tests.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from time import time
from typing import Any, NamedTuple
from zlib import crc32

from keelog.client.messages import Body, MessageOptions, OutgoingMessage
from keelog.client.operations import milliseconds
from keelog.client.options import (
    BatchOptions,
    check_batch,
    check_names,
    check_seconds,
    plain_bodies,
)
from keelog.client.send.columns import MessageBatch, kind_of
from keelog.client.send.record_batch import EncodedColumns, EncodedMessage, Later
from keelog.client.send.record_mould import SHORT, UNIQUE_KEY_START, keys_property, record_mould
from keelog.client.send.unique_key import UniqueKeys
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.routes import NO_ROUTES
from protocol.errors import BadRequest
from protocol.ids import Host
from protocol.names import QUEUE_ID_MAX
from protocol.record.codec import CRC_MASK, MAGIC_V1, SHORT_HEAD
from protocol.record.encode import ANY_QUEUE, BatchDraft, Keys, encode_columns, encode_message
from protocol.record.properties import PROPERTIES_BYTES_MAX

SHORT_WAY_OPTIONS = {"tags", "keys", "queue_id", "order_by", "unique_key"}
_NO_STORE_IP = bytes(4)
_HEAD_START = struct.Struct(">iIIi")
_INT = struct.Struct(">i")


class _Moment(NamedTuple):
    """The common part of records of one millisecond: the head from flag to prepared offset, and how
    their unique keys begin."""

    ms: int
    head: bytes
    key: str


def outgoing(body: Body | OutgoingMessage, options: MessageOptions) -> OutgoingMessage:
    """A message from a body and options. Raises BadRequest for unknown options, and for options
    beside an OutgoingMessage."""
    if isinstance(body, OutgoingMessage):
        if options:
            raise BadRequest(
                f"an OutgoingMessage takes no options beside it, as {', '.join(sorted(options))}",
                "say it in the message: dataclasses.replace(message, ...)",
            )
        return body
    check_names("a message", options, MessageOptions)
    return OutgoingMessage(body, **options)


def _later(message: OutgoingMessage) -> Later | None:
    """When readers get the message. Raises BadRequest for what is not a time."""
    if message.delay_level:
        return Later("delay_level", message.delay_level)
    if message.delay is not None:
        check_seconds("delay", message.delay)
        return Later("delay_ms", round(message.delay * 1000))
    if message.deliver_at is not None:
        return Later("deliver_ms", max(0, milliseconds(message.deliver_at, 0)))
    return None


class Encoder:
    """Encodes for one client, as the node's routes say."""

    def __init__(self, io: IoThread, keys: UniqueKeys, host: Host) -> None:
        self._io = io
        self._keys = keys
        self._host = host
        self._moment = self._moment_at(time())

    def entry(
        self,
        topic: str,
        body: Body | OutgoingMessage,
        options: MessageOptions,
        slot: Any,
        waits: bool = True,
    ) -> EncodedMessage:
        """The encoded message. `waits` False: the record says that no caller waits for the disk.

        Raises IllegalMessage and its kinds, or BadRequest.
        """
        routes = self._io.routes or NO_ROUTES
        is_plain = type(body) is bytes and len(body) <= routes.max_message_bytes
        if is_plain and waits and options.keys() <= SHORT_WAY_OPTIONS:
            try:
                entry = self._short_way(topic, body, options, routes.crc, slot)  # type: ignore[arg-type]
            except (TypeError, struct.error):
                entry = None  # values of other types, which the general way refuses with a reason
            if entry is not None:
                return entry
        message = outgoing(body, options)
        draft = message.draft(topic, self._keys.next(), int(time() * 1000), self._host)
        if not waits:
            draft = replace(draft, wait=False)
        record = encode_message(draft, routes.crc, routes.max_message_bytes)
        return EncodedMessage(
            record, draft.topic, draft.queue_id, message.order_by, draft.unique_key, slot,
            _later(message),
        )  # fmt: skip

    def _short_way(
        self, topic: str, body: bytes, options: MessageOptions, crc: bool, slot: Any
    ) -> EncodedMessage | None:
        """None where the general way has to be taken, be it only for its error."""
        mould = record_mould(topic, options.get("tags") or "", crc)
        if mould is None or options.get("unique_key"):
            return None
        queue_id = options.get("queue_id")
        order_by = options.get("order_by")
        if queue_id is None:
            queue_id = ANY_QUEUE
        elif order_by is not None or not 0 <= queue_id <= QUEUE_ID_MAX:
            return None
        if order_by is not None and not isinstance(order_by, str):
            return None
        size, middle = mould.record_bytes, mould.middle
        keys = options.get("keys", ())
        if keys != ():
            key_property = keys_property(keys)
            if key_property is None:
                return None
            size += len(key_property)
            properties_bytes = mould.properties_bytes + len(key_property)
            if properties_bytes > PROPERTIES_BYTES_MAX:
                return None
            length = SHORT.pack(properties_bytes)
            middle = b"".join((mould.topic, length, mould.tags, key_property, UNIQUE_KEY_START))
        now = time()
        moment = self._moment
        if moment.ms != int(now * 1000):
            moment = self._moment = self._moment_at(now)
        unique_key = self._keys.finish(moment.key)
        record = b"".join(
            (
                _HEAD_START.pack(size + len(body), MAGIC_V1, crc32(body) & CRC_MASK, queue_id),
                moment.head, _INT.pack(len(body)), body, middle, unique_key.encode(), mould.end,
            )
        )  # fmt: skip
        return EncodedMessage(record, topic, queue_id, order_by, unique_key, slot)

    def _moment_at(self, now: float) -> _Moment:
        ms = int(now * 1000)
        head = SHORT_HEAD.struct.pack(
            0, 0, 0, 0, 0, 0, 0, 0,
            ms, self._host.ip, self._host.port, 0, _NO_STORE_IP, 0, 0, 0, 0,
        )  # fmt: skip
        return _Moment(ms, head[_HEAD_START.size : -_INT.size], self._keys.start(now))

    def gathering(self, topic: str, options: MessageOptions, bytes_max: int) -> MessageBatch | None:
        """Empty columns; None where each message has to be encoded by itself."""
        kind = kind_of(topic, options, self._io.routes or NO_ROUTES)
        return None if kind is None else MessageBatch(kind, options, bytes_max)

    def gathered(self, messages: MessageBatch) -> EncodedColumns:
        """Encodes messages that are known to be right; they share their time."""
        kind, bodies = messages.kind, messages.bodies
        return self._columns(
            kind.topic, bodies, kind.queue_id, kind.tags, messages.all_keys(),
            kind.crc, kind.body_max,
        )  # fmt: skip

    def batch(self, topic: str, bodies: Sequence[Body], options: BatchOptions) -> EncodedColumns:
        """Encodes a batch of the user's.

        Raises IllegalMessage and its kinds, MessageTooLarge, BadRequest.
        """
        check_batch(topic, options)
        routes = self._io.routes or NO_ROUTES
        queue_id = options.get("queue_id")
        return self._columns(
            topic, plain_bodies(bodies), ANY_QUEUE if queue_id is None else queue_id,
            options.get("tags") or "", options.get("keys"), routes.crc, routes.max_message_bytes,
        )  # fmt: skip

    def _columns(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue_id: int,
        tags: str,
        keys: Keys | None,
        crc: bool,
        body_max: int,
    ) -> EncodedColumns:
        unique_keys = self._keys.run(len(bodies))
        draft = BatchDraft(
            topic=topic,
            bodies=b"".join(bodies),
            sizes=list(map(len, bodies)),
            stem=unique_keys.stem,
            counter=unique_keys.counter,
            queue_id=queue_id,
            tags=tags,
            keys=keys,
            born_timestamp=int(time() * 1000),
            born_host=self._host,
        )
        encoded = encode_columns(draft, crc, body_max)
        return EncodedColumns(topic, queue_id, encoded, unique_keys)
