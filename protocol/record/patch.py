"""The writer's pass over records that clients encoded: check them, then fill in what only it knows.

Each step is here twice: for numpy columns, and plainly for a few records, where numpy's fixed
cost (some 100 µs a pass) would be more than the work. The plain one is the tests' oracle.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge, MqError
from protocol.names import QUEUE_ID_MAX, check_topic, check_topic_for_send
from protocol.record.codec import (
    BORN_HOST_V6,
    CRC_MASK,
    SHORT_HEAD,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    Filler,
    Record,
    Torn,
    decode,
    has_crc_property,
    record_head,
)
from protocol.record.columns import (
    Bytes,
    Ints,
    RecordColumns,
    crc_property_rows,
    gather_ragged,
    group_topics,
    scan,
)
from protocol.record.encode import ANY_QUEUE, FORBIDDEN_SYS_FLAGS
from protocol.record.properties import (
    CRC_DIGITS,
    CRC_PREFIX,
    CRC_PROPERTY_BYTES,
    NAME_END,
    PAIR_END,
    crc_property,
)

PLAIN_RECORDS_MAX = 32
"""Up to here the plain path is the faster one (measured with batches of 1 to 100)."""

_ASCII_END = 0x80
_QUEUE_ID_AT = SHORT_HEAD.offsets["queue_id"]
_QUEUE_OFFSET_AT = SHORT_HEAD.offsets["queue_offset"]
_PHYSICAL_OFFSET_AT = SHORT_HEAD.offsets["physical_offset"]
_STORE_TIME_AT = SHORT_HEAD.offsets["store_timestamp"]
_V6_EXTRA_BYTES = 12
_OFFSETS = struct.Struct(">qq")
_STAMP = struct.Struct(">q8s")
_QUEUE_ID = struct.Struct(">i")
_POWERS_OF_10 = 10 ** np.arange(CRC_DIGITS, dtype=np.int64)


class AppendRules(NamedTuple):
    """What the node asks of an appended record."""

    max_message_bytes: int
    crc: bool
    """Whether every record must leave room for the whole-record checksum."""
    inner: bool = False
    """Whether the records are of the node's own processes, which write to the system's topics, and
    the messages of transactions that were committed."""

    @property
    def forbidden_sys_flags(self) -> int:
        """The bits of sysFlag that no record may have."""
        return FORBIDDEN_SYS_FLAGS & ~TRANSACTION_COMMIT if self.inner else FORBIDDEN_SYS_FLAGS

    def check_topic(self, topic: str) -> None:
        """Raises IllegalMessage for a name that RocketMQ does not allow, NotAllowed for a topic of
        the system's."""
        if self.inner:
            check_topic(topic)
        else:
            check_topic_for_send(topic)


class StoreStamp(NamedTuple):
    """What all records of a group get: the store time in ms, and IPv4 address and port."""

    store_timestamp: int
    store_host: bytes


@dataclass(frozen=True, slots=True)
class PlainRow:
    """One checked record of a request: its place in the frame, and its queue."""

    start: int
    size: int
    topic: str
    queue_id: int
    sys_flag: int


@dataclass(frozen=True, slots=True)
class CheckedColumns:
    """Checked records of one or many requests; `topic_id` indexes `topics`."""

    columns: RecordColumns
    topics: list[str]
    topic_id: Ints


def check_plain(frame: bytes | memoryview, rules: AppendRules) -> list[PlainRow]:
    """The records of one request. Raises IllegalMessage and its kinds, or BadRequest."""
    rows: list[PlainRow] = []
    position = 0
    while position < len(frame):
        found = decode(frame, position, sealed=False)
        if not isinstance(found, Record):
            raise _not_a_record(len(rows), position, found)
        _check_record(len(rows), found, rules)
        rows.append(
            PlainRow(position, found.size, found.topic, found.head.queue_id, found.head.sys_flag)
        )
        position += found.size
    return rows


