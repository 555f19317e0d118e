"""The CommitLog record: its layout, and the plain decoder.

A record is the fixed fields of `RecordHead` (hosts of 4 or 16 bytes, as two bits of `sys_flag`
say), then body, topic and properties, each after its length. `decode` is the oracle for
`protocol.record.columns`, which does the same for many records at once.
"""

import re
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

from protocol.errors import BodyUnreadable, CodecMissing
from protocol.ids import IPV4_BYTES, IPV6_BYTES, Host, offset_message_id
from protocol.layout import Readable, StructLayout, Wire
from protocol.names import SCHEDULE_TOPIC
from protocol.record import properties as props
from protocol.record.bodies import COMPRESSION_BITS, BrokenBody, UnknownCodec, unpack
from protocol.record.java_hash import tags_code

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_FILLER = 0xCBD43194

MULTI_TAGS = 0x2
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80
SENDERS_BITS = COMPRESSION_BITS | MULTI_TAGS
"""Bits that a reader of the message needs when it is sent again; the node sets the others."""

CRC_MASK = 0x7FFFFFFF
FILLER_BYTES = 8
TAIL_BYTES_V1 = 1 + 2
"""Length fields of topic and properties; one more byte in v2."""
TornKind = Literal["end", "cut", "bad_magic", "bad_size", "wrong_place", "bad_crc"]
DEFAULT_DELAY_LEVELS_MS = tuple(
    1000 * seconds
    for seconds in (
        *(1, 5, 10, 30),
        *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(3600, 7200),
    )
)
"""RocketMQ's messageDelayLevel: level 1 is the first."""

_CRC_NAME = props.CRC32.encode()
_PHYSICAL_OFFSET_BYTES = 8
_BYTE, _SHORT = struct.Struct(">b").unpack_from, struct.Struct(">h").unpack_from
_JAVA_INT = re.compile(r"[+-]?\d{1,4000}")


class RecordHead(NamedTuple):
    """Everything before the body, and the body's length."""

    total_size: Annotated[int, Wire(">i4", "TOTALSIZE: bytes of the whole record")]
    magic: Annotated[int, Wire(">u4", "MAGICCODE: daa320a7 (v1) or daa320ab (v2)")]
    body_crc: Annotated[int, Wire(">i4", "BODYCRC: CRC-32 of the body & 7fffffff")]
    queue_id: Annotated[int, Wire(">i4", "QUEUEID")]
    flag: Annotated[int, Wire(">i4", "FLAG: the sender's own number")]
    queue_offset: Annotated[int, Wire(">i8", "QUEUEOFFSET")]
    physical_offset: Annotated[int, Wire(">i8", "PHYSICALOFFSET: the record's own log offset")]
    sys_flag: Annotated[int, Wire(">i4", "SYSFLAG: compression, transaction, IPv6 bits")]
    born_timestamp: Annotated[int, Wire(">i8", "BORNTIMESTAMP, ms")]
    born_ip: Annotated[bytes, Wire("ip", "BORNHOST: address; 4 bytes, or 16 with sysFlag 0x10")]
    born_port: Annotated[int, Wire(">i4", "BORNHOST: port")]
    store_timestamp: Annotated[int, Wire(">i8", "STORETIMESTAMP, ms")]
    store_ip: Annotated[bytes, Wire("ip", "STOREHOST: address; 4 bytes, or 16 with 0x20")]
    store_port: Annotated[int, Wire(">i4", "STOREHOST: port")]
    reconsume_times: Annotated[int, Wire(">i4", "RECONSUMETIMES")]
    prepared_transaction_offset: Annotated[int, Wire(">i8", "PREPARED TRANSACTION OFFSET")]
    body_length: Annotated[int, Wire(">i4", "BODY LENGTH; the body follows")]


class FillerHead(NamedTuple):
    """The blank record that closes a segment; what follows it in the segment is undefined."""

    size: Annotated[int, Wire(">i4", "bytes from here to the segment's end")]
    magic: Annotated[int, Wire(">u4", "cbd43194")]


FILLER_HEAD = StructLayout(FillerHead)
_SIZE_AND_MAGIC = FILLER_HEAD.struct.unpack_from


def _head_layout(sys_flag: int) -> StructLayout[RecordHead]:
    born = IPV6_BYTES if sys_flag & BORN_HOST_V6 else IPV4_BYTES
    store = IPV6_BYTES if sys_flag & STORE_HOST_V6 else IPV4_BYTES
    return StructLayout(RecordHead, {"born_ip": born, "store_ip": store})


_HEADS = {
    flag: _head_layout(flag)
    for flag in (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6)
}


def record_head(sys_flag: int) -> StructLayout[RecordHead]:
    """The fixed part of a record with these host bits."""
    return _HEADS[sys_flag & (BORN_HOST_V6 | STORE_HOST_V6)]


SHORT_HEAD = record_head(0)
SYS_FLAG_POSITION = SHORT_HEAD.offsets["sys_flag"]

_PHYSICAL_OFFSET_AT = SHORT_HEAD.offsets["physical_offset"]
RECORD_BYTES_MIN = SHORT_HEAD.size + TAIL_BYTES_V1


