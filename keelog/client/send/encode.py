"""From what a caller says to an encoded record, ready for a batch.

Most messages are a body with at most a tag and keys. `Encoder._fast_entry` encodes those at a third
of the cost of the general encoder, which is its oracle in the tests. The common part of the records
of one topic and tag is made once, not for each message (`RecordTemplate`).

Messages that differ in body and keys alone are gathered as columns until they are encoded
(`MessageBatch`): to take one is to append to a list, and `Encoder` encodes all of them in one pass
of the kernel. A message that does not fit in there is an `EncodedMessage`, encoded by itself.
"""

import os
import secrets
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import count
from operator import attrgetter, is_
from time import localtime, mktime, time
from typing import Any, NamedTuple, overload
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
from keelog.client.results import Receipt
from keelog.client.send.record_batch import EncodedColumns, EncodedMessage, Later, hex_after
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.routes import NO_ROUTES, Routes
from protocol import ids
from protocol.errors import BadRequest, MqError
from protocol.kernel import loader
from protocol.names import QUEUE_ID_MAX, SHORT_TOPIC_CHARS_MAX, check_topic_for_send
from protocol.record import encode, properties
from protocol.record.codec import CRC_MASK, MAGIC_V1, SHORT_HEAD
from protocol.record.waiting import RECALL_BODY, RECALL_TAG

UNIQUE_KEY_CHARS = 32
"""Of a unique key (UNIQ_KEY) with an IPv4 address."""
_KEYS_START = f"{properties.KEYS}\x01".encode()
_UNIQUE_KEY_START = f"{properties.UNIQUE_KEY}\x01".encode()
_PAIR_END = b"\x02"
_SHORT = struct.Struct(">h")
COLUMN_OPTIONS = {"tags", "keys", "queue_id"}
NOT_TAKEN = -1
_COLUMN_FIELDS = {"topic", "body", "properties", *COLUMN_OPTIONS}
_OTHERS = [field for field in fields(OutgoingMessage) if field.name not in _COLUMN_FIELDS]
_NOTHING = [field.default for field in _OTHERS]
_other_fields = attrgetter(*(field.name for field in _OTHERS))
_KEYS_TYPES = {str, list, tuple}
_FAST_OPTIONS = {"tags", "keys", "queue_id", "order_by", "unique_key"}
_NO_STORE_IP = bytes(4)
_HEAD_START = struct.Struct(">iIIi")
_INT = struct.Struct(">i")


