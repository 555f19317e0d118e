"""What an index file receives for a batch of keys: entries, changed slots, the new header.

Pure planning of `IndexFile#putKey`; the owner of the bytes (the index worker, an image in memory)
carries the plan out.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
    KeyBatch,
)
from protocol.kernel import loader
from protocol.kernel.loader import Bytes, Ints, Kernel, int_column

EMPTY_HEADER = IndexHeader(0, 0, 0, 0, 0, 1)
"""Of the store's first index file. On disk `index_count` is 0 until the first entry."""

_SLOT_GAP_MAX = 1024
"""Changed slots so near to each other are written in one piece: cheaper than another call."""

_PAGE_BYTES = 4096
_DIFF_MAX = 2**31 - 1
_SORT_KEY = np.uint64


@dataclass(frozen=True, slots=True)
class IndexPut:
    """The writes for the first `taken` keys of a batch, in the order in which to make them.

    `entries` become the numbers from `first_entry` on; then slots [start, stop) of each span, which
    hold all that changed; then the header.
    """

    first_entry: int
    entries: NDArray[Any]
    spans: list[tuple[int, int]]
    header: IndexHeader

    @property
    def taken(self) -> int:
        """How many keys fitted into the file."""
        return len(self.entries)


def rolled_header(previous: IndexHeader) -> IndexHeader:
    """The header of the file after `previous`: it begins and ends where that one ended.

    The first entry's time is relative to it, odd as that is (docs/format.md, 'Index file').
    """
    end_time, end_offset = max(previous.end_timestamp, 0), max(previous.end_physical_offset, 0)
    return IndexHeader(end_time, end_time, end_offset, end_offset, 0, 1)


def next_entry(header: IndexHeader) -> int:
    """The number of the next free entry; a file never written says 0 and means 1."""
    return max(header.index_count, 1)


def free_entries(header: IndexHeader, geometry: IndexGeometry) -> int:
    """How many more keys the file takes; 0 when it is full."""
    return max(geometry.index_num - next_entry(header), 0)


def put_keys(
    header: IndexHeader, geometry: IndexGeometry, table: NDArray[Any], batch: KeyBatch
) -> IndexPut:
    """Enters as many keys of `batch` as fit into `table`, the slots as they are on disk: for the
    rest the caller makes the next file."""
    first = next_entry(header)
    batch = batch.rows(0, min(len(batch.key_hash), free_entries(header, geometry)))
    if not len(batch.key_hash):
        return IndexPut(first, np.zeros(0, INDEX_ENTRY.dtype), [], header)
    begin = int(batch.store_timestamp[0]) if first <= 1 else header.begin_timestamp
    compiled = loader.kernel
    if compiled is not None:
        entries, pages, opened = _enter_compiled(compiled, batch, begin, first, table)
        spans = _spans_of_pages(np.flatnonzero(pages), geometry)
    else:
        entries, slots, opened = _enter_columns(batch, begin, first, table)
        spans = spans_of(slots)
    if first <= 1:
        entries["time_diff_s"][0] = _time_diff(header.begin_timestamp, begin)
    return IndexPut(first, entries, spans, _next_header(header, batch, opened))


