"""Whether bytes that are about to be handed out are the records that were asked for.

Place and lengths first, then the checksum, then whose they are: a queue unit that was damaged may
name a record that is whole, but another queue's. What cannot be accepted at a glance `decode`
decides. The compiled kernel does the same for many while it copies (`copy_messages`). Every pull
calls it, so addresses are taken here and not by `Kernel.call`.
"""

import struct
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Queue, queue_of
from protocol.kernel.loader import Bytes, Ints, Kernel, address, int_column
from protocol.names import SHORT_TOPIC_CHARS_MAX, UNIT_BYTES
from protocol.record import codec
from protocol.record.properties import CRC_PROPERTY_BYTES, crc_property

_HEAD = struct.Struct(">iI4xi4xqqi").unpack_from
"""TOTALSIZE, MAGICCODE, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET, SYSFLAG."""
_INT = struct.Struct(">i").unpack_from
_LIMITS = struct.Struct("=8q")
_HOSTS_V6 = codec.BORN_HOST_V6 | codec.STORE_HOST_V6


class SealedRecord(NamedTuple):
    """A verified record: which message of which queue it is, and where in the log."""

    queue: Queue
    number: int
    offset: int
    sys_flag: int
    raw: bytes

    @classmethod
    def of(cls, record: codec.Record) -> "SealedRecord":
        """Of one that was decoded."""
        head = record.head
        queue = Queue(record.topic, head.queue_id)
        return cls(queue, head.queue_offset, head.physical_offset, head.sys_flag, record.raw)


def at_a_glance(data: bytes, start: int, offset: int) -> SealedRecord | None:
    """The record at `start` of `data` that names the log offset `offset`, verified.

    None for all that is not plain: another version, long hosts, no checksum of the whole, damage.
    `decode` finds out what that is.
    """
    if len(data) - start < codec.RECORD_BYTES_MIN:
        return None
    size, magic, queue_id, number, place, sys_flag = _HEAD(data, start)
    end = start + size
    if magic != codec.MAGIC_V1 or place != offset or sys_flag & _HOSTS_V6 or end > len(data):
        return None
    (body_bytes,) = _INT(data, start + codec.SHORT_HEAD.size - 4)
    topic_at = start + codec.SHORT_HEAD.size + body_bytes + 1
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
        record = codec.decode(data, start, offset)
        found = SealedRecord.of(record) if isinstance(record, codec.Record) else None
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


class MessageUnits(NamedTuple):
    """Messages of one queue: the unit and the number (QUEUEOFFSET) of each."""

    queue: Queue
    units: NDArray[Any]
    number: Ints

    def before(self, row: int) -> "MessageUnits":
        """The first `row` of them."""
        return MessageUnits(self.queue, self.units[:row], self.number[:row])

    def after(self, rows: int) -> "MessageUnits":
        """Those after the first `rows`."""
        return MessageUnits(self.queue, self.units[rows:], self.number[rows:])


class PullBound(NamedTuple):
    """How many records and bytes one pull takes."""

    records: int
    bytes: int


class FitLimits(NamedTuple):
    """What `fitting_units` holds units against.

    `hot_bytes`: up to this far below the log's end a record is hot, -1 for all of them.
    """

    log_begin: int
    log_end: int
    segment_bytes: int
    hot_bytes: int
    hot: PullBound
    cold: PullBound


def fitting_units(kernel: Kernel, units: NDArray[Any], limits: FitLimits) -> int:
    """How many units, from the first one on, a pull without a filter takes.

    -1 when one of those that it looked at names no place of the log.
    """
    *bounds, hot, cold = limits
    wanted = _LIMITS.pack(*bounds, *hot, *cold)
    return int(kernel.function("fitting_units")(_unit_address(units), len(units), wanted))


def unit_bytes(kernel: Kernel, units: NDArray[Any]) -> int:
    """The bytes of all records that units name."""
    return int(kernel.function("unit_bytes")(_unit_address(units), len(units)))


def copy_messages(
    kernel: Kernel, data: Bytes, base: int, messages: MessageUnits, out: Bytes
) -> int:
    """Copies messages from a segment at log offset `base`, back to back, to `out`; how many.

    It ends at the first that is not whole, not in its place or not of that queue and number, does
    not lie in the segment, or has no room.
    """
    queue, units, number = messages
    rows, topic = len(units), queue.topic.encode()
    asked = _unit_address(units), address(int_column(number, rows)), queue.queue_id
    segment, taken = (address(data), len(data), base), (address(out), len(out))
    copy = kernel.function("copy_messages")
    return int(copy(*segment, rows, *asked, topic, len(topic), *taken))


def _unit_address(units: NDArray[Any]) -> int:
    """As `address`, which takes long for an array of structures."""
    assert units.dtype.itemsize == UNIT_BYTES
    return address(units.view(np.uint8))


def whole_records(kernel: Kernel, data: Bytes, sizes: NDArray[np.uint32]) -> int:
    """How many of the records, back to back in `data`, are whole before one is not."""
    sizes = np.ascontiguousarray(sizes, np.uint32)
    whole = kernel.function("whole_records")
    return int(whole(address(data), len(data), len(sizes), address(sizes)))
