"""From messages to the bytes of their records, with the fields that only the node knows left zero.

The client encodes; the writer fills in queue offset, log offset, store time, store host and the
whole-record checksum (`protocol.record.patch`).

A batch of messages for one queue is encoded as a whole: what they share is made once. The compiled
kernel does it in one pass; without one each message is encoded by itself, which is the oracle of
the tests.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge, MqError, NotAllowed
from protocol.ids import IPV4_BYTES, IPV6_BYTES, NO_HOST, Host
from protocol.kernel import loader
from protocol.kernel.loader import Kernel, address
from protocol.names import (
    DEFAULT_MAX_MESSAGE_BYTES,
    QUEUE_ID_MAX,
    SHORT_TOPIC_CHARS_MAX,
    check_topic_for_send,
)
from protocol.record import codec
from protocol.record import properties as props
from protocol.record.waiting import TIMERS
from protocol.wire.frames import PAYLOAD_BYTES_MAX

ANY_QUEUE = -1
"""The node chooses the queue."""
FORBIDDEN_SYS_FLAGS = codec.TRANSACTION_MASK | codec.INNER_BATCH | codec.NEED_UNWRAP
NOT_OFFERED = {
    **dict.fromkeys((props.DELAY, *TIMERS), "delayed delivery"),
    "INNER_NUM": "inner batches",
    props.TRANSACTION: "transactions",
}
"""Properties by which a broker would do more than store the message."""
Keys = Sequence[str | Sequence[str]]

_HOST_BITS = codec.BORN_HOST_V6 | codec.STORE_HOST_V6
_NO_IP = bytes(IPV4_BYTES)
_SHORT_TOPIC, _LONG_TOPIC = struct.Struct(">b").pack, struct.Struct(">h").pack
_PROPERTIES = struct.Struct(">h").pack
_HEAD_BYTES = 88
_STEM_CHARS = 28
_DRAFT = struct.Struct("=9q")
_ROW_EXTRA_BYTES = _HEAD_BYTES + 2 + 6 + 9 + 32 + 1 + 20
"""Of a record, beside topic, tags, keys and body: head, properties' length and fixed texts."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """What a client wants stored. Times in ms; `queue_id` -1 lets the node choose.

    The host bits of `sys_flag` do not count: they follow from the hosts.
    """

    topic: str
    body: bytes
    queue_id: int = ANY_QUEUE
    tags: str = ""
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    unique_key: str = ""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = NO_HOST
    reconsume_times: int = 0
    wait: bool = True


def encode_message(
    message: NewMessage, crc: bool, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> bytes:
    """The record of `message`; `crc` leaves room for the whole-record checksum.

    Raises IllegalMessage and its kinds for what the store cannot hold.
    """
    properties = check_message(message, crc, max_message_bytes)
    return pack_record(message, properties + props.EMPTY_CRC_PROPERTY if crc else properties)


def check_message(message: NewMessage, crc: bool, max_message_bytes: int) -> bytes:
    """The properties of `message` as stored, without the checksum's. Raises as `encode_message`."""
    check_topic_for_send(message.topic)
    _check_numbers(message)
    if len(message.body) > max_message_bytes:
        raise MessageTooLarge(
            f"the body has {len(message.body)} bytes, {max_message_bytes} are allowed",
            "split the body, or raise max_message_size",
        )
    properties = message_properties(message)
    if crc:
        props.check_properties_length(len(properties) + props.CRC_PROPERTY_BYTES)
    return properties


def _check_numbers(message: NewMessage) -> None:
    if not ANY_QUEUE <= message.queue_id <= QUEUE_ID_MAX:
        raise BadRequest(
            f"queue {message.queue_id} is outside [0, {QUEUE_ID_MAX}]", "see keelog topic ls"
        )
    if len(message.born_host.ip) not in (IPV4_BYTES, IPV6_BYTES):
        raise BadRequest(
            f"the born host's address has {len(message.born_host.ip)} bytes", "4 or 16 are right"
        )
    if message.sys_flag & FORBIDDEN_SYS_FLAGS:
        raise IllegalMessage(
            f"sysFlag {message.sys_flag:#x} marks a transaction or an inner batch",
            "send plain messages",
        )
    for key in message.keys:
        if not key or props.KEY_SEPARATOR in key:
            raise IllegalMessage(f"key {key[:80]!a} is empty or holds a space", "join its words")
    for name, value, bits in (
        ("flag", message.flag, 31),
        ("sysFlag", message.sys_flag, 31),
        ("reconsumeTimes", message.reconsume_times, 31),
        ("the born host's port", message.born_host.port, 31),
        ("bornTimestamp", message.born_timestamp, 63),
    ):
        if not -(1 << bits) <= value < 1 << bits:
            raise BadRequest(
                f"{name} {value} does not fit into {bits + 1} bits", "send a smaller number"
            )