def _enter_compiled(
    kernel: Kernel, batch: KeyBatch, begin: int, first: int, table: NDArray[Any]
) -> tuple[NDArray[Any], Bytes, int]:
    """As `_enter_columns`, with a mark for each page of the file that holds a changed slot."""
    count = len(batch.key_hash)
    key_hash = np.ascontiguousarray(batch.key_hash, np.int32)
    offset, timestamp = (int_column(one, count) for one in batch[1:])
    assert table.dtype == np.dtype(">i4")
    assert first + count < 2**31
    entries = np.empty(count, INDEX_ENTRY.dtype)
    pages = np.zeros((INDEX_HEADER.size + table.nbytes) // _PAGE_BYTES + 1, np.uint8)
    opened = kernel.call(
        *("enter_keys", count, key_hash, offset, timestamp, begin, first),
        *(table, len(table), pages, entries),
    )
    if opened < 0:
        raise IndexError("an index without slots")
    return entries, pages, int(opened)


def _enter_columns(
    batch: KeyBatch, begin: int, first: int, table: NDArray[Any]
) -> tuple[NDArray[Any], Ints, int]:
    """The entries, whose times count from `begin`; the slots that changed, in order, of a table as
    it is on disk; and how many of them were empty."""
    count = len(batch.key_hash)
    entries = np.zeros(count, INDEX_ENTRY.dtype)
    numbers = np.arange(first, first + count)
    order, grouped = order_by_slot(batch.key_hash.astype(np.int64) % len(table))
    opens = np.append(True, grouped[1:] != grouped[:-1])
    closes = np.append(opens[1:], True)
    slots, opening = grouped[opens], numbers[order[opens]]
    present = table[slots].astype(np.int64)
    present[(present <= 0) | (present > opening)] = 0
    # Within a group each entry points to the one before it; the first to what the slot held.
    prev = np.empty(count, np.int64)
    prev[order[1:]] = numbers[order[:-1]]
    prev[order[opens]] = present
    entries["key_hash"] = batch.key_hash
    entries["physical_offset"] = batch.physical_offset
    entries["prev"] = prev
    if begin > 0:
        # At least `begin`: the difference of any two may not fit.
        later = np.maximum(batch.store_timestamp.astype(np.int64), begin)
        entries["time_diff_s"] = np.minimum((later - begin) // 1000, _DIFF_MAX)
    table[slots] = numbers[order[closes]]
    return entries, slots, int((present == 0).sum())


def spans_of(slots: Ints) -> list[tuple[int, int]]:
    """Rising slot numbers as spans [start, stop), near ones with what is between them."""
    return _spans(slots, slots + 1, _SLOT_GAP_MAX - 1)


def _spans_of_pages(pages: Ints, geometry: IndexGeometry) -> list[tuple[int, int]]:
    """The slots on those pages of an index file."""
    first = geometry.slot_position(0)
    starts = np.maximum(pages * _PAGE_BYTES - first, 0) // INDEX_SLOT.size
    stops = ((pages + 1) * _PAGE_BYTES - first) // INDEX_SLOT.size
    return _spans(starts, np.minimum(stops, geometry.slot_count), 0)


def _spans(starts: Ints, stops: Ints, gap_max: int) -> list[tuple[int, int]]:
    if not len(starts):
        return []
    cuts = np.flatnonzero(starts[1:] - stops[:-1] > gap_max)
    begins = starts[np.concatenate([[0], cuts + 1])].tolist()
    ends = stops[np.concatenate([cuts, [len(stops) - 1]])].tolist()
    return list(zip(begins, ends, strict=True))


def order_by_slot(slot: Ints) -> tuple[Ints, Ints]:
    """The rows in the order of their slots, those of one slot in order; and their slots.

    Slot and row as one number: sorting those, whole, is twice as fast as a stable argsort.
    """
    bits = _SORT_KEY(max(len(slot) - 1, 1).bit_length())
    both = slot.astype(_SORT_KEY) << bits | np.arange(len(slot), dtype=_SORT_KEY)
    both.sort()
    rows = both & _SORT_KEY((1 << int(bits)) - 1)
    return rows.astype(np.int64), (both >> bits).astype(np.int64)


def _time_diff(begin: int, store_timestamp: int) -> int:
    if begin <= 0 or store_timestamp < begin:
        return 0
    return min((store_timestamp - begin) // 1000, _DIFF_MAX)


def _next_header(header: IndexHeader, batch: KeyBatch, new_slots: int) -> IndexHeader:
    begin_time, begin_offset = header.begin_timestamp, header.begin_physical_offset
    if next_entry(header) <= 1:
        begin_time = int(batch.store_timestamp[0])
        begin_offset = int(batch.physical_offset[0])
    return IndexHeader(
        begin_timestamp=begin_time,
        end_timestamp=int(batch.store_timestamp[-1]),
        begin_physical_offset=begin_offset,
        end_physical_offset=int(batch.physical_offset[-1]),
        slot_count=header.slot_count + new_slots,
        index_count=next_entry(header) + len(batch.key_hash),
    )


def fill_slots(table: NDArray[Any], first_entry: int, key_hash: NDArray[Any]) -> None:
    """Enters existing entries into a slot table, oldest first: each slot ends at its newest.

    `key_hash` are the hashes of the entries from `first_entry` on.
    """
    slot = key_hash.astype(np.int64) % len(table)
    numbers = np.arange(first_entry, first_entry + len(slot), dtype=np.int64)
    # Numbers rise, so the greatest of a slot is the newest; assignment would rely on numpy's order.
    np.maximum.at(table, slot, numbers.astype(table.dtype))


class IndexImage:
    """One index file in memory: `data` is the whole file, byte for byte, after each `put`.

    Untouched pages of a large one take no memory.
    """

    def __init__(self, geometry: IndexGeometry, previous: IndexHeader | None = None) -> None:
        self.geometry = geometry
        self.header = EMPTY_HEADER if previous is None else rolled_header(previous)
        self.data: NDArray[np.uint8] = np.zeros(geometry.file_bytes, np.uint8)
        self._slots = INDEX_SLOT.view(self.data, geometry.slot_position(0), geometry.slot_count)[
            "newest_entry"
        ]
        self._entries = INDEX_ENTRY.view(self.data, geometry.entry_position(0), geometry.index_num)

    @property
    def is_full(self) -> bool:
        """Whether the next key needs the next file."""
        return free_entries(self.header, self.geometry) == 0

    def put(self, batch: KeyBatch) -> int:
        """Enters keys until the file is full; returns how many it took."""
        done = put_keys(self.header, self.geometry, self._slots, batch)
        if done.taken:
            self._entries[done.first_entry : done.first_entry + done.taken] = done.entries
            self.header = done.header
            self.data[: INDEX_HEADER.size] = np.frombuffer(INDEX_HEADER.pack(done.header), np.uint8)
        return done.taken
