"""Messages on both sides of the client: `OutgoingMessage` to send, `Message` as read back."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from types import NoneType
from typing import TypedDict

from protocol.errors import BadRequest, StoreDamaged
from protocol.ids import NO_HOST, Host, parse_host
from protocol.record import codec
from protocol.record.bodies import COMPRESSED
from protocol.record.encode import ANY_QUEUE
from protocol.record.encode import NewMessage as Draft
from protocol.record.java_hash import java_hash

BODY_SHOWN_BYTES = 80
Body = bytes | bytearray | memoryview
"""The types of a body. The node stores its bytes."""

_INT: Callable[[bytes, int], tuple[int]] = struct.Struct(">i").unpack_from
_LONG: Callable[[bytes, int], tuple[int]] = struct.Struct(">q").unpack_from
_QUEUE_ID_AT = codec.SHORT_HEAD.offsets["queue_id"]
_QUEUE_OFFSET_AT = codec.SHORT_HEAD.offsets["queue_offset"]
_PHYSICAL_OFFSET_AT = codec.SHORT_HEAD.offsets["physical_offset"]
_FLAGS_AT = codec.SYS_FLAG_POSITION + 3
"""The byte of `sys_flag` that has the bits of hosts and compression."""
_HOSTS_V6 = codec.BORN_HOST_V6 | codec.STORE_HOST_V6
_BODY_AT = {
    flags: codec.record_head(flags).size
    for flags in (0, codec.BORN_HOST_V6, codec.STORE_HOST_V6, _HOSTS_V6)
}
_TEXTS = ("topic", "tags", "order_by", "unique_key", "born_host")
_NUMBERS = ("queue_id", "born_timestamp", "flag", "sys_flag", "reconsume_times", "delay_level")
_TYPES = ((_TEXTS, attrgetter(*_TEXTS), str), (_NUMBERS, attrgetter(*_NUMBERS), int))


class MessageOptions(TypedDict, total=False):
    """The options of a message beside topic and body.

    `tags`: its tag, one, by which readers choose.
    `keys`: for look-ups, a list, or text for one key.
    `properties`: names and values, both text.
    `queue_id`: the queue; the client or the node chooses one unless given.
    `order_by`: all messages with this value go to one queue, and keep their order.
    `flag`: a number of the sender's own.
    `sys_flag`: RocketMQ's bits; 0 unless given. Those of compression say how `body` is compressed:
        to send a message that was read again, give its `body` without them, or its `raw_body` with.
    `born_timestamp`: when it was made, ms since 1970; now unless given.
    `born_host`: the sender's address, `ip:port`.
    `reconsume_times`: how often it was delivered again.
    `unique_key`: its id, made by the client unless given; give that of an earlier send to send the
        same message again.
    `delay_level`: readers get it after this level of RocketMQ's delays: 1 is 1 s, 3 is 10 s, 18 is
        2 h, unless the node's `message_delay_level` says otherwise. 0: at once.
    `delay`: readers get it after this number of seconds, three days at most unless the node's
        `timer_max_delay_sec` says otherwise.
    `deliver_at`: readers get it at this time, a datetime or ms since 1970.
    """

    tags: str | None
    keys: Sequence[str] | str
    properties: Mapping[str, str]
    queue_id: int | None
    order_by: str | None
    flag: int
    sys_flag: int
    born_timestamp: int | None
    born_host: str | None
    reconsume_times: int
    unique_key: str | None
    delay_level: int
    delay: float | None
    deliver_at: datetime | int | None


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to send. All fields but the body are optional: see `keelog.MessageOptions`.

    `topic` None takes the one named in the call.
    """

    body: Body
    topic: str | None = None
    tags: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    queue_id: int | None = None
    order_by: str | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int | None = None
    born_host: str | None = None
    reconsume_times: int = 0
    unique_key: str | None = None
    delay_level: int = 0
    delay: float | None = None
    deliver_at: datetime | int | None = None

    def __repr__(self) -> str:
        return f"OutgoingMessage(topic={self.topic!r}, body={shown_body(self.body)})"

    def key_list(self) -> tuple[str, ...]:
        """The keys; a plain string is one key."""
        return (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)

    def draft(self, topic: str, unique_key: str, now_ms: int, host: Host = NO_HOST) -> Draft:
        """The message for `protocol.record.encode`. Raises BadRequest for a bad address or body."""
        if not isinstance(self.body, bytes | bytearray | memoryview):
            raise bad_body(self.body)
        self._check_types(topic)
        if self.queue_id is not None and self.order_by is not None:
            raise BadRequest("queue_id and order_by exclude each other", "leave one of them out")
        return Draft(
            topic=self.topic or topic,
            body=bytes(self.body),
            queue_id=ANY_QUEUE if self.queue_id is None else self.queue_id,
            tags=self.tags or "",
            keys=self.key_list(),
            properties=self.properties,
            unique_key=self.unique_key or self.properties.get("UNIQ_KEY") or unique_key,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=now_ms if self.born_timestamp is None else self.born_timestamp,
            born_host=host if self.born_host is None else parse_host(self.born_host),
            reconsume_times=self.reconsume_times,
        )

    def _check_types(self, topic: str) -> None:
        """Raises BadRequest, where the encoder would raise some TypeError."""
        check_type("topic", topic, str)
        for names, values_of, kind in _TYPES:
            values = values_of(self)
            if not {*map(type, values)} <= {kind, NoneType}:  # a quick look at the usual case
                for name, value in zip(names, values, strict=True):
                    check_type(name, value, kind)
        if self.delay_level < 0:
            raise BadRequest(f"delay_level is {self.delay_level}", "use 1 and more, 0 for none")
        if bool(self.delay_level) + (self.delay is not None) + (self.deliver_at is not None) > 1:
            raise BadRequest(
                "delay_level, delay and deliver_at exclude each other", "leave two of them out"
            )
        if not isinstance(self.keys, Sequence):
            raise wrong_type("keys", self.keys, "a list of text", "keys=['order-17']")
        for key in self.keys:
            check_type("a key", key, str, is_needed=True)
        if not isinstance(self.properties, Mapping):
            raise wrong_type("properties", self.properties, "a dict", "properties={'name': 'text'}")
        for name, value in self.properties.items():
            check_type("a property's name", name, str, is_needed=True)
            check_type(f"property {name!r}", value, str, is_needed=True)


