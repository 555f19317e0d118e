"""Queue units, index headers, slots and entries, and the checkpoint."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.file_layouts import (
    CHECKPOINT,
    FILLER_UNIT,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    QUEUE_UNIT,
    UNIT_BYTES,
    IndexGeometry,
    IndexHeader,
    QueueUnit,
    StoreCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
    key_hash,
)
from protocol.layout import StructLayout
from protocol.record.codec import FILLER_HEAD, SHORT_HEAD, record_head
from tests.protocol.records import I32, I64

LAYOUTS: list[StructLayout[Any]] = [
    *(QUEUE_UNIT, INDEX_HEADER, INDEX_SLOT, INDEX_ENTRY, CHECKPOINT, FILLER_HEAD, SHORT_HEAD),
    *(record_head(flag) for flag in (0x10, 0x20, 0x30)),
]


def rows_of(layout: StructLayout[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    fields: list[st.SearchStrategy[Any]] = []
    for name, wire in layout.wires.items():
        width = layout.dtype[name].itemsize
        if wire.format == "ip":
            fields.append(st.binary(min_size=width, max_size=width))
        elif wire.format[1] == "u":
            fields.append(st.integers(0, 2 ** (8 * width) - 1))
        else:
            fields.append(st.integers(-(2 ** (8 * width - 1)), 2 ** (8 * width - 1) - 1))
    return st.tuples(*fields)


@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda layout: f"{layout.row.__name__}{layout.size}"
)
@given(data=st.data())
def test_a_row_comes_back_as_written_from_struct_and_from_numpy(
    layout: StructLayout[Any], data: st.DataObject
) -> None:
    row = data.draw(rows_of(layout))
    raw = layout.pack(layout.row(*row))
    assert len(raw) == layout.size
    assert tuple(layout.read(b"x" + raw, 1)) == row
    seen = layout.view(raw)[0]
    for name, value in zip(layout.wires, row, strict=True):
        found = seen[name]
        assert (found.tobytes() if isinstance(value, bytes) else int(found)) == value
        width = layout.dtype[name].itemsize
        at = layout.offsets[name]
        if not isinstance(value, bytes):
            signed = layout.wires[name].format[1] == "i"
            assert int.from_bytes(raw[at : at + width], "big", signed=signed) == value
    for length in range(layout.size):
        with pytest.raises(ValueError, match="needs"):
            layout.read(raw[:length])


@pytest.mark.parametrize(
    "layout", LAYOUTS, ids=lambda layout: f"{layout.row.__name__}{layout.size}"
)
def test_a_table_names_every_field_at_its_place(layout: StructLayout[Any]) -> None:
    lines = layout.table().splitlines()[2:]
    assert [line.split(" | ")[3] for line in lines] == list(layout.wires)
    ends = 0
    for line in lines:
        offset, width, kind = line.strip("| ").split(" | ")[:3]
        assert int(offset) == ends
        ends += int(width)
        assert kind == "bytes" or kind in {"i32", "i64", "u32"}
        assert kind == "bytes" or int(kind[1:]) == 8 * int(width)
    assert ends == layout.size


def test_the_sizes_are_rocketmqs() -> None:
    assert (UNIT_BYTES, INDEX_HEADER.size, INDEX_SLOT.size, INDEX_ENTRY.size) == (20, 40, 4, 20)
    assert SHORT_HEAD.size + 3 == 91
    assert [record_head(flags).size - 88 for flags in (0, 0x10, 0x20, 0x30)] == [0, 12, 12, 24]


def test_the_unit_of_rocketmqs_example() -> None:
    unit = QueueUnit(physical_offset=0, size=165, tags_code=2_598_919)
    assert QUEUE_UNIT.pack(unit).hex() == "0000000000000000000000a5000000000027a807"


def test_the_filler_unit() -> None:
    assert FILLER_UNIT.hex() == "00000000000000007fffffff0000000000000000"


def test_places_in_an_index_file_of_default_size() -> None:
    geometry = IndexGeometry()
    assert geometry.file_bytes == 420_000_040
    assert geometry.slot_position(key_hash("FooBar", "k1") % geometry.slot_count) == 12_570_040
    assert geometry.slot_position(key_hash("FooBar", "Hello") % geometry.slot_count) == 6_439_736
    assert geometry.entry_position(1) == 20_000_060


def test_an_index_header_lies_as_rocketmq_writes_it() -> None:
    raw = INDEX_HEADER.pack(IndexHeader(1, 2, 3, 4, 5, 6))
    assert np.frombuffer(raw, ">i8", 4).tolist() == [1, 2, 3, 4]
    assert np.frombuffer(raw, ">i4", 2, 32).tolist() == [5, 6]


@given(st.tuples(I64, I64, I64, I64, I64, I64))
def test_a_checkpoint_comes_back_as_written(row: tuple[int, ...]) -> None:
    checkpoint = StoreCheckpoint(*row)
    data = encode_checkpoint(checkpoint)
    assert len(data) == 4096
    assert not any(data[48:])
    assert decode_checkpoint(data) == checkpoint
    assert decode_checkpoint(data[:40]) == checkpoint._replace(logics_physical_offset=0)
    assert decode_checkpoint(b"") == StoreCheckpoint(0, 0, 0, 0, 0, 0)


@given(st.binary(max_size=60))
def test_any_bytes_at_all_are_a_checkpoint(data: bytes) -> None:
    assert isinstance(decode_checkpoint(data), StoreCheckpoint)


@given(I32)
def test_a_slot_is_one_number(value: int) -> None:
    assert INDEX_SLOT.read(INDEX_SLOT.pack(INDEX_SLOT.row(value))).newest_entry == value
