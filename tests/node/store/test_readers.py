"""Reading the log, one queue and the index by the files alone."""

import gc
import os
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.runtime.settings import Settings
from node.store.file_cache import OpenFiles
from node.store.indexes import IndexFolder, find_geometry
from node.store.log import reader
from node.store.log.reader import Damage, columns_past_damage, next_record
from node.store.log.segments import Segment, list_folder
from node.store.opening import StoppedStore, open_store
from node.store.query.look_up import Boundary, FindRequest, find, offset_by_time
from node.store.query.pull import PullRequest, get_message
from node.store.queues import DerivedUnits, QueueFiles, QueueReader
from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexEntry,
    IndexGeometry,
    IndexHeader,
    IndexSlot,
)
from protocol.derived.queue_build import filler_units, unit_array
from protocol.errors import BadRequest, NotFound, StoreDamaged, UnknownTopic
from protocol.ids import Queue
from protocol.record.columns import RecordColumns
from tests.support.golden import STORES, GetStore, facts

NO_INDEX_SIZES = Settings(max_hash_slot_num=3, max_index_num=7)


@pytest.fixture
def files() -> Iterator[OpenFiles]:
    with closing(OpenFiles()) as opened:
        yield opened


# The log.


@pytest.mark.parametrize("window", [300, 4096, 100_000])
def test_windows_of_any_size_give_the_same_records(golden: GetStore, window: int) -> None:
    with open_store(golden("small-clean")) as store:
        offsets: list[int] = []
        for columns in store.log.columns(0, window_bytes=window):
            offsets += columns.physical_offset.tolist()
    assert offsets == [fact["physicalOffset"] for fact in facts("small-clean").messages]


def test_columns_begin_and_stop_where_they_are_told(golden: GetStore) -> None:
    known = [fact["physicalOffset"] for fact in facts("small-clean").messages]
    with open_store(golden("small-clean")) as store:
        for first, last in ((0, 1), (17, 1000), (6999, 7000), (300, 300)):
            stop = known[last] if last < len(known) else None
            found = [o for c in store.log.columns(known[first], stop) for o in c.physical_offset]
            assert found == known[first:last]
        # A record that starts below the stop is whole, though it ends above it.
        found = [o for c in store.log.columns(known[5], known[9] + 1) for o in c.physical_offset]
        assert found == known[5:10]


def test_an_offset_outside_the_log_or_at_a_blank_has_no_record(golden: GetStore) -> None:
    with open_store(golden("trimmed")) as store:
        for offset in (-1, 0, store.log.min_offset - 1, store.log.end, store.log.end + 1):
            with pytest.raises(NotFound, match="outside the log"):
                store.log.record_at(offset)
        with pytest.raises(NotFound, match="the segment ends here"):
            store.log.record_at(4_194_284)
        with pytest.raises(NotFound, match="no record starts"):
            store.log.look_up(store.log.min_offset + 1)
        with pytest.raises(StoreDamaged):
            store.log.record_at(store.log.min_offset + 1)


