"""Whether bytes that are about to be handed out are the records that were asked for.

Place and lengths first, then the checksum, then whose they are: a queue unit that was damaged may
name a record that is whole, but another queue's. The compiled kernel decides, for many while it
copies (`copy_messages`), or else `decode`. Every pull calls it, so addresses are taken here and not
by `Kernel.call`.
"""

import ctypes
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Queue, queue_of
from protocol.kernel import loader
from protocol.kernel.loader import Bytes, Ints, Kernel, address, int_column
from protocol.names import UNIT_BYTES
from protocol.record.codec import Record, decode
from protocol.record.columns import RecordColumns

_LIMITS = struct.Struct("=8q")
_NUMBERS = [name for name in RecordColumns.__slots__ if name != "data"]
_Fields = ctypes.c_int64 * len(_NUMBERS)
_SIZE, _QUEUE_ID, _QUEUE_OFFSET, _SYS_FLAG, _TOPIC_START, _TOPIC_LENGTH = map(
    _NUMBERS.index,
    ("size", "queue_id", "queue_offset", "sys_flag", "topic_start", "topic_length"),
)


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
        queue = queue_of(record.topic, head.queue_id)
        return cls(queue, head.queue_offset, head.physical_offset, head.sys_flag, record.raw)


def sealed_at(data: bytes, start: int, offset: int) -> SealedRecord | None:
    """The record at `start` of `data` that names the log offset `offset`; None without one."""
    compiled = loader.kernel
    if compiled is None:
        record = decode(data, start, offset)
        return SealedRecord.of(record) if isinstance(record, Record) else None
    field = _Fields()
    if not compiled.functions["record_at"](data, len(data), start, offset, field):
        return None
    topic_at, end = field[_TOPIC_START], start + field[_SIZE]
    topic = data[topic_at : topic_at + field[_TOPIC_LENGTH]].decode()
    queue = queue_of(topic, field[_QUEUE_ID])
    return SealedRecord(queue, field[_QUEUE_OFFSET], offset, field[_SYS_FLAG], data[start:end])


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
        return MessageUnits(self.queue, self.units[:row], self.number[:row])

    def after(self, rows: int) -> "MessageUnits":
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
    return int(kernel.functions["fitting_units"](_unit_address(units), len(units), wanted))


def unit_bytes(kernel: Kernel, units: NDArray[Any]) -> int:
    """The bytes of all records that units name."""
    return int(kernel.functions["unit_bytes"](_unit_address(units), len(units)))


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
    copy = kernel.functions["copy_messages"]
    return int(copy(*segment, rows, *asked, topic, len(topic), *taken))


def _unit_address(units: NDArray[Any]) -> int:
    """As `address`, which takes long for an array of structures."""
    assert units.dtype.itemsize == UNIT_BYTES
    return address(units.view(np.uint8))


def whole_records(kernel: Kernel, data: Bytes, sizes: NDArray[np.uint32]) -> int:
    """How many of the records, back to back in `data`, are whole before one is not."""
    sizes = np.ascontiguousarray(sizes, np.uint32)
    whole = kernel.functions["whole_records"]
    return int(whole(address(data), len(data), len(sizes), address(sizes)))
