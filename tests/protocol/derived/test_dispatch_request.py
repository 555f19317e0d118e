"""What the builders get, against the plain decoder, record by record."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.dispatch_request import (
    DispatchRequests,
    index_keys,
    plain_index_keys,
    split_ragged,
)
from protocol.derived.file_layouts import fold_hash
from protocol.record.codec import Record, unit_tags_code
from protocol.record.columns import scan
from protocol.record.java_hash import java_hash, java_text
from protocol.record.properties import decode_raw_properties
from tests.protocol.records import Draft, drafts, pack_log

pytestmark = pytest.mark.usefixtures("way")

LISTS = st.lists(drafts(), max_size=6)


def requests_of(items: list[Draft]) -> tuple[DispatchRequests, list[Record]]:
    columns = scan(pack_log(items), 0).columns
    assert len(columns) == len(items)
    return DispatchRequests(columns), [columns.record(row) for row in range(len(columns))]


@given(LISTS)
def test_requests_say_what_the_plain_decoder_says(items: list[Draft]) -> None:
    requests, records = requests_of(items)
    assert len(requests) == len(records)
    for row, record in enumerate(records):
        head = record.head
        assert requests.topics[int(requests.topic_id[row])] == record.topic
        code = unit_tags_code(record)
        assert bool(requests.success[row]) == (code is not None)
        assert int(requests.tags_code[row]) == (code or 0)
        raw = decode_raw_properties(record.properties_raw)
        assert requests.found.keys() == {b"TAGS", b"KEYS", b"UNIQ_KEY"}
        for name, pieces in requests.found.items():
            found = requests.columns.data[pieces.start[row] :][: pieces.length[row]].tobytes()
            assert java_text(found) == java_text(raw.get(name, b""))
        unit = (head.physical_offset, head.total_size, code or 0)
        assert requests.units(np.array([row])).tolist() == [unit]
        kind = head.sys_flag & 0xC
        assert bool(requests.is_queued[row]) == (code is not None and kind in (0, 8))
        assert bool(requests.is_indexed[row]) == (code is not None and kind != 0xC)


@given(LISTS, st.booleans())
def test_index_keys_are_those_of_the_plain_rule_in_its_order(
    items: list[Draft], with_tags: bool
) -> None:
    requests, records = requests_of(items)
    expected = [
        (row, fold_hash(java_hash(text)))
        for row, record in enumerate(records)
        if requests.is_indexed[row]
        for text in plain_index_keys(
            record.topic,
            record.unique_key,
            record.keys,
            record.tags if with_tags else "",
        )
    ]
    found = index_keys(requests, with_tags)
    assert list(zip(found.row.tolist(), found.key_hash.tolist(), strict=True)) == expected


def test_the_keys_of_one_record_stand_in_order() -> None:
    draft = Draft(topic=b"FooBar", properties=b"TAGS\1A\2KEYS\1k1  k2 k1\2UNIQ_KEY\1u\2")
    requests, _ = requests_of([draft])
    texts = ["FooBar#u", "FooBar#k1", "FooBar#k2", "FooBar#k1", "FooBar#T#A"]
    assert plain_index_keys("FooBar", "u", ["k1", "k2", "k1"], "A") == texts
    assert index_keys(requests).key_hash.tolist() == [fold_hash(java_hash(text)) for text in texts]
    assert len(index_keys(requests, with_tags=False).row) == 4


def test_a_key_text_with_the_smallest_hash_is_entered_under_0() -> None:
    topic, key = "t", _key_with_smallest_hash("t#")
    requests, _ = requests_of([Draft(topic=topic.encode(), properties=b"KEYS\1" + key.encode())])
    assert java_hash(f"{topic}#{key}") == -(2**31)
    assert index_keys(requests).key_hash.tolist() == [0]


def _key_with_smallest_hash(prefix: str) -> str:
    """Seven characters from '!' to '~' that bring the hash to 2^31 modulo 2^32."""
    goal = (2**31 - java_hash(prefix) * 31**7) % 2**32
    base = sum(33 * 31**power for power in range(7))
    for wraps in range(60):
        rest, digits = goal + wraps * 2**32 - base, []
        for power in range(6, -1, -1):
            digit = min(max(rest // 31**power, 0), 93)
            digits.append(digit)
            rest -= digit * 31**power
        if rest == 0:
            return "".join(chr(33 + digit) for digit in digits)
    raise AssertionError("no such key")


def test_a_delay_that_is_no_number_gives_no_unit_and_no_entry() -> None:
    draft = Draft(topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\1x\2KEYS\1k\2TAGS\1A\2")
    requests, _ = requests_of([draft, Draft(properties=b"KEYS\1k\2")])
    assert requests.success.tolist() == [False, True]
    assert requests.is_queued.tolist() == [False, True]
    assert index_keys(requests).row.tolist() == [1]


def test_a_delivery_time_beyond_64_bits_does_not_stop_the_batch() -> None:
    draft = Draft(
        topic=b"SCHEDULE_TOPIC_XXXX", properties=b"DELAY\x0118\2", store_timestamp=2**63 - 1
    )
    requests, records = requests_of([draft])
    assert requests.tags_code.tolist() == [unit_tags_code(records[0])]


def test_no_records_are_no_requests() -> None:
    requests, _ = requests_of([])
    assert len(requests) == 0
    assert len(index_keys(requests).row) == 0


@given(st.lists(st.binary(max_size=12), max_size=8), st.sampled_from([1, 2, 0x20]))
def test_ragged_rows_split_as_bytes_split_does(rows: list[bytes], separator: int) -> None:
    flat = np.frombuffer(b"".join(rows), np.uint8)
    ends = np.cumsum([len(row) for row in rows]).astype(np.int64)
    row, start, length = split_ragged(flat, ends, separator)
    found = [
        (r, flat[s : s + n].tobytes())
        for r, s, n in zip(row.tolist(), start.tolist(), length.tolist(), strict=True)
    ]
    expected = [
        (number, piece)
        for number, data in enumerate(rows)
        for piece in data.split(bytes([separator]))
    ]
    assert found == expected


@given(st.lists(st.lists(st.sampled_from([b"\2", b"a", b"\2\2"]), max_size=6), max_size=6))
def test_ragged_rows_full_of_separators_split_too(rows: list[list[bytes]]) -> None:
    joined = [b"".join(row) for row in rows]
    flat = np.frombuffer(b"".join(joined), np.uint8)
    ends = np.cumsum([len(row) for row in joined]).astype(np.int64)
    row, _, length = split_ragged(flat, ends, 2)
    pieces = [(n, len(piece)) for n, data in enumerate(joined) for piece in data.split(b"\2")]
    assert list(zip(row.tolist(), length.tolist(), strict=True)) == pieces