@pytest.mark.parametrize("magic", [b"\xda\xa3\x20\xa7", b"body"])
def test_what_only_looks_like_a_large_record_is_not_read_for_it(
    golden_copy: GetStore, magic: bytes
) -> None:
    """A client may ask for any offset: there may be any number where a size should be."""
    root = golden_copy("default-sizes")
    with open_store(root) as store:
        place = store.log.end + 1_000
        size = store.log.segment_bytes - place - 8
        with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
            file.seek(place)
            file.write(size.to_bytes(4, "big") + magic + bytes(200))
        store.log.bounds.end = store.log.segment_bytes
        tracemalloc.start()
        try:
            with pytest.raises(NotFound, match="no record starts"):
                store.log.look_up(place)
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_damage_is_passed_where_the_next_record_proves_itself(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    known = [fact["physicalOffset"] for fact in facts("small-clean").messages]
    hit = [known[100], known[101], known[5000]]
    for offset in hit:
        damage_at(root, offset + 30)
    with open_store(root) as store:
        items = list(columns_past_damage(store.log, 0))
        assert store.log.stopped is None
    places = [(d.torn.position, d.resumed_at) for d in items if isinstance(d, Damage)]
    assert places == [(known[100], known[102]), (known[5000], known[5001])]
    found = [o for c in items if isinstance(c, RecordColumns) for o in c.physical_offset.tolist()]
    assert found == [offset for offset in known if offset not in hit]


@pytest.mark.parametrize("behind", [0, 5, 100])
def test_damage_that_reaches_to_the_stop_does_not_end_the_log(
    golden_copy: GetStore, behind: int
) -> None:
    root = golden_copy("small-clean")
    known = [fact["physicalOffset"] for fact in facts("small-clean").messages]
    damage_at(root, known[100] + 30)
    with open_store(root) as store:
        items = list(columns_past_damage(store.log, 0, known[101] - behind))
        assert store.log.stopped is None
    assert [item.resumed_at for item in items if isinstance(item, Damage)] == [known[101]]


@pytest.mark.parametrize("window", [8, 50, 16_384])
def test_the_next_record_is_found_from_anywhere_however_much_is_read_at_a_time(
    golden: GetStore, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(reader, "FIRST_WINDOW_BYTES", window)
    known = [fact["physicalOffset"] for fact in facts("small-clean").messages]
    with open_store(golden("small-clean")) as store:
        for first, second in pairwise(known[200:230]):
            for place in (first + 1, first + 7, second - 1, second):
                assert next_record(store.log, place) == second


def test_of_the_log_behind_a_place_little_is_read_for_the_next_record_near_it(
    golden: GetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def read(segment: Segment, position: int, count: int) -> bytes:
        sizes.append(count)
        return whole(segment, position, count)

    whole = Segment.read
    monkeypatch.setattr(Segment, "read", read)
    with open_store(golden("small-clean")) as store:
        sizes.clear()
        assert next_record(store.log, 100_000) is not None
    assert sum(sizes) < 64 * 1024


def damage_at(root: Path, offset: int) -> None:
    segment = root / "commitlog" / f"{offset - offset % 262_144:020d}"
    with segment.open("r+b") as file:
        file.seek(offset % 262_144)
        file.write(b"\x77\x77")


def test_old_bytes_behind_the_end_are_not_taken_for_records(golden_copy: GetStore) -> None:
    # As a broker leaves it that cut its log and wrote on: the old records stand at their places.
    root = golden_copy("small-clean")
    known = facts("small-clean").messages
    last_segment = 7_602_176
    inside = [fact for fact in known if fact["physicalOffset"] >= last_segment]
    cut, stale = inside[20], inside[30:]
    segment = root / "commitlog" / f"{last_segment:020d}"
    with segment.open("r+b") as file:
        for fact in stale:
            file.seek(fact["physicalOffset"] - last_segment + 56)
            file.write((fact["storeTimestamp"] - 86_400_000).to_bytes(8, "big"))
        file.seek(cut["physicalOffset"] - last_segment)
        file.write(b"\0" * 40)
    with open_store(root) as store:
        assert store.log.end == cut["physicalOffset"]
        assert store.tail.stop is not None


def test_a_log_whose_last_segment_is_closed_ends_at_its_blank(golden_copy: GetStore) -> None:
    root = golden_copy("small-killed")
    (root / "abort").unlink()
    for path in sorted((root / "commitlog").iterdir())[5:]:
        path.unlink()
    with open_store(root) as store:
        assert store.log.end == 1_310_708
        assert store.tail.stop is None


# Queues.


def units_of(offsets: list[int], size: int = 10) -> np.ndarray:
    column = np.array(offsets, np.int64)
    return unit_array(column, np.full(len(column), size), column)


def reader_of(
    files: OpenFiles, folder: Path, units: np.ndarray, file_units: int, log_start: int
) -> QueueReader:
    """A queue whose units lie in files of `file_units`, the last one filled with zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(units), file_units):
        path = folder / f"{first * 20:020d}"
        path.write_bytes(units[first : first + file_units].tobytes().ljust(file_units * 20, b"\0"))
    queue = QueueFiles(folder, list_folder(folder, file_units * 20), files)
    return QueueReader(queue, queue.end_below(2**62), lambda: log_start)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(count=st.integers(0, 60), file_units=st.integers(1, 9), limit=st.integers(0, 700))
def test_a_queues_end_is_found_by_bisection_and_by_walking_alike(
    files: OpenFiles,
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    file_units: int,
    limit: int,
) -> None:
    folder = tmp_path_factory.mktemp("queue")
    reader_of(files, folder, units_of([10 * n for n in range(count)]), file_units, 0)
    queue = QueueFiles(folder, list_folder(folder, file_units * 20), files)
    expected = min(count, limit // 10)
    assert queue.end_below(limit) == expected
    # A broker looks no further back than three files.
    if expected >= (max(-(-count // file_units), 1) - 3) * file_units:
        assert queue.end_below(limit, thorough=True) == expected


@pytest.mark.parametrize(
    ("log_start", "expected"), [(0, 0), (1, 1), (95, 10), (300, 30), (599, 60)]
)
def test_the_minimum_is_the_first_unit_that_the_log_still_has(
    files: OpenFiles, tmp_path: Path, log_start: int, expected: int
) -> None:
    reader = reader_of(files, tmp_path, units_of([10 * n for n in range(60)]), 7, log_start)
    assert (reader.min_offset, reader.max_offset) == (expected, 60)


@pytest.mark.parametrize("log_start", [0, 500])
def test_the_minimum_is_never_inside_the_fillers(
    files: OpenFiles, tmp_path: Path, log_start: int
) -> None:
    units = filler_units(20)
    units[4:] = units_of([1000 + 10 * n for n in range(16)])
    assert reader_of(files, tmp_path, units, 30, log_start).min_offset == 4


def test_units_on_disk_and_from_the_log_read_as_one_queue(files: OpenFiles, tmp_path: Path) -> None:
    every = units_of([10 * n for n in range(25)])
    reader_of(files, tmp_path, every[:11], 4, 0)
    queue = QueueFiles(tmp_path, list_folder(tmp_path, 80), files)
    reader = QueueReader(queue, 11, lambda: 0, DerivedUnits(11, every[11:]))
    assert reader.max_offset == 25
    for start in range(-2, 27):
        for count in range(1, 28):
            expected = every[max(start, 0) : max(start + count, 0)]
            assert np.array_equal(reader.units(start, count), expected)
    assert [part.first for part in reader.file_parts()] == [0, 4, 8, 12, 16, 20, 24]
    assert reader.file_of(23) == (20, 24)
    assert reader.file_of(24) == (24, 25)
    assert reader.file_of(25) is None
    assert reader.unit(25) is None
    assert reader.unit(-1) is None


# Times.


def plain_offset_by_time(times: list[int], low: int, timestamp: int, boundary: Boundary) -> int:
    """The rules for a queue of one file, over its units' times."""
    if boundary is Boundary.LOWER:
        return next(
            (low + n for n, time in enumerate(times) if time >= timestamp), low + len(times)
        )
    return max((low + n for n, time in enumerate(times) if time <= timestamp), default=low)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_time_is_found_as_by_looking_at_every_record(
    golden: GetStore, data: st.DataObject
) -> None:
    with open_store(golden("default-sizes")) as store:
        queue = store.queue(*data.draw(st.sampled_from(store.queues())))
        assert queue is not None
        units = queue.units(0, queue.max_offset).tolist()
        times = [store.log.record_at(offset).head.store_timestamp for offset, _, _ in units]
        near = st.builds(lambda time, by: time + by, st.sampled_from(times), st.integers(-3, 3))
        timestamp, boundary = data.draw(near), data.draw(st.sampled_from(Boundary))
        expected = plain_offset_by_time(times, 0, timestamp, boundary)
        assert offset_by_time(store.log, queue, timestamp, boundary) == expected


def test_a_queue_that_is_not_there_answers_0(golden: GetStore) -> None:
    with open_store(golden("crc32-property")) as store:
        assert offset_by_time(store.log, None, 5, Boundary.UPPER) == 0


# The index.


@pytest.mark.parametrize("name", [name for name in STORES if "missing" not in name])
def test_sizes_of_an_index_file_are_found_from_the_file(
    files: OpenFiles, golden: GetStore, name: str
) -> None:
    config = facts(name).state["config"]
    folder = IndexFolder(golden(name), NO_INDEX_SIZES.index_geometry, files)
    assert folder.open(folder.names())
    assert folder.geometry == IndexGeometry(config["maxHashSlotNum"], config["maxIndexNum"])


def test_sizes_that_agree_with_the_last_entry_by_chance_are_not_taken(
    files: OpenFiles, tmp_path: Path
) -> None:
    """As with 990 slots: they lead to what is the last entry then."""
    real = IndexGeometry(slot_count=1_000, index_num=4_000)
    image = bytearray(real.file_bytes)
    image[: INDEX_HEADER.size] = INDEX_HEADER.pack(IndexHeader(591, 874, 0, 178, 5, 6))
    hashes = [1_024_404_444, 243_895_367, 985_912_553, 1_491_957_987, 427_152_263]
    for number, (key_hash, offset) in enumerate(zip(hashes, [0, 0, 178, 178, 178], strict=True), 1):
        at, slot = real.entry_position(number), real.slot_position(key_hash % real.slot_count)
        image[at : at + INDEX_ENTRY.size] = INDEX_ENTRY.pack(IndexEntry(key_hash, offset, 0, 0))
        image[slot : slot + INDEX_SLOT.size] = INDEX_SLOT.pack(IndexSlot(number))
    path = tmp_path / "20261128214019591"
    path.write_bytes(image)
    assert find_geometry(path, len(image), [], files) == real
    image[real.entry_position(2)] ^= 0x40
    path.write_bytes(image)
    assert find_geometry(path, len(image), [], files) == real, "the best of two"


def test_an_index_file_of_odd_length_is_named(golden_copy: GetStore) -> None:
    root = golden_copy("crc32-property")
    path = max((root / "index").iterdir())
    os.truncate(path, 4099)
    with (
        open_store(root, NO_INDEX_SIZES) as store,
        pytest.raises(StoreDamaged, match="4099 bytes are no index file") as caught,
    ):
        store.index.files()
    assert str(path) == caught.value.where


def test_a_chain_that_leads_in_a_circle_ends(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    with open_store(root) as store:
        found = next(iter(store.index.candidates("lonely", "k190")))
    path = root / "index" / found.file
    with path.open("r+b") as file:
        file.seek(40 + 4 * 500 + 20 * found.entry + 16)
        file.write((1999).to_bytes(4, "big"))
    with open_store(root) as store:
        assert store.index.query("lonely", "k190") == [191]
        assert len(list(store.index.candidates("lonely", "k190"))) == 1


def mapped_files(root: Path) -> list[str]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in maps if f"{root}/" in line]


@pytest.mark.parametrize("name", ["small-clean", "small-killed", "cq-missing"])
def test_a_closed_store_maps_nothing_while_it_waits_for_the_garbage_collector(
    golden_copy: GetStore, name: str
) -> None:
    root = golden_copy(name)
    gc.disable()
    try:
        with open_store(root) as store:
            for queue in store.queues():
                get_message(store.log, store.queue(*queue), 0, PullRequest())
            find(store, FindRequest(facts(name).messages[0]["topic"], "no such key"))
            assert mapped_files(root)
        assert mapped_files(root) == []  # the name `store` still holds the object
        gone = weakref.ref(store)
        del store
        assert gone() is None
    finally:
        gc.enable()


def all_found(store: StoppedStore, request: FindRequest, limit: int) -> list[int]:
    offsets: list[int] = []
    cursor: str | None = None
    while True:
        page = find(
            store,
            FindRequest(request.topic, request.key, request.begin, request.end, limit, cursor),
        )
        assert len(page.records) <= limit
        offsets += [record.physical_offset for record in page.records]
        cursor = page.cursor
        if cursor is None:
            return offsets


def test_find_has_no_cap_and_its_pages_join(golden: GetStore) -> None:
    messages = facts("small-clean").messages
    tagged = [
        m
        for m in messages
        if (m["topic"], (m["properties"] or {}).get("TAGS")) == ("orders", "TagA")
    ]
    expected = [message["physicalOffset"] for message in reversed(tagged)]
    assert len(expected) > 64
    with open_store(golden("small-clean")) as store:
        for limit in (1, 7, 64, 1000):
            assert all_found(store, FindRequest("orders", "T#TagA"), limit) == expected
        begin, end = tagged[10]["storeTimestamp"], tagged[-10]["storeTimestamp"]
        inside = [
            m["physicalOffset"] for m in reversed(tagged) if begin <= m["storeTimestamp"] <= end
        ]
        # Exact to the millisecond, unlike the index's own seconds.
        assert all_found(store, FindRequest("orders", "T#TagA", begin, end), 20) == inside


def test_find_looks_at_the_unique_key_alone_when_told(golden: GetStore) -> None:
    with open_store(golden("small-clean")) as store:
        record = store.log.record_at(191)
        by_key = find(store, FindRequest("lonely", "k190", unique=True))
        assert by_key.records == []
        by_unique = find(store, FindRequest("lonely", record.unique_key, unique=True))
        assert [found.raw for found in by_unique.records] == [record.raw]


def test_find_refuses_an_unknown_topic_and_a_cursor_that_is_none(golden: GetStore) -> None:
    with open_store(golden("crc32-property")) as store:
        with pytest.raises(UnknownTopic):
            find(store, FindRequest("no-such-topic", "k"))
        topic = store.topics()[0]
        assert find(store, FindRequest(topic, "no-such-key")).records == []
        for cursor in ("", "x", "1:2", "1:2:x", "-1:2:3"):
            with pytest.raises(BadRequest, match="is no cursor"):
                find(store, FindRequest(topic, "k", cursor=cursor))


def test_queues_and_topics_are_sorted(golden: GetStore) -> None:
    with open_store(golden("small-clean")) as store:
        assert store.queues() == sorted(store.queues())
        assert store.queue("orders", 1) is store.queue("orders", 1)
        assert store.queue("orders", 9) is None
        assert Queue("orders", 1) in store.queues()
        assert store.topics() == sorted({queue.topic for queue in store.queues()})
