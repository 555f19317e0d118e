"""Planning of index files against the plain form of putKey."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexEntry,
    IndexGeometry,
    IndexHeader,
    KeyBatch,
)
from protocol.derived.index_build import (
    EMPTY_HEADER,
    IndexImage,
    fill_slots,
    free_entries,
    put_keys,
    rolled_header,
)

pytestmark = pytest.mark.usefixtures("way")

GEOMETRY = IndexGeometry(slot_count=7, index_num=12)

KEY = st.tuples(
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.one_of(st.integers(-5, 5), st.integers(1_700_000_000_000, 1_700_000_100_000)),
)
FAR_KEY = st.tuples(st.just(3), st.just(9), st.integers(0, 2**62))
KEYS = st.lists(st.one_of(KEY, FAR_KEY), max_size=40)


def batch_of(keys: list[tuple[int, int, int]]) -> KeyBatch:
    columns = np.array(keys, np.int64).reshape(-1, 3).T
    return KeyBatch(columns[0].astype(np.int32), columns[1], columns[2])


def put_key(
    header: IndexHeader,
    geometry: IndexGeometry,
    slot_value: int,
    key_hash: int,
    physical_offset: int,
    store_timestamp: int,
) -> tuple[IndexEntry, IndexHeader] | None:
    """Enters one key as `IndexFile#putKey` does. None when the file is full.

    `slot_value` is what slot `hash % slot_count` holds; it becomes the entry's number.
    """
    number = max(header.index_count, 1)
    if number >= geometry.index_num:
        return None
    prev = slot_value if 0 < slot_value <= number else 0
    diff = 0
    if 0 < header.begin_timestamp <= store_timestamp:
        diff = min((store_timestamp - header.begin_timestamp) // 1000, 2**31 - 1)
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


def plain_file(
    keys: list[tuple[int, int, int]], header: IndexHeader
) -> tuple[bytes, IndexHeader, int]:
    """A file's bytes, one key at a time, as RocketMQ writes it."""
    data = bytearray(GEOMETRY.file_bytes)
    data[: INDEX_HEADER.size] = INDEX_HEADER.pack(header)
    for taken, key in enumerate(keys):
        position = GEOMETRY.slot_position(key[0] % GEOMETRY.slot_count)
        made = put_key(header, GEOMETRY, INDEX_SLOT.read(data, position).newest_entry, *key)
        if made is None:
            return bytes(data), header, taken
        number = header.index_count
        at = GEOMETRY.entry_position(number)
        data[at : at + INDEX_ENTRY.size] = INDEX_ENTRY.pack(made[0])
        data[position : position + INDEX_SLOT.size] = INDEX_SLOT.struct.pack(number)
        header = made[1]
        data[: INDEX_HEADER.size] = INDEX_HEADER.pack(header)
    return bytes(data), header, len(keys)


@given(KEYS, st.lists(st.integers(1, 5), max_size=20))
def test_files_filled_in_batches_equal_files_filled_key_by_key(
    keys: list[tuple[int, int, int]], cuts: list[int]
) -> None:
    image, header = IndexImage(GEOMETRY), EMPTY_HEADER
    batches = batch_of(keys)
    done = 0
    while done < len(keys):
        expected, after, taken = plain_file(keys[done:], header)
        position, stop = done, done + taken
        while position < stop:
            size = cuts.pop() if cuts else len(keys)
            position += image.put(batches.rows(position, min(position + size, len(keys))))
        assert image.data.tobytes() == expected
        assert image.header == after
        done = stop
        if done < len(keys):
            assert image.is_full
            header = rolled_header(after)
            image = IndexImage(GEOMETRY, after)


def test_the_first_entry_of_a_rolled_file_is_timed_from_the_end_of_the_file_before() -> None:
    header = rolled_header(IndexHeader(1_000, 90_000, 5, 70, 3, 12))
    plan = put_keys(
        header, GEOMETRY, np.zeros(7, ">i4"), batch_of([(1, 80, 106_500), (2, 90, 100_000)])
    )
    assert plan.entries["time_diff_s"].tolist() == [16, 0]
    assert plan.header == IndexHeader(106_500, 100_000, 80, 90, 2, 3)


def test_a_slot_that_points_beyond_the_entries_counts_as_empty() -> None:
    header = EMPTY_HEADER._replace(begin_timestamp=1, index_count=4, slot_count=1)
    slots = np.array([0, 9, -3, 2, 0, 0, 0], ">i4")
    plan = put_keys(header, GEOMETRY, slots, batch_of([(1, 8, 1), (2, 8, 1), (3, 8, 1)]))
    assert plan.entries["prev"].tolist() == [0, 0, 2]
    assert plan.header.slot_count == 3


def test_a_full_file_takes_nothing() -> None:
    header = EMPTY_HEADER._replace(index_count=GEOMETRY.index_num)
    plan = put_keys(header, GEOMETRY, np.zeros(7, ">i4"), batch_of([(1, 2, 3)]))
    assert (plan.taken, plan.header) == (0, header)
    assert free_entries(header, GEOMETRY) == 0


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.integers(0, 40))
def test_a_slot_table_rebuilt_from_entries_holds_the_newest_of_each(
    hashes: list[int], cut: int
) -> None:
    table = np.zeros(7, np.int32)
    fill_slots(table, 1, np.array(hashes[:cut], np.int32))
    fill_slots(table, 1 + len(hashes[:cut]), np.array(hashes[cut:], np.int32))
    expected = [0] * 7
    for number, value in enumerate(hashes, 1):
        expected[value % 7] = number
    assert table.tolist() == expected
