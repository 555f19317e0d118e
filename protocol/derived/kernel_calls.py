"""The compiled kernel's part in dispatch and in handing out messages.

By `kernel_dispatch.c`, records become queue units and index entries: it returns what
`dispatch_request`, `queue_build` and `index_build` return. Where text is left to Python (a delay in
digits that are not ASCII) it returns None.

By `kernel_read.c`, units are measured and their messages copied. Every pull calls it, so addresses
are taken here and not by `Kernel.call`.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    QUEUE_UNIT,
    UNIT_BYTES,
    KeyBatch,
)
from protocol.ids import Queue
from protocol.kernel.loader import Bools, Bytes, Ints, Kernel, address, int_column
from protocol.record.columns import RecordColumns

PAGE_BYTES = 4096

_WANTED = (
    "topic_start",
    "topic_length",
    "queue_id",
    "sys_flag",
    "properties_start",
    "properties_length",
    "store_timestamp",
    "physical_offset",
    "size",
    "queue_offset",
)
_KEYS_A_RECORD = 4
"""For how many there is room at first: UNIQ_KEY, two keys, TAGS."""
_NOT_HERE = -2
_OUTSIDE = "a record lies outside the buffer"
_LIMITS = struct.Struct("=8q")


@dataclass(frozen=True, slots=True)
class QueueGroups:
    """Which queue each record is for: `number` in order of appearance, -1 for none; the row
    where a queue came `first`."""

    number: NDArray[np.int32]
    first: Ints


@dataclass(frozen=True, slots=True)
class GroupedUnits:
    """Units, queue by queue: those of queue i begin at `place[i]`, `count[i]` of them.

    `queue_offset` and `end` are of each unit's record; `is_run` is true for a queue whose
    offsets follow each other.
    """

    units: NDArray[Any]
    queue_offset: Ints
    end: Ints
    place: Ints
    count: Ints
    is_run: Bools


def group_queues(kernel: Kernel, columns: RecordColumns) -> QueueGroups:
    """Numbers the queues of the records that may get a unit."""
    rows = len(columns)
    number, first = np.empty(rows, np.int32), np.empty(rows, np.int64)
    table = np.full(1 << (2 * rows).bit_length(), -1, np.int32)
    with _columns_of(columns) as place:
        found = kernel.call("group_queues", *place, number, first, table, len(table))
    if found < 0:
        raise IndexError(_OUTSIDE)
    return QueueGroups(number, first[:found])


def queue_units(
    kernel: Kernel,
    columns: RecordColumns,
    groups: QueueGroups,
    wanted: Bools,
    delay_levels_ms: Sequence[int],
) -> GroupedUnits | None:
    """The units of the queues that are `wanted`, one item of it a queue."""
    queues = len(groups.first)
    assert wanted.shape == (queues,)
    held = groups.number[groups.number >= 0]
    room = np.where(wanted, np.bincount(held, minlength=queues), 0)
    ends = np.cumsum(room)
    place = np.where(wanted, ends - room, -1)
    total = int(ends[-1]) if queues else 0
    units, offset, end = (
        np.empty(total, QUEUE_UNIT.dtype),
        np.empty(total, np.int64),
        np.empty(total, np.int64),
    )
    count, is_run = np.empty(queues, np.int64), np.empty(queues, np.bool_)
    levels = np.array(delay_levels_ms, np.int64)
    with _columns_of(columns) as source:
        done = kernel.call(
            *("queue_units", *source, levels, len(levels), groups.number),
            *(queues, place, total, units, offset, end, count, is_run),
        )
    if done == _NOT_HERE:
        return None
    if done < 0:
        raise IndexError(_OUTSIDE)
    return GroupedUnits(units, offset, end, place, count, is_run)


def index_keys(
    kernel: Kernel, columns: RecordColumns, with_tags: bool
) -> tuple[Ints, NDArray[np.int32]] | None:
    """The record's row and the hash of each key, in order."""
    room = _KEYS_A_RECORD * len(columns)
    with _columns_of(columns) as source:
        while True:
            row, key_hash = np.empty(room, np.int64), np.empty(room, np.int32)
            found = kernel.call("index_keys", *source, int(with_tags), room, row, key_hash)
            if found == _NOT_HERE:
                return None
            if found < 0:
                raise IndexError(_OUTSIDE)
            if found <= room:
                return row[:found], key_hash[:found]
            room = found


def enter_keys(
    kernel: Kernel,
    keys: KeyBatch,
    begin_timestamp: int,
    first_entry: int,
    table: NDArray[Any],
) -> tuple[NDArray[Any], Bytes, int]:
    """Enters keys into a slot table as it is on disk.

    Returns the entries, whose times count from `begin_timestamp`, a mark for each page of the
    file that holds a changed slot, and how many slots were empty.
    """
    key_hash, offset, timestamp = keys
    count = len(key_hash)
    key_hash = np.ascontiguousarray(key_hash, np.int32)
    assert table.dtype == np.dtype(">i4")
    assert first_entry + count < 2**31
    entries = np.empty(count, INDEX_ENTRY.dtype)
    pages = np.zeros((INDEX_HEADER.size + table.nbytes) // PAGE_BYTES + 1, np.uint8)
    offset, timestamp = int_column(offset, count), int_column(timestamp, count)
    opened = kernel.call(
        *("enter_keys", count, key_hash, offset, timestamp, begin_timestamp, first_entry),
        *(table, len(table), pages, entries),
    )
    if opened < 0:
        raise IndexError("an index without slots")
    return entries, pages, int(opened)


@contextmanager
def _columns_of(columns: RecordColumns) -> Iterator[tuple[Bytes, int, int, NDArray[np.uint64]]]:
    """The buffer, its length, the rows, and the addresses of the columns that C reads."""
    rows = len(columns)
    kept = [int_column(getattr(columns, name), rows) for name in _WANTED]
    places = np.array([address(column) for column in kept], np.uint64)
    yield columns.data, len(columns.data), rows, places


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
    copy = kernel.function("copy_messages")
    return int(
        copy(
            address(data), len(data), base, rows, *asked, topic, len(topic), address(out), len(out)
        )
    )


def _unit_address(units: NDArray[Any]) -> int:
    """As `address`, which takes long for an array of structures."""
    assert units.dtype.itemsize == UNIT_BYTES
    return address(units.view(np.uint8))


def whole_records(kernel: Kernel, data: Bytes, sizes: NDArray[np.uint32]) -> int:
    """How many of the records, back to back in `data`, are whole before one is not."""
    sizes = np.ascontiguousarray(sizes, np.uint32)
    whole = kernel.function("whole_records")
    return int(whole(address(data), len(data), len(sizes), address(sizes)))
