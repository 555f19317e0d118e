"""Compiled dispatch against numpy's and the plain rules: units, keys, entries, slots."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.derived import dispatch_request
from protocol.derived.dispatch_request import (
    DispatchRequests,
    compiled_index_keys,
    plain_index_keys,
)
from protocol.derived.file_layouts import IndexGeometry, IndexHeader, KeyBatch, fold_hash
from protocol.derived.index_build import EMPTY_HEADER, put_keys, rolled_header
from protocol.ids import Queue, shard_of
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.record.columns import RecordColumns, scan
from protocol.record.java_hash import java_hash
from protocol.record.properties import encode_properties
from tests.protocol.records import Draft, drafts, pack_log
from tests.support.kernel import using
from workers.queue_units import UnitGroup, unit_groups

LEVELS = (1000, 5000, 2**40)
SCHEDULE = b"SCHEDULE_TOPIC_XXXX"

RAW_TEXT = st.one_of(
    st.text(max_size=9).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=6),
    st.sampled_from([b"", b" ", b"  a  b ", b"k1 k2", b"\xed\xa0\x80\xed\xb0\x80", b"\xf4\x90x"]),
)
DELAYS = st.sampled_from(
    [b"1", b"+2", b"-3", b"0", b"99", b"", b"x", b"2147483648", b"-2147483648", b"+", b"1 "]
)


@pytest.fixture(scope="module")
def compiled() -> Iterator[Kernel]:
    if not Path(loader.path()).exists():
        pytest.skip("this installation has no compiled kernel")
    found = Kernel(loader.path())
    with using(found):
        yield found


@st.composite
def messages(draw: st.DrawFn) -> Draft:
    """Records such as dispatch looks at: keys in any bytes, repeated names, delays, few queues."""
    names = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"KEY", b"other"])
    texts, delays = st.tuples(names, RAW_TEXT), st.tuples(st.just(b"DELAY"), DELAYS)
    pairs = draw(st.lists(texts | delays, max_size=6))
    return Draft(
        topic=draw(st.sampled_from([b"t", b"topic-b", "Ω名".encode(), SCHEDULE, b"x" * 127])),
        properties=b"".join(name + b"\1" + value + b"\2" for name, value in pairs),
        queue_id=draw(st.sampled_from([0, 1, 2**31 - 1, -1])),
        queue_offset=draw(st.integers(0, 3) | st.integers(-(2**63), 2**63 - 1)),
        sys_flag=draw(st.sampled_from([0, 0, 0, 4, 8, 12])),
        store_timestamp=draw(st.sampled_from([0, 1_700_000_000_000, 2**63 - 1])),
    )


LISTS = st.lists(st.one_of(messages(), drafts()), max_size=8)


def columns_of(items: list[Draft]) -> RecordColumns:
    columns = scan(pack_log(items), 0).columns
    assert len(columns) == len(items)
    return columns


def requests_of(items: list[Draft]) -> DispatchRequests:
    return DispatchRequests(columns_of(items), LEVELS)


def shown(groups: Iterator[UnitGroup]) -> dict[Queue, tuple[bytes, list[int]]]:
    return {
        group.queue: (group.batch.units.tobytes(), group.batch.queue_offset.tolist())
        for group in groups
    }


@given(LISTS, st.sampled_from([1, 2, 3]))
def test_units_are_those_of_numpy_queue_by_queue(
    compiled: Kernel, items: list[Draft], shards: int
) -> None:
    def own(topic: bytes, queue_id: int) -> Queue | None:
        queue = Queue(topic.decode(), queue_id)
        return queue if shard_of(queue, shards) == 0 else None

    found = list(unit_groups(requests_of(items), own))
    with using(None):
        expected = shown(unit_groups(requests_of(items), own))
    assert shown(iter(found)) == expected
    for group in found:
        if not group.physical_end:
            # Left to the columns, as digits that are not ASCII are: they know less.
            assert group.follows is None
            assert any(item.topic == SCHEDULE and not item.properties.isascii() for item in items)
            continue
        units, offsets = group.batch
        ends = units["physical_offset"].astype(np.int64) + units["size"]
        assert (group.physical_start, group.physical_end) == (ends[0], ends[-1])
        follow = all(
            b - a == 1 for a, b in zip(offsets.tolist(), offsets.tolist()[1:], strict=False)
        )
        assert group.follows == (offsets[0] if follow else None)


@given(LISTS, st.booleans())
@example([Draft(topic=SCHEDULE, properties="DELAY\1\u00f6\2".encode())], True)
def test_keys_are_those_of_the_plain_rule(
    compiled: Kernel, items: list[Draft], with_tags: bool
) -> None:
    requests = requests_of(items)
    found = compiled_index_keys(compiled, requests.columns, with_tags)
    records = [requests.columns.record(row) for row in range(len(requests.columns))]
    if found is None:
        delays = [record.properties.get("DELAY", "") for record in records]
        assert any(not delay.isascii() for delay in delays), "only such are left to Python"
        return
    with using(None):
        expected = dispatch_request.index_keys(requests_of(items), with_tags)
        indexed = requests_of(items).is_indexed
    assert found[0].tolist() == expected.row.tolist()
    assert found[1].tolist() == expected.key_hash.tolist()
    plain = []
    for row in np.flatnonzero(indexed).tolist():
        record = records[row]
        tags = record.tags if with_tags else ""
        texts = plain_index_keys(record.topic, record.unique_key, record.keys, tags)
        plain += [fold_hash(java_hash(text)) for text in texts]
    assert found[1].tolist() == plain


def test_more_keys_than_there_is_room_for_at_first_are_all_found(compiled: Kernel) -> None:
    keys = " ".join(f"key-{number}" for number in range(500))
    columns = columns_of([Draft(properties=encode_properties({"KEYS": keys}))])
    found = compiled_index_keys(compiled, columns, True)
    assert found is not None
    assert len(found[0]) == 500
    with using(None):
        expected = dispatch_request.index_keys(DispatchRequests(columns))
    assert found[1].tolist() == expected.key_hash.tolist()


def test_a_delay_in_other_digits_than_ascii_is_left_to_python(compiled: Kernel) -> None:
    arabic_two = "\u0662"
    draft = Draft(topic=SCHEDULE, properties=encode_properties({"DELAY": arabic_two, "TAGS": "a"}))
    requests = requests_of([draft, Draft(topic=b"t", properties=b"KEYS\1k\2")])
    assert compiled_index_keys(compiled, requests.columns, True) is None
    groups = list(unit_groups(requests, lambda topic, number: Queue(topic.decode(), number)))
    code = groups[0].batch.units["tags_code"][0]
    assert code == requests.columns.store_timestamp[0] + LEVELS[1]
    assert len(groups) == 2


GEOMETRIES = st.sampled_from([IndexGeometry(7, 40), IndexGeometry(3000, 40), IndexGeometry(1, 5)])
KEYS = st.lists(
    st.tuples(st.integers(0, 50) | st.integers(0, 2**31 - 1), st.integers(0, 2**62)), max_size=30
)
TIMES = st.integers(-5, 5) | st.integers(0, 2**62) | st.just(2**63 - 1)


@given(GEOMETRIES, st.lists(st.tuples(KEYS, TIMES), max_size=4), st.booleans())
def test_entered_keys_are_those_of_numpy(
    compiled: Kernel,
    geometry: IndexGeometry,
    batches: list[tuple[list[tuple[int, int]], int]],
    follows: bool,
) -> None:
    header = rolled_header(IndexHeader(5, 1000, 7, 90, 3, 9)) if follows else EMPTY_HEADER
    tables = [np.zeros(geometry.slot_count, ">i4") for _ in range(2)]
    tables[0][:: max(geometry.slot_count // 3, 1)] = tables[1][
        :: max(geometry.slot_count // 3, 1)
    ] = 39  # a crash may leave slots that point behind the last entry
    for keys, time in batches:
        columns = np.array(keys, np.int64).reshape(-1, 2)
        times = np.full(len(keys), time) - np.arange(len(keys)) % 3
        batch = KeyBatch(columns[:, 0].astype(np.int32), columns[:, 1], times)
        before = tables[0].copy()
        with using(None):
            expected = put_keys(header, geometry, tables[1], batch)
        found = put_keys(header, geometry, tables[0], batch)
        assert (found.first_entry, found.header) == (expected.first_entry, expected.header)
        assert found.entries.tobytes() == expected.entries.tobytes()
        assert tables[0].tobytes() == tables[1].tobytes()
        covered = np.zeros(geometry.slot_count, np.bool_)
        for start, stop in found.spans:
            assert 0 <= start < stop <= geometry.slot_count
            covered[start:stop] = True
        assert covered[np.flatnonzero(before != tables[0])].all()
        header = found.header