def stated_offset(data: bytes | bytearray | memoryview, start: int = 0) -> int:
    """The log offset that the record at `start` of `data` states, without a look at the rest."""
    at = start + _PHYSICAL_OFFSET_AT
    return int.from_bytes(data[at : at + _PHYSICAL_OFFSET_BYTES], "big")


@dataclass(frozen=True, slots=True)
class Torn:
    """No whole record is at `position`.

    `end`: only zeros are there (space never written); `cut`: the buffer ends before the
    record does; the others name what does not agree.
    """

    position: int
    kind: TornKind
    why: str


@dataclass(frozen=True, slots=True)
class Filler:
    """The blank record at a segment's end; `size` is what its own field says."""

    position: int
    size: int


@dataclass(frozen=True)
class Record:
    """One message as stored. `raw` is its bytes, `raw_body` the body's; the plain body and the
    properties are made when asked for."""

    head: RecordHead
    topic: str
    raw_body: bytes
    properties_raw: bytes
    raw: bytes

    @property
    def physical_offset(self) -> int:
        """Log offset."""
        return self.head.physical_offset

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return self.head.total_size

    @property
    def version(self) -> int:
        """1, or 2 with a two-byte topic length."""
        return 1 if self.head.magic == MAGIC_V1 else 2

    @property
    def born_host(self) -> Host:
        """Who made the message."""
        return Host(self.head.born_ip, self.head.born_port)

    @property
    def store_host(self) -> Host:
        """The node that stored it first."""
        return Host(self.head.store_ip, self.head.store_port)

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id."""
        return offset_message_id(self.store_host, self.head.physical_offset)

    @cached_property
    def body(self) -> bytes:
        """The body without its producer's compression.

        Raises BodyUnreadable for one that cannot be unpacked, CodecMissing where nothing here can.
        """
        try:
            return unpack(self.raw_body, self.head.sys_flag)
        except BrokenBody as error:
            raise BodyUnreadable(
                "commitlog", self.physical_offset, f"{self._body_name}: {error}"
            ) from None
        except UnknownCodec as error:
            why, what_helps = error.args
            raise CodecMissing(
                f"{self._body_name}, log offset {self.physical_offset}: {why}",
                f"{what_helps}; its stored bytes are in raw_body, and printed with --raw-body",
            ) from None

    @property
    def _body_name(self) -> str:
        return f"the body of message {self.head.queue_offset} of {self.topic}/{self.head.queue_id}"

    @cached_property
    def properties(self) -> dict[str, str]:
        """As text; see `protocol.record.properties.decode_properties`."""
        return props.decode_properties(self.properties_raw)

    @property
    def tags(self) -> str:
        """TAGS, empty when there is none."""
        return self.properties.get(props.TAGS, "")

    @property
    def keys(self) -> list[str]:
        """The single keys of KEYS."""
        return props.split_keys(self.properties.get(props.KEYS, ""))

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY, empty when there is none."""
        return self.properties.get(props.UNIQUE_KEY, "")


def decode(
    data: Readable,
    position: int,
    expected_offset: int | None = None,
    sealed: bool = True,
    verify: bool = True,
) -> Record | Filler | Torn:
    """The record at `position` of `data`, whole and verified, or what is there instead.

    Sizes are bounded by what is left, then magic, place (`expected_offset`, when given), lengths
    and checksum are checked before any other field is believed. Never raises for bad bytes.
    `sealed=False` is for records that the writer has not filled in yet: only the body's checksum
    counts. `verify=False` leaves the checksums out.
    """
    left = len(data) - position
    if left < FILLER_BYTES:
        return Torn(position, "cut", f"{left} bytes left, a record needs {RECORD_BYTES_MIN}")
    size, magic = _SIZE_AND_MAGIC(data, position)
    if magic == MAGIC_FILLER:
        return Filler(position, size)
    if magic not in (MAGIC_V1, MAGIC_V2):
        if size == 0 and magic == 0:
            return Torn(position, "end", "nothing was written here")
        return Torn(position, "bad_magic", f"magic is {magic:08x}")
    if size < RECORD_BYTES_MIN:
        return Torn(position, "bad_size", f"a record of {size} bytes cannot be")
    if size > left:
        return Torn(position, "cut", f"a record of {size} bytes, {left} are left")
    record = bytes(data[position : position + size])
    return _decode_whole(record, position, expected_offset, sealed, verify)


