"""Whether bytes that are about to be handed out are the records that were asked for.

Place and lengths first, then the checksum, then whose they are: a queue unit that was damaged may
name a record that is whole, but another queue's. What cannot be accepted at a glance `decode`
decides. The compiled kernel does the same for many while it copies
(`protocol.derived.kernel_calls.copy_messages`).
"""

import struct
import zlib
from collections.abc import Iterable
from typing import NamedTuple

from protocol.ids import Queue, queue_of
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.codec import (
    BORN_HOST_V6,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    SHORT_HEAD,
    STORE_HOST_V6,
    Record,
    decode,
)
from protocol.record.properties import CRC_PROPERTY_BYTES, crc_property

_HEAD = struct.Struct(">iI4xi4xqqi").unpack_from
"""TOTALSIZE, MAGICCODE, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET, SYSFLAG."""
_INT = struct.Struct(">i").unpack_from
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6


class SealedRecord(NamedTuple):
    """A verified record: which message of which queue it is, and where in the log."""

    queue: Queue
    number: int
    offset: int
    sys_flag: int
    raw: bytes

    @classmethod
    def of(cls, record: Record) -> "SealedRecord":
        """Of one that was decoded."""
        head = record.head
        queue = Queue(record.topic, head.queue_id)
        return cls(queue, head.queue_offset, head.physical_offset, head.sys_flag, record.raw)


def at_a_glance(data: bytes, start: int, offset: int) -> SealedRecord | None:
    """The record at `start` of `data` that names the log offset `offset`, verified.

    None for all that is not plain: another version, long hosts, no checksum of the whole, damage.
    `decode` finds out what that is.
    """
    if len(data) - start < RECORD_BYTES_MIN:
        return None
    size, magic, queue_id, number, place, sys_flag = _HEAD(data, start)
    end = start + size
    if magic != MAGIC_V1 or place != offset or sys_flag & _HOSTS_V6 or end > len(data):
        return None
    (body_bytes,) = _INT(data, start + SHORT_HEAD.size - 4)
    topic_at = start + SHORT_HEAD.size + body_bytes + 1
    sealed_to = end - CRC_PROPERTY_BYTES
    if body_bytes < 0 or topic_at > sealed_to:
        return None
    properties_at = topic_at + data[topic_at - 1] + 2
    if properties_at > sealed_to or data[topic_at - 1] > SHORT_TOPIC_CHARS_MAX:
        return None
    if properties_at + int.from_bytes(data[properties_at - 2 : properties_at], "big") != end:
        return None
    raw = data[start:end]
    if raw[-CRC_PROPERTY_BYTES:] != crc_property(zlib.crc32(raw[:-CRC_PROPERTY_BYTES])):
        return None
    try:
        topic = data[topic_at : properties_at - 2].decode()
    except UnicodeDecodeError:
        return None
    return SealedRecord(queue_of(topic, queue_id), number, offset, sys_flag, raw)


def sealed_at(data: bytes, start: int, offset: int) -> SealedRecord | None:
    """The record at `start` of `data` that names the log offset `offset`; None without one."""
    found = at_a_glance(data, start, offset)
    if found is None:
        record = decode(data, start, offset)
        found = SealedRecord.of(record) if isinstance(record, Record) else None
    return found


def first_unfit(data: bytes, queue: Queue, wanted: Iterable[tuple[int, int, int]]) -> int:
    """How many records of one queue, back to back in `data`, are those wanted, before one is not.

    `wanted`: number (QUEUEOFFSET), log offset and size of each, in bytes. It is one where it is
    whole, sealed as its writer left it, in its place, of its queue.
    """
    row = start = 0
    for number, offset, size in wanted:
        found = sealed_at(data, start, offset)
        if found is None or found[:2] != (queue, number) or len(found.raw) != size:
            break
        row, start = row + 1, start + size
    return row
