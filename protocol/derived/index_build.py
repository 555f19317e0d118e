"""What an index file receives for a batch of keys: entries, changed slots, the new header.

Pure planning of `IndexFile#putKey`; the owner of the bytes (the index worker, an image in memory)
carries the plan out. `put_key` is the plain form of one key, and the oracle for `plan_entries`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexEntry,
    IndexGeometry,
    IndexHeader,
    KeyBatch,
)
from protocol.derived.kernel_calls import PAGE_BYTES, enter_keys
from protocol.kernel import loader

Ints = NDArray[np.int64]
SlotValues = Callable[[Ints], NDArray[Any]] | NDArray[Any]
"""The slots' present values: a function of slot numbers, or the whole table."""

EMPTY_HEADER = IndexHeader(0, 0, 0, 0, 0, 1)
"""Of the store's first index file. On disk `index_count` is 0 until the first entry."""

_SLOT_GAP_MAX = 1024
"""Changed slots so near to each other are written in one piece: cheaper than another call."""

_DIFF_MAX = 2**31 - 1
_SORT_KEY = np.uint64


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The writes for the first `taken` keys of a batch, in the order in which to make them.

    `entries` become the numbers from `first_entry` on; then slot `slots[i]` gets `newest[i]`
    (slot numbers rise, none appears twice); then the header.
    """

    first_entry: int
    entries: NDArray[Any]
    slots: Ints
    newest: Ints
    header: IndexHeader

    @property
    def taken(self) -> int:
        """How many keys fitted into the file."""
        return len(self.entries)


@dataclass(frozen=True, slots=True)
class IndexPut:
    """As `IndexPlan`, for keys that are in the table already: slots [start, stop) of each span
    hold all that changed."""

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


def plan_entries(
    header: IndexHeader, geometry: IndexGeometry, slot_values: SlotValues, batch: KeyBatch
) -> IndexPlan:
    """Plans as many keys of `batch` as fit: for the rest the caller makes the next file."""
    first = next_entry(header)
    count = min(len(batch.key_hash), free_entries(header, geometry))
    entries = np.zeros(count, INDEX_ENTRY.dtype)
    if not count:
        return IndexPlan(first, entries, np.empty(0, np.int64), np.empty(0, np.int64), header)
    batch = batch.rows(0, count)
    numbers = np.arange(first, first + count)
    order, grouped = order_by_slot(batch.key_hash.astype(np.int64) % geometry.slot_count)
    opens = np.empty(count, np.bool_)
    opens[0] = True
    np.not_equal(grouped[1:], grouped[:-1], out=opens[1:])
    closes = np.append(opens[1:], True)
    slots = grouped[opens]
    present = slot_values(slots) if callable(slot_values) else slot_values[slots]
    present = present.astype(np.int64)
    opening = numbers[order[opens]]
    present[(present <= 0) | (present > opening)] = 0
    # Within a group each entry points to the one before it; the first to what the slot held.
    prev = np.empty(count, np.int64)
    prev[order[1:]] = numbers[order[:-1]]
    prev[order[opens]] = present
    entries["key_hash"] = batch.key_hash
    entries["physical_offset"] = batch.physical_offset
    entries["time_diff_s"] = _time_diffs(header, batch.store_timestamp.astype(np.int64))
    entries["prev"] = prev
    return IndexPlan(
        first_entry=first,
        entries=entries,
        slots=slots,
        newest=numbers[order[closes]],
        header=_next_header(header, batch, int((present == 0).sum())),
    )


def put_keys(
    header: IndexHeader, geometry: IndexGeometry, table: NDArray[Any], batch: KeyBatch
) -> IndexPut:
    """Enters as many keys of `batch` as fit into `table`, the slots as they are on disk."""
    compiled = loader.active()
    if compiled is None:
        return put_keys_numpy(header, geometry, table, batch)
    first = next_entry(header)
    batch = batch.rows(0, min(len(batch.key_hash), free_entries(header, geometry)))
    if not len(batch.key_hash):
        return IndexPut(first, np.zeros(0, INDEX_ENTRY.dtype), [], header)
    begin = int(batch.store_timestamp[0]) if first <= 1 else header.begin_timestamp
    entries, pages, opened = enter_keys(compiled, batch, begin, first, table)
    if first <= 1:
        entries["time_diff_s"][0] = _time_diff(header.begin_timestamp, begin)
    spans = _spans_of_pages(np.flatnonzero(pages), geometry)
    return IndexPut(first, entries, spans, _next_header(header, batch, opened))


def put_keys_numpy(
    header: IndexHeader, geometry: IndexGeometry, table: NDArray[Any], batch: KeyBatch
) -> IndexPut:
    """As `put_keys`."""
    plan = plan_entries(header, geometry, table, batch)
    table[plan.slots] = plan.newest
    return IndexPut(plan.first_entry, plan.entries, spans_of(plan.slots), plan.header)


def spans_of(slots: Ints) -> list[tuple[int, int]]:
    """Rising slot numbers as spans [start, stop), near ones with what is between them."""
    return _spans(slots, slots + 1, _SLOT_GAP_MAX - 1)


def _spans_of_pages(pages: Ints, geometry: IndexGeometry) -> list[tuple[int, int]]:
    """The slots on those pages of an index file."""
    first = geometry.slot_position(0)
    starts = np.maximum(pages * PAGE_BYTES - first, 0) // INDEX_SLOT.size
    stops = ((pages + 1) * PAGE_BYTES - first) // INDEX_SLOT.size
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


def _time_diffs(header: IndexHeader, store_timestamp: Ints) -> Ints:
    """Whole seconds after the header's begin, which the file's first entry sets after its own."""
    is_first = next_entry(header) <= 1
    begin = int(store_timestamp[0]) if is_first else header.begin_timestamp
    if begin > 0:
        later = np.maximum(store_timestamp, begin)  # the difference of any two may not fit
        diffs: Ints = np.minimum((later - begin) // 1000, _DIFF_MAX)
    else:
        diffs = np.zeros(len(store_timestamp), np.int64)
    if is_first:
        diffs[0] = _time_diff(header.begin_timestamp, int(store_timestamp[0]))
    return diffs


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


def put_key(
    header: IndexHeader,
    geometry: IndexGeometry,
    slot_value: int,
    key_hash: int,
    physical_offset: int,
    store_timestamp: int,
) -> tuple[IndexEntry, IndexHeader] | None:
    """Enters one key as `IndexFile#putKey` does. None when the file is full.

    `slot_value` is what slot `hash % slot_count` holds; it becomes the entry's number, which is
    the old header's `next_entry`.
    """
    number = next_entry(header)
    if number >= geometry.index_num:
        return None
    prev = slot_value if 0 < slot_value <= number else 0
    diff = _time_diff(header.begin_timestamp, store_timestamp)
    if number <= 1:
        header = header._replace(
            begin_timestamp=store_timestamp, begin_physical_offset=physical_offset
        )
    return IndexEntry(key_hash, physical_offset, diff, prev), header._replace(
        slot_count=header.slot_count + (prev == 0),
        index_count=number + 1,
        end_physical_offset=physical_offset,
        end_timestamp=store_timestamp,
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
        plan = plan_entries(self.header, self.geometry, self._slots, batch)
        if plan.taken:
            self._entries[plan.first_entry : plan.first_entry + plan.taken] = plan.entries
            self._slots[plan.slots] = plan.newest
            self.header = plan.header
            self.data[: INDEX_HEADER.size] = np.frombuffer(INDEX_HEADER.pack(plan.header), np.uint8)
        return plan.taken