def message_properties(message: NewMessage) -> bytes:
    """The stored properties: TAGS, KEYS, UNIQ_KEY first, then the others as given."""
    pairs: list[tuple[str, str]] = []
    if message.tags:
        pairs.append((props.TAGS, message.tags))
    if message.keys:
        pairs.append((props.KEYS, props.KEY_SEPARATOR.join(message.keys)))
    if message.unique_key:
        pairs.append((props.UNIQUE_KEY, message.unique_key))
    if not message.wait:
        pairs.append((props.WAIT, "false"))
    named = {name for name, _ in pairs}
    for name, value in message.properties.items():
        if name == props.DELAY:
            raise NotAllowed(
                "property DELAY is for the node to set",
                "give a delay level: delay_level=3, or keelog produce --delay-level 3",
            )
        if name in TIMERS:
            raise NotAllowed(
                f"property {name} is for the node to set",
                "give a time: delay=90.0 or deliver_at=..., or keelog produce --delay 90s",
            )
        if name in NOT_OFFERED and (name != props.TRANSACTION or value == "true"):
            raise NotAllowed(
                f"property {name} asks for {NOT_OFFERED[name]}, which this node does not offer",
                "leave the property out, and send the message when it is due",
            )
        if name != props.CRC32 and name not in named:
            pairs.append((name, value))
    return props.encode_properties(pairs)


def pack_record(message: NewMessage, properties: bytes) -> bytes:
    """The record of `message` with ready-made properties; its other fields are not checked."""
    return pack_fields(
        message.topic, message.body, message.queue_id, properties,
        message.born_timestamp, message.born_host,
        message.flag, message.sys_flag, message.reconsume_times,
    )  # fmt: skip