class Message:
    """One stored message. Decoded and verified when a field is first asked for.

    A field of a damaged record raises StoreDamaged. Names are those of `keelog store dump`.
    """

    __slots__ = ("_is_whole", "_raw", "_record")

    def __init__(self, raw: bytes, is_whole: bool = False) -> None:
        """`is_whole`: somebody has verified it, so that single fields may be read as they stand."""
        self._raw = raw
        self._is_whole = is_whole
        self._record: codec.Record | None = None

    @property
    def record(self) -> codec.Record:
        """The decoded record. Raises StoreDamaged."""
        if self._record is None:
            found = codec.whole_record(self._raw) if self._is_whole else codec.decode(self._raw, 0)
            if not isinstance(found, codec.Record):
                why = getattr(found, "why", "a filler where a record should be")
                raise StoreDamaged("commitlog", codec.stated_offset(self._raw), why)
            self._record = found
        return self._record

    @property
    def raw(self) -> bytes:
        """The record as stored."""
        return self._raw

    @property
    def topic(self) -> str:
        """The topic."""
        return self.record.topic

    @property
    def body(self) -> bytes:
        """The body as the program gave it to its producer, which may have compressed it.

        Raises BodyUnreadable for compressed bytes that cannot be unpacked, CodecMissing where the
        library for LZ4 or ZSTD is not installed.
        """
        if self._is_whole:
            raw = self._raw
            flags = raw[_FLAGS_AT]
            if not flags & COMPRESSED:
                start = _BODY_AT[flags & _HOSTS_V6]
                return raw[start : start + _INT(raw, start - 4)[0]]
        return self.record.body

    @property
    def raw_body(self) -> bytes:
        """The body as stored: compressed where `sys_flag` says so."""
        return self.record.raw_body

    @property
    def queue_id(self) -> int:
        """The queue of the topic."""
        if self._is_whole:
            return _INT(self._raw, _QUEUE_ID_AT)[0]
        return self.record.head.queue_id

    @property
    def queue_offset(self) -> int:
        """Its ordinal in the queue."""
        if self._is_whole:
            return _LONG(self._raw, _QUEUE_OFFSET_AT)[0]
        return self.record.head.queue_offset

    @property
    def physical_offset(self) -> int:
        """Its log offset."""
        if self._is_whole:
            return _LONG(self._raw, _PHYSICAL_OFFSET_AT)[0]
        return self.record.head.physical_offset

    @property
    def store_size(self) -> int:
        """Bytes of the whole record."""
        return len(self._raw)

    @property
    def msg_id(self) -> str:
        """RocketMQ's offset message id."""
        return self.record.message_id

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY, made by the sender; empty when there is none."""
        return self.record.unique_key

    @property
    def tags(self) -> str:
        """TAGS; empty when there is none."""
        return self.record.tags

    @property
    def keys(self) -> list[str]:
        """The single keys."""
        return self.record.keys

    @property
    def properties(self) -> dict[str, str]:
        """Every property as stored, the reserved ones too."""
        return self.record.properties

    @property
    def flag(self) -> int:
        """The sender's own number."""
        return self.record.head.flag

    @property
    def sys_flag(self) -> int:
        """RocketMQ's bits, as stored: compression of `raw_body`, transaction, IPv6."""
        return self.record.head.sys_flag

    @property
    def born_timestamp(self) -> int:
        """When it was made, ms, by the sender's clock."""
        return self.record.head.born_timestamp

    @property
    def born_host(self) -> str:
        """The address of its producer: `ip:port`."""
        return str(self.record.born_host)

    @property
    def store_timestamp(self) -> int:
        """When it was stored, ms, by the node's clock."""
        return self.record.head.store_timestamp

    @property
    def store_host(self) -> str:
        """The node that stored it: `ip:port`."""
        return str(self.record.store_host)

    @property
    def body_crc(self) -> int:
        """CRC-32 of the body, 31 bits."""
        return self.record.head.body_crc

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered again."""
        return self.record.head.reconsume_times

    @property
    def prepared_transaction_offset(self) -> int:
        """Log offset of the half message; 0 for plain ones."""
        return self.record.head.prepared_transaction_offset

    @property
    def version(self) -> int:
        """1, or 2 with a two-byte topic length."""
        return self.record.version

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        record = self.record
        place = f"{record.topic!r}, queue {record.head.queue_id}, {record.head.queue_offset}"
        packed = "compressed, " if self.sys_flag & COMPRESSED else ""
        return f"<Message {place}: {packed}{shown_body(record.raw_body)}>"


def ordered_queue(order_by: str, queues: int) -> int:
    """The queue of an ordering key (SelectMessageQueueByHash).

    |Java hash rem queues|. Java's remainder has the sign of the hash; taking the magnitude before
    or after it is the same, and the least hash needs no case of its own.
    """
    return abs(java_hash(order_by)) % queues


def bad_body(body: object) -> BadRequest:
    """The error for a body of a wrong type."""
    hint = "an array has .tobytes(), a file .read()"
    if isinstance(body, str):
        hint = "encode text: body.encode()"
    elif body is None or isinstance(body, dict | list | tuple | int | float):
        hint = "encode it, as JSON: json.dumps(body).encode()"
    return BadRequest(
        f"the body is {type(body).__name__}, not bytes, bytearray or memoryview", hint
    )


def wrong_type(name: str, value: object, wanted: str, hint: str) -> BadRequest:
    """The error for a field of another type."""
    return BadRequest(f"{name} is {type(value).__name__}, not {wanted}", hint)


def check_type(name: str, value: object, kind: type, is_needed: bool = False) -> None:
    """Raises BadRequest for a field of another type; None is none, unless it is needed."""
    if (value is None and not is_needed) or isinstance(value, kind):
        return
    wanted, call = ("text", "str(value)") if kind is str else ("a whole number", "int(value)")
    hint = "decode it: value.decode()" if isinstance(value, bytes) else f"give {call}"
    raise wrong_type(name, value, wanted, hint)


def shown_body(body: Body) -> str:
    """The body for people: at most its first 80 bytes."""
    data = bytes(body)
    if len(data) <= BODY_SHOWN_BYTES:
        return repr(data)
    return f"{data[:BODY_SHOWN_BYTES]!r}… ({len(data)} bytes)"
