"""From what a caller says to an encoded record, ready for a batch.

Most messages are a body with at most a tag and keys. Those take a short way, a third of the cost
of the general one, and the general one is its oracle in the tests.
"""

import struct
from functools import lru_cache
from time import time
from typing import Any, NamedTuple
from zlib import crc32

from client.messages import Body, MessageOptions, OutgoingMessage
from client.send.record_batch import EncodedMessage
from client.send.unique_key import UNIQUE_KEY_CHARS, UniqueKeys
from client.transport.io_thread import IoThread
from protocol.errors import BadRequest, MqError
from protocol.message_id import Host
from protocol.names import QUEUE_ID_MAX, SHORT_TOPIC_CHARS_MAX, check_topic_for_send
from protocol.record.codec import CRC_MASK, MAGIC_V1, SHORT_HEAD
from protocol.record.encode import ANY_QUEUE, encode_message
from protocol.record.properties import (
    EMPTY_CRC_PROPERTY,
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQUE_KEY,
    encode_properties,
)
from protocol.sizes import DEFAULT_MAX_MESSAGE_BYTES
from protocol.wire.frames import PAYLOAD_BYTES_MAX

SHORT_WAY_OPTIONS = {"tags", "keys", "queue_id", "order_by", "unique_key"}
_KEYS_START = f"{KEYS}\x01".encode()
_UNIQUE_KEY_START = f"{UNIQUE_KEY}\x01".encode()
_PAIR_END = b"\x02"
_NO_STORE_IP = bytes(4)
_HEAD_START = struct.Struct(">iIIi")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")


class Mould(NamedTuple):
    """What records of one topic and tag share after the body.

    `topic`: its length and name; `tags`: the property TAGS; `end`: what follows the unique key.
    The two sizes, and `middle`, all between body and unique key, are those without keys.
    """

    topic: bytes
    tags: bytes
    end: bytes
    record_bytes: int
    properties_bytes: int
    middle: bytes


@lru_cache(maxsize=1024)
def record_mould(topic: str, tags: str, crc: bool) -> Mould | None:
    """None where the general way must say what is wrong, or a long topic needs another head."""
    try:
        check_topic_for_send(topic)
        encoded = encode_properties([(TAGS, tags)] if tags else [])
    except MqError:
        return None
    if len(topic) > SHORT_TOPIC_CHARS_MAX:
        return None
    name = bytes([len(topic)]) + topic.encode()
    end = _PAIR_END + (EMPTY_CRC_PROPERTY if crc else b"")
    size = len(encoded) + len(_UNIQUE_KEY_START) + UNIQUE_KEY_CHARS + len(end)
    if size > PROPERTIES_BYTES_MAX:
        return None
    middle = b"".join((name, _SHORT.pack(size), encoded, _UNIQUE_KEY_START))
    return Mould(name, encoded, end, SHORT_HEAD.size + len(name) + 2 + size, size, middle)


class _Moment(NamedTuple):
    """What records of one millisecond share: the head from flag to prepared offset, and how
    their unique keys begin."""

    ms: int
    head: bytes
    key: str


def outgoing(body: Body | OutgoingMessage, options: MessageOptions) -> OutgoingMessage:
    """A message from a body and options. Raises BadRequest for options that nobody knows, or that
    would be lost."""
    if isinstance(body, OutgoingMessage):
        if options:
            raise BadRequest(
                f"an OutgoingMessage takes no options beside it, as {', '.join(sorted(options))}",
                "say it in the message: dataclasses.replace(message, ...)",
            )
        return body
    try:
        return OutgoingMessage(body, **options)
    except TypeError as error:
        raise BadRequest(f"a message has no such option: {error}", "see help(keelog)") from None


class Encoder:
    """Encodes for one client, as the node's routes say."""

    def __init__(self, io: IoThread, keys: UniqueKeys, host: Host) -> None:
        self._io = io
        self._keys = keys
        self._host = host
        self._moment = self._moment_at(time())

    @property
    def batch_bytes_max(self) -> int:
        """The largest record batch that a node takes."""
        return PAYLOAD_BYTES_MAX

    def entry(
        self, topic: str, body: Body | OutgoingMessage, options: MessageOptions, slot: Any
    ) -> EncodedMessage:
        """The encoded message. Raises IllegalMessage and its kinds, or BadRequest."""
        routes = self._io.routes
        crc = routes is None or routes.crc
        body_max = DEFAULT_MAX_MESSAGE_BYTES if routes is None else routes.max_message_bytes
        if type(body) is bytes and len(body) <= body_max and options.keys() <= SHORT_WAY_OPTIONS:
            try:
                entry = self._short_way(topic, body, options, crc, slot)
            except (TypeError, struct.error):
                entry = None  # values of other types, which the general way refuses with a reason
            if entry is not None:
                return entry
        message = outgoing(body, options)
        draft = message.draft(topic, self._keys.next(), int(time() * 1000), self._host)
        record = encode_message(draft, crc, body_max)
        return EncodedMessage(
            record, draft.topic, draft.queue_id, message.order_by, draft.unique_key, slot
        )

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
            length = _SHORT.pack(properties_bytes)
            middle = b"".join((mould.topic, length, mould.tags, key_property, _UNIQUE_KEY_START))
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


def keys_property(keys: Any) -> bytes | None:
    """The property KEYS, empty without keys; None when a key cannot be one."""
    if isinstance(keys, str):
        keys = (keys,)
    if keys is None:
        return None
    if not keys:
        return b""
    text = " ".join(keys)
    if "\x01" in text or "\x02" in text or text.count(" ") >= len(keys) or not all(keys):
        return None
    try:
        return _KEYS_START + text.encode() + _PAIR_END
    except UnicodeEncodeError:
        return None
