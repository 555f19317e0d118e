"""Columns against the plain decoder: the same records, the same end, the same reason."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.file_layouts import QUEUE_UNIT
from protocol.record.codec import (
    SHORT_HEAD,
    Filler,
    Record,
    Torn,
    decode,
    filler,
    has_crc_property,
    record_head,
    whole_record,
)
from protocol.record.columns import (
    RecordColumns,
    Scan,
    end_in_crc,
    numbers_at,
    scan,
)
from tests.protocol.records import Draft, drafts, pack_draft, pack_log

pytestmark = pytest.mark.usefixtures("way")

HEAD_COLUMNS = [name for name in RecordColumns.__slots__ if name in SHORT_HEAD.wires]


def plain_scan(
    data: bytes, base: int | None, position: int = 0
) -> tuple[list[Record], int, Filler | Torn | None]:
    """What `scan` must answer, record by record."""
    records: list[Record] = []
    while position < len(data):
        found = decode(data, position, None if base is None else base + position)
        if not isinstance(found, Record):
            return records, position, found
        records.append(found)
        position += found.size
    return records, position, None


def assert_same(found: Scan, expected: tuple[list[Record], int, Filler | Torn | None]) -> None:
    records, end, stop = expected
    assert (found.end, found.stop) == (end, stop)
    columns = found.columns
    assert len(columns) == len(records)
    for row, record in enumerate(records):
        assert int(columns.size[row]) == record.size
        for name in HEAD_COLUMNS:
            assert int(getattr(columns, name)[row]) == getattr(record.head, name), name
        body = columns.piece(columns.body_start, columns.body_length, row)
        topic = columns.piece(columns.topic_start, columns.topic_length, row)
        properties = columns.piece(columns.properties_start, columns.properties_length, row)
        assert (body, topic, properties) == (
            record.raw_body,
            record.topic.encode(),
            record.properties_raw,
        )
        assert columns.record(row) == record


@given(st.lists(drafts(), max_size=6), st.integers(0, 2**62), st.integers(0, 9), st.data())
def test_columns_of_valid_records_are_what_the_plain_decoder_says(
    items: list[Draft], base: int, lead: int, data: st.DataObject
) -> None:
    behind = data.draw(st.sampled_from([b"", b"\0" * 3, bytes(200), filler(500), b"\xff" * 100]))
    log = bytes(lead) + pack_log(items, base + lead) + behind
    found = scan(log, base, lead)
    assert len(found.columns) == len(items)
    assert_same(found, plain_scan(log, base, lead))


@given(st.lists(drafts(), min_size=1, max_size=4), st.data())
def test_columns_of_damaged_records_stop_where_the_plain_decoder_does(
    items: list[Draft], data: st.DataObject
) -> None:
    log = bytearray(pack_log(items))
    # Length fields and flags are where the two could part: heads and tails, not bodies.
    starts = [0]
    for draft in items:
        starts.append(starts[-1] + len(pack_draft(draft)))
    near = st.sampled_from(starts).flatmap(lambda at: st.integers(at - 60, at + 115))
    for place in data.draw(st.lists(near, min_size=1, max_size=4)):
        if 0 <= place < len(log):
            log[place] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x80])))
    cut = data.draw(st.one_of(st.just(len(log)), st.integers(0, len(log))))
    for base in (0, None):
        assert_same(scan(bytes(log[:cut]), base), plain_scan(bytes(log[:cut]), base))


@given(drafts(), st.sampled_from(["total", "body", "topic", "properties", "flags"]), st.data())
def test_a_lying_length_is_refused_by_both(draft: Draft, which: str, data: st.DataObject) -> None:
    raw = bytearray(pack_draft(draft))
    head = record_head(int.from_bytes(raw[36:40], "big"))
    topic_at = head.size + len(draft.body)
    at, width = {
        "total": (0, 4),
        "flags": (36, 4),
        "body": (head.size - 4, 4),
        "topic": (topic_at, 1 + draft.v2),
        "properties": (topic_at + 1 + draft.v2 + len(draft.topic), 2),
    }[which]
    true = int.from_bytes(raw[at : at + width], "big", signed=True)
    bits = 8 * width
    value = data.draw(
        st.one_of(
            st.integers(-3, 3).map(lambda by: true + by),
            st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        )
    )
    raw[at : at + width] = (value % 2**bits).to_bytes(width, "big")
    log = bytes(raw) + pack_draft(Draft(body=b"next"), len(raw))
    assert_same(scan(log, 0), plain_scan(log, 0))


@given(st.binary(max_size=400), st.integers(0, 20), st.one_of(st.none(), st.integers(0, 2**62)))
def test_columns_and_plain_decoder_agree_on_any_bytes_at_all(
    data: bytes, position: int, base: int | None
) -> None:
    position = min(position, len(data))
    assert_same(scan(data, base, position), plain_scan(data, base, position))


@given(st.lists(drafts(crc=True), min_size=2, max_size=4), st.data())
def test_a_scan_stops_at_any_flipped_bit_of_a_sealed_record(
    items: list[Draft], data: st.DataObject
) -> None:
    log = bytearray(pack_log(items))
    ends = np.cumsum([len(pack_draft(draft)) for draft in items]).tolist()
    row = data.draw(st.integers(0, len(items) - 1))
    start, end = ends[row] - len(pack_draft(items[row])), ends[row]
    tail = st.integers((end - 25) * 8, end * 8 - 1)
    bit = data.draw(st.one_of(tail, st.integers(start * 8, end * 8 - 1)))
    log[bit // 8] ^= 1 << bit % 8
    found = scan(log, 0)
    assert found.end == start
    assert isinstance(found.stop, Torn)
    assert_same(found, plain_scan(bytes(log), 0))


def test_every_single_flipped_bit_stops_a_scan_where_the_plain_decoder_stops() -> None:
    draft = Draft(topic=b"T", body=b"body", properties=b"TAGS\1a\2", crc=True)
    log = bytearray(pack_log([draft, draft]))
    for bit in range(len(log) * 8):
        log[bit // 8] ^= 1 << bit % 8
        found = scan(log, 0)
        assert isinstance(found.stop, Torn)
        assert found.end == (0 if bit < len(log) * 4 else len(log) // 2)
        assert (found.end, found.stop) == plain_scan(bytes(log), 0)[1:]
        log[bit // 8] ^= 1 << bit % 8


def test_without_verification_lengths_still_count_and_checksums_do_not() -> None:
    good = pack_draft(Draft(body=b"hello"))
    log = good.replace(b"hello", b"jello") + good[:50]
    assert len(scan(log, None).columns) == 0
    unverified = scan(log, None, verify=False)
    assert (len(unverified.columns), unverified.end) == (1, len(good))
    assert isinstance(unverified.stop, Torn)
    assert unverified.stop.kind == "cut"


@given(st.lists(drafts(), max_size=4))
def test_an_unsealed_scan_is_an_unsealed_decode(items: list[Draft]) -> None:
    sealed = [draft for draft in items if draft.crc]
    log = b"".join(pack_draft(draft)[:-11] + b"0000000000\2" for draft in sealed)
    found = scan(log, None, sealed=False)
    assert (len(found.columns), found.stop) == (len(sealed), None)
    for row in range(len(sealed)):
        assert found.columns.record(row) == decode(log, int(found.columns.start[row]), sealed=False)


@given(drafts())
def test_a_verified_record_is_read_as_decode_reads_it(draft: Draft) -> None:
    record = pack_draft(draft)
    assert whole_record(record) == decode(record, 0)


@given(st.lists(drafts(), max_size=5))
def test_the_rows_with_a_checksum_property_are_those_of_the_plain_test(items: list[Draft]) -> None:
    log = pack_log(items)
    columns = scan(log, 0).columns
    records = [columns.record(row) for row in range(len(columns))]
    assert end_in_crc(columns).tolist() == [has_crc_property(one.properties_raw) for one in records]


@given(st.lists(drafts(), min_size=1, max_size=5), st.data())
def test_taking_rows_keeps_their_values(items: list[Draft], data: st.DataObject) -> None:
    columns = scan(pack_log(items), 0).columns
    rows = data.draw(st.lists(st.integers(0, len(items) - 1), max_size=6))
    chosen = columns.take(np.array(rows, np.int64))
    assert [chosen.record(row) for row in range(len(rows))] == [columns.record(r) for r in rows]


def test_a_scan_takes_bytes_bytearrays_memoryviews_and_arrays_and_copies_none() -> None:
    log = pack_log([Draft(body=b"a"), Draft(body=b"b")])
    mutable = bytearray(log)
    for data in (log, mutable, memoryview(log), np.frombuffer(mutable, np.uint8)):
        assert len(scan(data, 0).columns) == 2
    columns = scan(mutable, 0).columns
    mutable[int(columns.body_start[1])] = ord("c")
    assert columns.piece(columns.body_start, columns.body_length, 1) == b"c"


@pytest.mark.parametrize("data", [b"", b"abc", bytes(90)])
def test_a_buffer_too_short_for_a_record_has_none(data: bytes) -> None:
    found = scan(data, 0)
    assert (len(found.columns), found.end) == (0, 0)
    assert (found.stop is None) == (data == b"")


@given(st.binary(min_size=8, max_size=40), st.sampled_from([">i1", ">i2", ">i4", ">i8", ">u4"]))
def test_numbers_are_read_at_any_position(data: bytes, kind: str) -> None:
    width = int(kind[2])
    positions = np.arange(len(data) - width + 1)
    numbers = numbers_at(np.frombuffer(data, np.uint8), positions, kind)
    assert numbers.tolist() == [
        int.from_bytes(data[at : at + width], "big", signed=kind[1] == "i") for at in positions
    ]


def test_no_number_is_read_outside_the_buffer() -> None:
    with pytest.raises(IndexError):
        numbers_at(np.zeros(8, np.uint8), np.array([1]), ">i8")


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**31 - 1)), max_size=9))
def test_a_view_of_rows_reads_what_single_reads_do(rows: list[tuple[int, int]]) -> None:
    data = b"x" + b"".join(QUEUE_UNIT.pack(QUEUE_UNIT.row(at, size, -1)) for at, size in rows)
    view: Any = QUEUE_UNIT.view(data, 1)
    single = [QUEUE_UNIT.read(data, 1 + 20 * i) for i in range(len(rows))]
    assert [tuple(row) for row in view.tolist()] == [tuple(row) for row in single]
    assert not view.flags.writeable
