"""The writer's pass over records that clients encoded: check them, then fill in what only it knows.

Record by record. `protocol.record.append` has the compiled kernel do the same where there is one;
this is what is right, and words every refusal.
"""

import re
import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge
from protocol.names import QUEUE_ID_MAX, check_topic, check_topic_for_send
from protocol.record import codec
from protocol.record.encode import ANY_QUEUE, FORBIDDEN_SYS_FLAGS
from protocol.record.properties import CRC_PROPERTY_BYTES, NAME_END, PAIR_END, crc_property

_QUEUE_ID_AT = codec.SHORT_HEAD.offsets["queue_id"]
_QUEUE_OFFSET_AT = codec.SHORT_HEAD.offsets["queue_offset"]
_OFFSETS = struct.Struct(">qq")
_STAMP = struct.Struct(">q8s")
_QUEUE_ID = struct.Struct(">i")
_PAIRS = re.compile(rb"(?:[^\x01\x02]+\x01[^\x01\x02]+\x02)*")


class AppendRules(NamedTuple):
    """What the node asks of an appended record."""

    max_message_bytes: int
    crc: bool
    """Whether every record must leave room for the whole-record checksum."""
    inner: bool = False
    """Whether the records are of the node's own processes, which write to the system's topics, and
    the messages of transactions that were committed."""


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


@dataclass(slots=True)
class SentRecords:
    """Records of one client, back to back, and what it says of them.

    `count`, `sizes` (u32 little-endian each, or empty) and `crc` (of all records; None: not
    checked) are to be checked. `any_queue` lets the node choose one queue for all.
    """

    records: bytes | memoryview
    count: int
    sizes: bytes = b""
    any_queue: bool = False
    crc: int | None = None

    def check_crc(self) -> None:
        """Raises BadRequest unless the records' CRC-32 is the one that the client names."""
        if self.crc is not None and (found := zlib.crc32(self.records)) != self.crc:
            raise BadRequest(f"the frame's CRC-32 is {found}, the header says {self.crc}")

    def check_sizes(self, sizes: list[int]) -> None:
        """Raises BadRequest unless the records are as many and as long as the client says."""
        if self.count != len(sizes) or sum(sizes) != len(self.records):
            raise BadRequest(
                f"the header says {self.count} records in {len(self.records)} bytes, "
                f"the frame holds {len(sizes)} in {sum(sizes)}",
                "count and sizes must agree with the records",
            )
        if self.sizes and self.sizes != struct.pack(f"<{len(sizes)}I", *sizes):
            raise BadRequest("the sizes in the header are not those of the records")


def check_sent(sent: SentRecords, rules: AppendRules) -> list[PlainRow]:
    """As `check_plain`, and what the client says of the records. Raises BadRequest, too."""
    sent.check_crc()
    rows = check_plain(sent.records, rules)
    sent.check_sizes([row.size for row in rows])
    return rows


def check_plain(frame: bytes | memoryview, rules: AppendRules) -> list[PlainRow]:
    """The records of one request. Raises IllegalMessage and its kinds, or BadRequest."""
    rows: list[PlainRow] = []
    position = 0
    while position < len(frame):
        found = codec.decode(frame, position, sealed=False)
        if not isinstance(found, codec.Record):
            raise _not_a_record(len(rows), position, found)
        _check_record(len(rows), found, rules)
        rows.append(
            PlainRow(position, found.size, found.topic, found.head.queue_id, found.head.sys_flag)
        )
        position += found.size
    return rows


def _check_properties(where: str, data: bytes) -> None:
    if _PAIRS.fullmatch(data) and _is_text(data):
        return
    if data[-1] != PAIR_END:
        raise IllegalMessage(
            f"{where}: the properties do not end in 0x02", "end each property with 0x02"
        )
    for pair in data[:-1].split(bytes([PAIR_END])):
        name, separator, value = pair.partition(bytes([NAME_END]))
        is_pair = name and separator and value and NAME_END not in value
        if not is_pair or not _is_text(pair):
            raise IllegalMessage(
                f"{where}: {pair[:80]!a} is no property",
                "write each as name 0x01 value 0x02, in UTF-8, none empty nor with these inside",
            )


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _not_a_record(row: int, position: int, found: codec.Filler | codec.Torn) -> IllegalMessage:
    why = found.why if isinstance(found, codec.Torn) else "a filler, which only the node writes"
    return IllegalMessage(
        f"record {row} of the batch, byte {position}: {why}",
        "sizes, counts, lengths and checksums of a batch must agree: docs/protocol.md",
    )


def _check_record(row: int, record: codec.Record, rules: AppendRules) -> None:
    """Raises the typed error for the first rule that the record breaks."""
    head = record.head
    where = f"record {row} of the batch"
    forbidden = FORBIDDEN_SYS_FLAGS
    if rules.inner:
        check_topic(record.topic)
        forbidden &= ~codec.TRANSACTION_COMMIT
    else:
        check_topic_for_send(record.topic)
    if not ANY_QUEUE <= head.queue_id <= QUEUE_ID_MAX:
        raise BadRequest(
            f"{where}: queue {head.queue_id} is outside [0, {QUEUE_ID_MAX}]", "see keelog topic ls"
        )
    if head.sys_flag & forbidden:
        raise IllegalMessage(
            f"{where}: sysFlag {head.sys_flag:#x} marks a transaction or an inner batch",
            "send plain messages",
        )
    if head.sys_flag & codec.STORE_HOST_V6:
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
    if codec.has_crc_property(record.properties_raw) != rules.crc:
        wanted = "must end in" if rules.crc else "must not have"
        raise IllegalMessage(
            f"{where}: the properties {wanted} room for the checksum __CRC32#",
            "ask for the routes, whose field crc says whether the node wants it",
        )


def patch_plain(
    buffer: bytearray | memoryview,
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
    time_at = start + codec.record_head(row.sys_flag).offsets["store_timestamp"]
    _STAMP.pack_into(buffer, time_at, stamp.store_timestamp, stamp.store_host)
    if crc:
        end = start + row.size - CRC_PROPERTY_BYTES
        with memoryview(buffer) as view:
            checksum = zlib.crc32(view[start:end])
        buffer[end : end + CRC_PROPERTY_BYTES] = crc_property(checksum)