def pack_fields(  # noqa: PLR0913 (the fields of a record)
    topic: str,
    body: bytes | memoryview,
    queue_id: int,
    properties: bytes,
    born_timestamp: int,
    born_host: Host,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """As `pack_record`, from the fields alone: each send of RocketMQ's clients waits for it."""
    sys_flag &= ~_HOST_BITS
    if born_host.is_v6:
        sys_flag |= codec.BORN_HOST_V6
    layout = codec.record_head(sys_flag)
    name, body_bytes = topic.encode(), len(body)
    long_topic = len(name) > SHORT_TOPIC_CHARS_MAX
    length = (_LONG_TOPIC if long_topic else _SHORT_TOPIC)(len(name))
    total = layout.size + body_bytes + len(length) + len(name) + 2 + len(properties)
    magic = codec.MAGIC_V2 if long_topic else codec.MAGIC_V1
    # In the order of RecordHead. The node alone knows the fields that are zero.
    head = layout.struct.pack(
        total, magic, zlib.crc32(body) & codec.CRC_MASK, queue_id, flag,
        0, 0, sys_flag, born_timestamp, born_host.ip, born_host.port,
        0, _NO_IP, 0, reconsume_times, prepared_transaction_offset, body_bytes,
    )  # fmt: skip
    return b"".join((head, body, length, name, _PROPERTIES(len(properties)), properties))


def record_bytes(message: NewMessage, properties: bytes, crc: bool) -> int:
    """How long the record gets with these properties, and the checksum's with `crc`."""
    topic_bytes = len(message.topic) + (2 if len(message.topic) > SHORT_TOPIC_CHARS_MAX else 1)
    head = codec.record_head(codec.BORN_HOST_V6 if message.born_host.is_v6 else 0)
    own = len(properties) + (props.CRC_PROPERTY_BYTES if crc else 0)
    return head.size + len(message.body) + topic_bytes + 2 + own


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Records back to back, and the bytes of each."""

    records: bytes
    sizes: tuple[int, ...]

    @property
    def crc(self) -> int:
        """CRC-32 of the records, for the request's header."""
        return zlib.crc32(self.records)


def encode_batch(
    messages: Iterable[NewMessage], crc: bool, max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
) -> EncodedRecords:
    """The records of `messages`, in order. Raises as `encode_message`."""
    records = [encode_message(message, crc, max_message_bytes) for message in messages]
    return EncodedRecords(b"".join(records), tuple(len(record) for record in records))


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """What is to be stored: plain bodies of one topic, with as many keys or none.

    `queue_id` -1 lets the node choose; `stem` is the unique keys' first 28 characters, `counter`
    what the first one ends in. `bodies` are all of them joined, `sizes` the bytes of each.
    """

    topic: str
    bodies: bytes
    sizes: Sequence[int]
    stem: str
    counter: int = 0
    queue_id: int = ANY_QUEUE
    tags: str = ""
    keys: Keys | None = None
    born_timestamp: int = 0
    born_host: Host = NO_HOST


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Records back to back, the bytes of each, and the CRC-32 of all."""

    records: NDArray[np.uint8]
    sizes: NDArray[np.uint32]
    crc: int


def unique_key_at(stem: str, counter: int) -> str:
    """The unique key of a batch's message: counters go around, as those of single keys do."""
    return f"{stem}{counter & 0xFFFF:04X}"


def encode_columns(draft: BatchDraft, crc: bool, max_message_bytes: int) -> EncodedBatch:
    """The records of a batch, byte for byte as `encode_message` makes each.

    Raises IllegalMessage and its kinds, or BadRequest, for the first message that is wrong;
    MessageTooLarge also when all together are more than a request may carry.
    """
    if not len(draft.sizes):
        raise BadRequest("the batch is empty", "give it at least one body")
    if draft.keys is not None and len(draft.keys) != len(draft.sizes):
        raise BadRequest(
            f"{len(draft.keys)} keys for {len(draft.sizes)} bodies",
            "give each message its keys, or leave keys out",
        )
    compiled = loader.kernel
    found = None
    if compiled is not None and max(draft.sizes) <= max_message_bytes:
        found = _encode_compiled(compiled, draft, crc)
    if found is None:
        found = encode_columns_plain(draft, crc, max_message_bytes)
    if len(found.records) > PAYLOAD_BYTES_MAX:
        raise MessageTooLarge(
            f"the batch has {len(found.records)} bytes, {PAYLOAD_BYTES_MAX} are allowed",
            "send smaller batches",
        )
    return found


def encode_columns_plain(draft: BatchDraft, crc: bool, max_message_bytes: int) -> EncodedBatch:
    """As `encode_columns`, message by message."""
    sizes = [int(size) for size in draft.sizes]
    ends = accumulate(sizes)
    bodies = draft.bodies
    messages = [
        NewMessage(
            topic=draft.topic,
            body=bodies[end - size : end],
            queue_id=draft.queue_id,
            tags=draft.tags,
            keys=() if draft.keys is None else _words(draft.keys[row]),
            unique_key=unique_key_at(draft.stem, draft.counter + row),
            born_timestamp=draft.born_timestamp,
            born_host=draft.born_host,
        )
        for row, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]
    batch = encode_batch(messages, crc, max_message_bytes)
    records = np.frombuffer(batch.records, np.uint8)
    return EncodedBatch(records, np.array(batch.sizes, np.uint32), batch.crc)


def _words(keys: str | Sequence[str]) -> tuple[str, ...]:
    """A plain string is one key, an empty one none. Raises BadRequest for what is not text."""
    if isinstance(keys, str):
        return (keys,) if keys else ()
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise BadRequest(f"{keys!r:.80} is no key", "give each message a text, or a list of texts")
    return tuple(keys)


def _joined_keys(keys: Keys | None) -> bytes | None:
    """The text of each message's property KEYS, each ended by 0x02; None where one is not a key."""
    if keys is None:
        return b""
    try:
        if set(map(type, keys)) <= {str}:
            words = texts = keys
        else:
            lists = [own if type(own) in (list, tuple) else _words(own) for own in keys]
            words = list(chain.from_iterable(lists))
            texts = list(map(props.KEY_SEPARATOR.join, lists))
        is_odd = props.KEY_SEPARATOR in "".join(words) or (words is not keys and "" in words)  # type: ignore[arg-type]
        return None if is_odd else ("\x02".join(texts) + "\x02").encode()  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return None


def _encode_compiled(compiled: Kernel, draft: BatchDraft, crc: bool) -> EncodedBatch | None:
    """None where something may be wrong, which the plain way then names."""
    keys = _joined_keys(draft.keys)
    template = _template(draft.topic, draft.tags, draft.queue_id, draft.born_host)
    if keys is None or template is None or len(draft.stem) != _STEM_CHARS:
        return None
    rows, topic, tags = len(draft.sizes), *template[1:]
    room = rows * (_ROW_EXTRA_BYTES + topic + tags) + len(draft.bodies) + len(keys)
    numbers = _DRAFT.pack(
        *(rows, len(draft.bodies), draft.born_timestamp, draft.counter, crc),
        *(topic, tags, len(keys), room),
    )
    shared = b"".join((template[0], draft.stem.encode(), keys))
    head = 4 + 4 * rows
    out = np.empty(head + room, np.uint8)
    sizes = struct.pack(f"={rows}q", *draft.sizes)
    encode = compiled.functions["encode_batch"]
    size = encode(numbers, shared, draft.bodies, sizes, address(out))
    if size < 0:
        return None
    found = out[:head].view(np.uint32)
    return EncodedBatch(out[head : head + size], found[1:], int(found[0]))


@lru_cache(maxsize=1024)
def _template(topic: str, tags: str, queue_id: int, host: Host) -> tuple[bytes, int, int] | None:
    """Head, topic and property TAGS of records that share these, and the bytes of the last two.

    None where the plain way must say what is wrong, or another head is needed.
    """
    try:
        check_topic_for_send(topic)
        encoded = props.encode_properties([(props.TAGS, tags)] if tags else [])
    except MqError:
        return None
    if not ANY_QUEUE <= queue_id <= QUEUE_ID_MAX or host.is_v6:
        return None
    empty = pack_record(NewMessage(topic=topic, body=b"", queue_id=queue_id, born_host=host), b"")[
        :-2
    ]
    return empty + encoded, len(empty) - _HEAD_BYTES, len(encoded)