def _decode_whole(
    raw: bytes, position: int, expected_offset: int | None, sealed: bool, verify: bool
) -> Record | Torn:
    size = len(raw)
    layout = record_head(int.from_bytes(raw[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big"))
    version_bytes = 0 if int.from_bytes(raw[4:8], "big") == MAGIC_V1 else 1
    tail_bytes = TAIL_BYTES_V1 + version_bytes
    if size < layout.size + tail_bytes:
        return Torn(position, "bad_size", f"{size} bytes are too few for the hosts it says it has")
    head = layout.read(raw)
    if expected_offset is not None and head.physical_offset != expected_offset:
        why = f"says that it stands at {head.physical_offset}, not {expected_offset}"
        return Torn(position, "wrong_place", why)
    if not 0 <= head.body_length <= size - layout.size - tail_bytes:
        return Torn(position, "bad_size", f"body length {head.body_length} in {size} bytes")
    topic_at = layout.size + head.body_length
    (topic_length,) = (_SHORT if version_bytes else _BYTE)(raw, topic_at)
    topic_at += 1 + version_bytes
    if not 0 <= topic_length <= size - topic_at - 2:
        return Torn(position, "bad_size", f"topic length {topic_length} in {size} bytes")
    properties_at = topic_at + topic_length + 2
    (properties_length,) = _SHORT(raw, properties_at - 2)
    if properties_at + properties_length != size:
        why = f"lengths add up to {properties_at + properties_length}, not {size}"
        return Torn(position, "bad_size", why)
    body = raw[layout.size : layout.size + head.body_length]
    is_sealed = sealed and verify and states_crc(raw[properties_at:])
    why = _check_whole(raw) if is_sealed else _check_body(body, head.body_crc) if verify else ""
    if why:
        return Torn(position, "bad_crc", why)
    try:
        topic = raw[topic_at : topic_at + topic_length].decode()
    except UnicodeDecodeError:
        return Torn(position, "bad_size", "the topic is not UTF-8")
    return Record(head, topic, body, raw[properties_at:], raw)


def whole_record(raw: bytes) -> Record:
    """As `decode`, in half the time, for the bytes of a record that somebody has verified."""
    layout = record_head(int.from_bytes(raw[SYS_FLAG_POSITION : SYS_FLAG_POSITION + 4], "big"))
    head = layout.read(raw)
    body_end = layout.size + head.body_length
    topic_at = body_end + (1 if head.magic == MAGIC_V1 else 2)
    topic_end = topic_at + int.from_bytes(raw[body_end:topic_at], "big")
    topic, body = raw[topic_at:topic_end].decode(), raw[layout.size : body_end]
    return Record(head, topic, body, raw[topic_end + 2 :], raw)


def has_crc_property(properties: bytes) -> bool:
    """Whether properties end in `__CRC32#`, which then covers all the bytes before it."""
    return (
        len(properties) >= props.CRC_PROPERTY_BYTES
        and properties.startswith(props.CRC_PREFIX, -props.CRC_PROPERTY_BYTES)
        and properties[-1] == props.PAIR_END
    )


def states_crc(properties: bytes) -> bool:
    """As `has_crc_property`, but one of its ten fixed bytes may be damaged.

    Else a flipped bit in the name would hide the checksum that it falsifies.
    """
    tail = properties[-props.CRC_PROPERTY_BYTES :]
    if len(tail) < props.CRC_PROPERTY_BYTES:
        return False
    separators = (tail[len(_CRC_NAME)] == props.NAME_END) + (tail[-1] == props.PAIR_END)
    if tail.startswith(_CRC_NAME):
        return separators >= 1
    return separators == 2 and sum(map(int.__ne__, tail, _CRC_NAME)) == 1


def _check_whole(raw: bytes) -> str:
    """Empty when the whole-record checksum agrees, else why not."""
    expected = props.crc_property(zlib.crc32(memoryview(raw)[: -props.CRC_PROPERTY_BYTES]))
    if raw[-props.CRC_PROPERTY_BYTES :] != expected:
        return "the checksum of the whole record does not agree"
    return ""


def _check_body(body: bytes, body_crc: int) -> str:
    """Empty when the body's checksum agrees, else why not; an empty body has none."""
    found = zlib.crc32(body) & CRC_MASK
    if body and found != body_crc:
        return f"the body's checksum is {found}, the record says {body_crc}"
    return ""


def filler(size: int) -> bytes:
    """The eight bytes that close a segment `size` bytes before its end."""
    return FILLER_HEAD.pack(FillerHead(size, MAGIC_FILLER))


def unit_tags_code(
    record: Record, delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS
) -> int | None:
    """The tags code of the record's queue unit (CommitLog#checkMessageAndReturnSize).

    None for a record of the schedule topic whose DELAY is not a number, which a broker takes for
    damage.
    """
    delay = record.properties.get(props.DELAY)
    if record.topic == SCHEDULE_TOPIC and delay is not None:
        return delivery_time(
            delay, record.head.store_timestamp, delay_levels_ms, tags_code(record.tags)
        )
    return tags_code(record.tags)


def delivery_time(
    delay: str, store_timestamp: int, delay_levels_ms: tuple[int, ...], otherwise: int
) -> int | None:
    """When a delayed message is due: `otherwise` for levels of 0 and below, None for no number.

    Numbers are Java's: a level must be an int, a time wraps at 64 bits.
    """
    if _JAVA_INT.fullmatch(delay) is None or not -(2**31) <= int(delay) < 2**31:
        return None
    level = min(int(delay), len(delay_levels_ms))
    if level <= 0:
        return otherwise
    due = store_timestamp + delay_levels_ms[level - 1]
    return (due + 2**63) % 2**64 - 2**63