class RecordTemplate(NamedTuple):
    """The common part of records of one topic and tag, after the body.

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
def record_template(topic: str, tags: str, crc: bool) -> RecordTemplate | None:
    """None where the general way must say what is wrong, or a long topic needs another head."""
    try:
        check_topic_for_send(topic)
        encoded = properties.encode_properties([(properties.TAGS, tags)] if tags else [])
    except MqError:
        return None
    if len(topic) > SHORT_TOPIC_CHARS_MAX:
        return None
    name = bytes([len(topic)]) + topic.encode()
    end = _PAIR_END + (properties.EMPTY_CRC_PROPERTY if crc else b"")
    size = len(encoded) + len(_UNIQUE_KEY_START) + UNIQUE_KEY_CHARS + len(end)
    if size > properties.PROPERTIES_BYTES_MAX:
        return None
    middle = b"".join((name, _SHORT.pack(size), encoded, _UNIQUE_KEY_START))
    return RecordTemplate(name, encoded, end, SHORT_HEAD.size + len(name) + 2 + size, size, middle)


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


class MessageKind(NamedTuple):
    """The common part of messages in the same columns. The two sizes are of an empty message."""

    topic: str
    tags: str
    queue_id: int
    crc: bool
    body_max: int
    record_bytes: int
    properties_bytes: int


def kind_of(topic: str, options: MessageOptions, routes: Routes) -> MessageKind | None:
    """None where each message has to be encoded by itself, be it only for its error."""
    if not options.keys() <= COLUMN_OPTIONS or loader.kernel is None:
        return None
    tags, queue_id = options.get("tags") or "", options.get("queue_id")
    if queue_id is None:
        queue_id = encode.ANY_QUEUE
    elif type(queue_id) is not int or not 0 <= queue_id <= QUEUE_ID_MAX:
        return None
    if type(topic) is not str or type(tags) is not str:
        return None
    template = record_template(topic, tags, routes.crc)
    if template is None:
        return None
    return MessageKind(
        topic, tags, queue_id, routes.crc, routes.max_message_bytes,
        template.record_bytes, template.properties_bytes,
    )  # fmt: skip


def plain_parts(topic: str, message: OutgoingMessage) -> tuple[str, bytes, MessageOptions] | None:
    """Topic, body and options of a message that has no more than columns take; None for others,
    be it only for their error: a message is stricter with types than options are."""
    tags, keys, queue_id = message.tags, message.keys, message.queue_id
    is_plain = (
        all(map(is_, _other_fields(message), _NOTHING))
        and type(message.body) is bytes
        and type(topic) is str
        and type(keys) in _KEYS_TYPES
        and type(message.properties) is dict
        and not message.properties
    )
    if not is_plain:
        return None
    options: MessageOptions = {"keys": keys}
    if tags is not None:
        if type(tags) is not str:
            return None
        options["tags"] = tags
    if queue_id is not None:
        options["queue_id"] = queue_id
    own = topic if message.topic in (None, "") else message.topic
    return own, message.body, options  # type: ignore[return-value]


class MessageBatch:
    """Messages of one kind, in their order. Not safe for threads."""

    __slots__ = (
        "_body_max", "_options", "_record_bytes", "_topic",
        "bodies", "bytes", "bytes_max", "keys", "kind",
    )  # fmt: skip

    def __init__(self, kind: MessageKind, options: MessageOptions, bytes_max: int) -> None:
        """`options` are those that `kind` was made from. `bytes_max`: of all records, but a first
        one always has room."""
        self.kind = kind
        self.bodies: list[bytes] = []
        self.keys: list[str | Sequence[str]] = []
        self.bytes = 0
        self.bytes_max = bytes_max
        self._topic, self._body_max = kind.topic, kind.body_max
        self._record_bytes = kind.record_bytes
        self._options: dict[str, Any] = {**options}
        self._options.pop("keys", None)

    def take(self, topic: str, body: Body | OutgoingMessage, options: MessageOptions) -> int:
        """The row that the message has now, or NOT_TAKEN: another kind, no room, or not right."""
        if topic != self._topic or type(body) is not bytes or len(body) > self._body_max:
            return NOT_TAKEN
        size = self._record_bytes + len(body)
        keys: str | Sequence[str] = ""
        if options != self._options:
            found = self._keys_of(options)
            if found is None:
                return NOT_TAKEN
            keys, keys_bytes = found
            size += keys_bytes
        bodies = self.bodies
        if bodies and self.bytes + size > self.bytes_max:
            return NOT_TAKEN
        row = len(bodies)
        if keys:
            self.keys.extend([""] * (row - len(self.keys)))
            self.keys.append(keys)
        self.bytes += size
        bodies.append(body)
        return row

    def _keys_of(self, options: MessageOptions) -> tuple[str | Sequence[str], int] | None:
        """The keys of a message of this kind, and the bytes of their property; else None."""
        rest: dict[str, Any] = {**options}
        keys = rest.pop("keys", None)
        if rest != self._options:
            return None
        try:
            found = keys_property(keys)
        except TypeError:
            return None
        if (
            found is None
            or self.kind.properties_bytes + len(found) > properties.PROPERTIES_BYTES_MAX
        ):
            return None
        # A list may change before it is encoded.
        return keys if isinstance(keys, str) else tuple(keys), len(found)


class KeyRun(Sequence[str]):
    """Unique keys in a row: what they all begin with, and the number that the first one ends in."""

    __slots__ = ("_count", "counter", "stem")

    def __init__(self, stem: str, counter: int, size: int) -> None:
        self.stem = stem
        self.counter = counter
        self._count = size

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        rows = range(self._count)[index]
        if isinstance(rows, range):
            return [encode.unique_key_at(self.stem, self.counter + row) for row in rows]
        return encode.unique_key_at(self.stem, self.counter + rows)

    def __iter__(self) -> Iterator[str]:
        counter = self.counter
        numbers = [number & 0xFFFF for number in range(counter, counter + self._count)]
        return hex_after(self.stem, ">%dH", numbers)


class UniqueKeys:
    """Makes keys for one client, as RocketMQ's (MessageClientIDSetter): address, process, client,
    ms since the month began, counter.

    Safe for many threads. Two keys are equal only when one client makes 65,536 of them within a
    millisecond. Runs have a client number and a counter of their own: a lock for each single key
    would cost a thirtieth of its send.
    """

    def __init__(self, ip: bytes) -> None:
        # Of one more client of this process.
        self._prefix, self._run_prefix = (
            ids.unique_key(ip, os.getpid(), secrets.randbits(32), 0, 0)[:-12] for _ in range(2)
        )
        self.numbers = count(secrets.randbits(16))
        """What the next single keys end in, as 16 bits."""
        self._lock = threading.Lock()
        self._counter = secrets.randbits(16)
        self._month = _month_around(time())

    def next(self, now: float | None = None) -> str:
        """A new key; `now` is in seconds since 1970."""
        return f"{self.start(time() if now is None else now)}{next(self.numbers) & 0xFFFF:04X}"

    def run(self, size: int) -> KeyRun:
        with self._lock:
            first = self._counter
            self._counter = first + size
        return KeyRun(self.start(time(), self._run_prefix), first, size)

    def start(self, now: float, prefix: str | None = None) -> str:
        """The common beginning of all keys of a millisecond: of single ones, unless `prefix` names
        others. `now` is in seconds since 1970."""
        begin, end = self._month
        if now >= end:
            self._month = begin, _ = _month_around(now)
        # A clock that was set back gives 0, as in Java.
        since = max(0, int((now - begin) * 1000)) & 0xFFFFFFFF
        return f"{self._prefix if prefix is None else prefix}{since:08X}"


def _month_around(moment: float) -> tuple[float, float]:
    """Begin and end of the month, local time, in seconds since 1970."""
    year, month = localtime(moment)[:2]
    begin = mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    end = mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return begin, end


class _Moment(NamedTuple):
    """The common part of records of one millisecond: the head from flag to prepared offset, and how
    their unique keys begin."""

    ms: int
    head: bytes
    key: str


class Encoder:
    """Encodes for one client, as the node's routes say."""

    def __init__(self, io: IoThread, keys: UniqueKeys, host: ids.Host) -> None:
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
        if is_plain and waits and options.keys() <= _FAST_OPTIONS:
            try:
                entry = self._fast_entry(topic, body, options, routes.crc, slot)  # type: ignore[arg-type]
            except (TypeError, struct.error):
                entry = None  # values of other types, which the general way refuses with a reason
            if entry is not None:
                return entry
        message = outgoing(body, options)
        draft = message.draft(topic, self._keys.next(), int(time() * 1000), self._host)
        if not waits:
            draft = replace(draft, wait=False)
        record = encode.encode_message(draft, routes.crc, routes.max_message_bytes)
        return EncodedMessage(
            record, draft.topic, draft.queue_id, message.order_by, draft.unique_key, slot,
            _later(message),
        )  # fmt: skip

    def _fast_entry(
        self, topic: str, body: bytes, options: MessageOptions, crc: bool, slot: Any
    ) -> EncodedMessage | None:
        """None where the general way has to be taken, be it only for its error."""
        template = record_template(topic, options.get("tags") or "", crc)
        if template is None or options.get("unique_key"):
            return None
        queue_id = options.get("queue_id")
        order_by = options.get("order_by")
        if queue_id is None:
            queue_id = encode.ANY_QUEUE
        elif order_by is not None or not 0 <= queue_id <= QUEUE_ID_MAX:
            return None
        if order_by is not None and not isinstance(order_by, str):
            return None
        size, middle = template.record_bytes, template.middle
        keys = options.get("keys", ())
        if keys != ():
            key_property = keys_property(keys)
            if key_property is None:
                return None
            size += len(key_property)
            properties_bytes = template.properties_bytes + len(key_property)
            if properties_bytes > properties.PROPERTIES_BYTES_MAX:
                return None
            length = _SHORT.pack(properties_bytes)
            middle = b"".join(
                (template.topic, length, template.tags, key_property, _UNIQUE_KEY_START)
            )
        now = time()
        moment = self._moment
        if moment.ms != int(now * 1000):
            moment = self._moment = self._moment_at(now)
        unique_key = f"{moment.key}{next(self._keys.numbers) & 0xFFFF:04X}"
        record = b"".join(
            (
                _HEAD_START.pack(size + len(body), MAGIC_V1, crc32(body) & CRC_MASK, queue_id),
                moment.head, _INT.pack(len(body)), body, middle, unique_key.encode(), template.end,
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
        kind, bodies, keys = messages.kind, messages.bodies, messages.keys
        return self._columns(
            kind.topic, bodies, kind.queue_id, kind.tags,
            keys + [""] * (len(bodies) - len(keys)) if keys else None, kind.crc, kind.body_max,
        )  # fmt: skip

    def batch(self, topic: str, bodies: Sequence[Body], options: BatchOptions) -> EncodedColumns:
        """Encodes a batch of the user's.

        Raises IllegalMessage and its kinds, MessageTooLarge, BadRequest.
        """
        check_batch(topic, options)
        routes = self._io.routes or NO_ROUTES
        queue_id = options.get("queue_id")
        return self._columns(
            topic, plain_bodies(bodies), encode.ANY_QUEUE if queue_id is None else queue_id,
            options.get("tags") or "", options.get("keys"), routes.crc, routes.max_message_bytes,
        )  # fmt: skip

    def _columns(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue_id: int,
        tags: str,
        keys: encode.Keys | None,
        crc: bool,
        body_max: int,
    ) -> EncodedColumns:
        unique_keys = self._keys.run(len(bodies))
        draft = encode.BatchDraft(
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
        encoded = encode.encode_columns(draft, crc, body_max)
        return EncodedColumns(topic, queue_id, encoded, unique_keys)


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


def cancelling(receipt: Receipt) -> OutgoingMessage:
    """A message of the same second, which names the other one's unique key and never arrives.

    Raises BadRequest for the receipt of a message that waits for no time.
    """
    if not receipt.deliver_ms:
        raise BadRequest(
            "the message does not wait for a time", "cancel what was sent with delay or deliver_at"
        )
    return OutgoingMessage(
        RECALL_BODY,
        tags=RECALL_TAG,
        properties={properties.TIMER_DELETE_KEY: receipt.unique_key},
        queue_id=receipt.queue_id,
        unique_key=receipt.unique_key,
        deliver_at=receipt.deliver_ms,
    )