def check_columns(frame: Bytes, rules: AppendRules) -> CheckedColumns:
    """As `check_plain`, all records at once; of several bad records the first is named."""
    found = scan(frame, base=None, sealed=False)
    columns = found.columns
    suspect = (columns.queue_id < ANY_QUEUE) | (columns.queue_id > QUEUE_ID_MAX)
    suspect |= (columns.sys_flag & (rules.forbidden_sys_flags | STORE_HOST_V6)) != 0
    suspect |= columns.body_length > rules.max_message_bytes
    last = frame[columns.start + columns.size - 1]
    suspect |= (columns.properties_length > 0) & (last != PAIR_END)
    marked, _ = crc_property_rows(columns)
    suspect |= marked != rules.crc
    if not properties_alternate(columns):
        suspect[:] = True
    topics, topic_id = group_topics(columns)
    legal = np.array([_is_legal_topic(topic, rules) for topic in topics] or [True])
    suspect |= ~legal[topic_id] if len(topic_id) else suspect
    for row in np.flatnonzero(suspect):
        _check_record(int(row), columns.record(int(row)), rules)
    assert not suspect.any(), "the columns suspect what the plain check takes"
    if found.stop is not None:
        raise _not_a_record(len(columns), found.end, found.stop)
    return CheckedColumns(columns, topics, topic_id)


def properties_alternate(columns: RecordColumns) -> bool:
    """Whether all properties are pairs of `name 0x01 value 0x02`, neither empty, and text.

    Properties end in 0x02, so the separators of all records together alternate when each's do.
    """
    flat, _ = gather_ragged(columns.data, columns.properties_start, columns.properties_length)
    at = np.flatnonzero((flat == NAME_END) | (flat == PAIR_END))
    kinds, names = flat[at], np.append(-1, at)[:-1]
    pairs = bool((kinds[0::2] == NAME_END).all() and (kinds[1::2] == PAIR_END).all())
    return (
        pairs
        and len(at) % 2 == 0
        and bool((at[0::2] > names[0::2] + 1).all())
        and bool((at[1::2] > at[0::2] + 1).all())
        and bool((flat < _ASCII_END).all() or _is_text(flat))
    )


def _is_text(flat: Bytes) -> bool:
    """Whether joined properties are UTF-8; each ends in 0x02, so none can lean on the next."""
    try:
        flat.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_properties(where: str, data: bytes) -> None:
    if data and data[-1] != PAIR_END:
        raise IllegalMessage(
            f"{where}: the properties do not end in 0x02", "end each property with 0x02"
        )
    for pair in data[:-1].split(bytes([PAIR_END])) if data else []:
        name, separator, value = pair.partition(bytes([NAME_END]))
        is_pair = name and separator and value and NAME_END not in value
        if not is_pair or not _is_text_bytes(pair):
            raise IllegalMessage(
                f"{where}: {pair[:80]!a} is no property",
                "write each as name 0x01 value 0x02, in UTF-8, none empty nor with these inside",
            )


def _is_text_bytes(data: bytes) -> bool:
    return _is_text(np.frombuffer(data, np.uint8))


def _not_a_record(row: int, position: int, found: Filler | Torn) -> IllegalMessage:
    why = found.why if isinstance(found, Torn) else "a filler, which only the node writes"
    return IllegalMessage(
        f"record {row} of the batch, byte {position}: {why}",
        "sizes, counts, lengths and checksums of a batch must agree: docs/protocol.md",
    )


def _is_legal_topic(topic: str, rules: AppendRules) -> bool:
    try:
        rules.check_topic(topic)
    except MqError:
        return False
    return True


def _check_record(row: int, record: Record, rules: AppendRules) -> None:
    """Raises the typed error for the first rule that the record breaks."""
    head = record.head
    where = f"record {row} of the batch"
    rules.check_topic(record.topic)
    if not ANY_QUEUE <= head.queue_id <= QUEUE_ID_MAX:
        raise BadRequest(
            f"{where}: queue {head.queue_id} is outside [0, {QUEUE_ID_MAX}]", "see keelog topic ls"
        )
    if head.sys_flag & rules.forbidden_sys_flags:
        raise IllegalMessage(
            f"{where}: sysFlag {head.sys_flag:#x} marks a transaction or an inner batch",
            "send plain messages",
        )
    if head.sys_flag & STORE_HOST_V6:
        raise IllegalMessage(
            f"{where}: the store host must have 4 bytes", "clear bit 0x20 of sysFlag"
        )
    if head.body_length > rules.max_message_bytes:
        raise MessageTooLarge(
            f"{where}: the body has {head.body_length} bytes, "
            f"{rules.max_message_bytes} are allowed",
            "split the body, or raise max_message_size",
        )
    _check_properties(where, record.properties_raw)
    if has_crc_property(record.properties_raw) != rules.crc:
        wanted = "must end in" if rules.crc else "must not have"
        raise IllegalMessage(
            f"{where}: the properties {wanted} room for the checksum __CRC32#",
            "ask for the routes, whose field crc says whether the node wants it",
        )


def patch_plain(
    buffer: bytearray,
    row: PlainRow,
    queue_offset: int,
    physical_offset: int,
    stamp: StoreStamp,
    crc: bool,
) -> None:
    """Fills in one record at `row.start` of `buffer`, for the queue `row.queue_id`."""
    start = row.start
    _QUEUE_ID.pack_into(buffer, start + _QUEUE_ID_AT, row.queue_id)
    _OFFSETS.pack_into(buffer, start + _QUEUE_OFFSET_AT, queue_offset, physical_offset)
    time_at = start + record_head(row.sys_flag).offsets["store_timestamp"]
    _STAMP.pack_into(buffer, time_at, stamp.store_timestamp, stamp.store_host)
    if crc:
        end = start + row.size - CRC_PROPERTY_BYTES
        with memoryview(buffer) as view:
            checksum = zlib.crc32(view[start:end])
        buffer[end : end + CRC_PROPERTY_BYTES] = crc_property(checksum)


def patch_columns(
    columns: RecordColumns,
    queue_id: Ints,
    queue_offset: Ints,
    physical_offset: Ints,
    stamp: StoreStamp,
    crc: bool,
) -> None:
    """As `patch_plain` for all records; `columns.data` must be writable."""
    data = columns.data
    start = columns.start
    _scatter(data, start + _QUEUE_ID_AT, queue_id, ">i4")
    _scatter(data, start + _QUEUE_OFFSET_AT, queue_offset, ">i8")
    _scatter(data, start + _PHYSICAL_OFFSET_AT, physical_offset, ">i8")
    time_at = start + _STORE_TIME_AT
    time_at += np.where(columns.sys_flag & BORN_HOST_V6, _V6_EXTRA_BYTES, 0)
    _scatter(data, time_at, np.full(len(start), stamp.store_timestamp), ">i8")
    host = int.from_bytes(stamp.store_host, "big", signed=True)
    _scatter(data, time_at + 8, np.full(len(start), host), ">i8")
    if crc:
        _seal_columns(data, start, start + columns.size - CRC_PROPERTY_BYTES)


def _scatter(data: Bytes, positions: Ints, values: Ints, kind: str) -> None:
    width = np.dtype(kind).itemsize
    every = np.ndarray((len(data) - width + 1,), np.dtype(kind), data.data, strides=(1,))
    every[positions] = values


def _seal_columns(data: Bytes, start: Ints, end: Ints) -> None:
    """Writes the whole-record checksums; the rest of the property is there already."""
    view = data.data
    crc32 = zlib.crc32
    checksums = np.array(
        [crc32(view[a:b]) & CRC_MASK for a, b in zip(start.tolist(), end.tolist(), strict=True)],
        np.int64,
    )
    digits = checksums[:, None] // _POWERS_OF_10 % 10 + ord("0")
    data[(end + len(CRC_PREFIX))[:, None] + np.arange(CRC_DIGITS)] = digits
