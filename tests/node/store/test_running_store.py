"""A running store: what may be read follows what its processes publish."""

import gc
import os
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.runtime.state_page import LogPage, WorkerPage, page_path, queue_slot, run_dir
from node.store import opening
from node.store.file_cache import OpenFiles
from node.store.indexes import IndexFolder
from node.store.opening import RunningStore, open_store
from node.store.query.pull import PullRequest, PullStatus, get_message
from protocol.derived.file_layouts import IndexGeometry
from protocol.errors import NotFound, StoreDamaged
from protocol.ids import Queue, shard_of
from tests.support.golden import GetStore

SHARDS = 2
QUEUE = Queue("orders", 0)
SETTINGS = Settings(
    mapped_file_size_commit_log=262_144,
    mapped_file_size_consume_queue=4000,
    max_hash_slot_num=500,
    max_index_num=2000,
)


@dataclass
class Stage:
    """A golden store whose pages the test writes, as the node's processes would."""

    root: Path
    end: int
    log: LogPage
    workers: list[WorkerPage]

    def publish(self, readable: int, dispatched: int | None = None, epoch: int = 1) -> None:
        """All of the log up to `readable`, all shards up to `dispatched`."""
        self.log.begin_epoch(epoch, epoch_start=0, min_offset=0, readable=readable)
        for worker in self.workers:
            worker.begin_epoch(epoch, dispatched=readable if dispatched is None else dispatched)


@pytest.fixture
def stage(golden_copy: GetStore) -> Iterator[Stage]:
    root = golden_copy("small-clean")
    with open_store(root) as dead:
        end = dead.log.end
    run_dir(root).mkdir(parents=True)
    slots = [queue_slot(shard, SHARDS) for shard in range(SHARDS)]
    built = Stage(root, end, LogPage.create(root), [WorkerPage.create(root, s) for s in slots])
    yield built
    for page in (built.log, *built.workers):
        page.close()


@pytest.fixture
def live(stage: Stage) -> Iterator[RunningStore]:
    with RunningStore(stage.root, SHARDS, SETTINGS) as store:
        yield store


def expected_end(root: Path, limit: int) -> int:
    with open_store(root) as dead:
        reader = dead.queue(*QUEUE)
        assert reader is not None
        units = reader.units(0, reader.max_offset)
        return int(((units["physical_offset"] + units["size"]) <= limit).sum())


def test_a_bounded_number_of_queues_is_remembered(
    stage: Stage, live: RunningStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "QUEUE_READERS_MAX", 2)
    stage.publish(stage.end)
    live.refresh()
    for _ in range(2):
        for queue in live.queues():
            reader = live.queue(*queue)
            assert reader is not None
            assert reader.max_offset > 0
            assert live.queue(*queue) is reader
    first = live.queue(*QUEUE)
    others = [queue for queue in live.queues() if queue != QUEUE]
    assert len(others) > 2
    assert live.queue(*QUEUE) is not first


def test_nothing_is_there_before_the_writer_has_said_so(live: RunningStore) -> None:
    assert (live.log.min_offset, live.log.end) == (0, 0)
    reader = live.queue(*QUEUE)
    assert reader is not None
    assert get_message(live.log, reader, 0, PullRequest()).status is PullStatus.NO_MESSAGE_IN_QUEUE


def test_a_store_that_has_no_writer_yet_is_empty_and_comes_alive(
    stage: Stage, golden_copy: GetStore
) -> None:
    root = golden_copy("small-clean")
    with RunningStore(root, SHARDS, SETTINGS) as store:
        assert store.log.end == 0
        shutil.copytree(run_dir(stage.root), run_dir(root))
        store.refresh()
        assert store.log.end == 0


def test_a_queue_ends_where_its_worker_has_got_to(stage: Stage, live: RunningStore) -> None:
    for limit in (0, 100_000, 100_000, 2_500_000, stage.end):
        stage.publish(stage.end, limit)
        live.refresh()
        reader = live.queue(*QUEUE)
        assert reader is not None
        assert reader.max_offset == expected_end(stage.root, limit)
        result = get_message(live.log, reader, reader.max_offset, PullRequest())
        assert result.count == 0
    assert live.visible_end(QUEUE) == stage.end
    assert shard_of(QUEUE, SHARDS) in range(SHARDS)


def test_no_unit_counts_whose_record_is_not_readable(stage: Stage, live: RunningStore) -> None:
    stage.publish(readable=1_000_000, dispatched=stage.end)
    live.refresh()
    reader = live.queue(*QUEUE)
    assert reader is not None
    assert reader.max_offset == expected_end(stage.root, 1_000_000)
    with pytest.raises(NotFound):
        live.log.record_at(1_000_000)


def test_new_segments_queue_files_and_topics_are_noticed(stage: Stage, golden: GetStore) -> None:
    root = stage.root
    hidden = root / "hidden"
    hidden.mkdir()
    late = sorted((root / "commitlog").iterdir())[5:]
    more = sorted((root / "consumequeue" / "orders" / "0").iterdir())[1:]
    for path in (*late, *more, root / "consumequeue" / "x"):
        path.rename(hidden / f"{path.parent.name}-{path.name}")
    limit = 200_000
    stage.publish(limit)
    with RunningStore(root, SHARDS, SETTINGS) as live:
        before = live.queue(*QUEUE)
        assert before is not None
        first_end = before.max_offset
        assert live.queue("x", 0) is None
        for path in (*late, *more, root / "consumequeue" / "x"):
            (hidden / f"{path.parent.name}-{path.name}").rename(path)
        stage.publish(stage.end)
        live.refresh()
        with open_store(golden("small-clean")) as dead:
            for queue in dead.queues():
                reader, expected = live.queue(*queue), dead.queue(*queue)
                assert reader is not None
                assert expected is not None
                assert reader.max_offset == expected.max_offset
            assert live.queues() == dead.queues()
            assert live.topics() == dead.topics()
            last = expected_end(root, stage.end) - 1
            assert last > first_end
            result = get_message(live.log, live.queue(*QUEUE), last, PullRequest())
            assert result.status is PullStatus.FOUND


def test_another_epoch_forgets_the_ends_that_were_known(stage: Stage, live: RunningStore) -> None:
    stage.publish(stage.end)
    live.refresh()
    reader = live.queue(*QUEUE)
    assert reader is not None
    assert reader.max_offset == expected_end(stage.root, stage.end)
    # The log was cut, and the worker has taken its units back.
    folder = stage.root / "consumequeue" / "orders" / "0"
    kept = expected_end(stage.root, 3_000_000)
    for file in folder.iterdir():
        data = bytearray(file.read_bytes())
        start = max(kept * 20 - int(file.name), 0)
        data[start:] = bytes(len(data) - min(start, len(data)))
        file.write_bytes(data)
    stage.publish(3_000_000, epoch=2)
    live.refresh()
    reader = live.queue(*QUEUE)
    assert reader is not None
    assert reader.max_offset == kept
    result = get_message(live.log, reader, kept + 5, PullRequest())
    assert result.status is PullStatus.OFFSET_OVERFLOW_BADLY
    assert result.next_begin_offset == kept


@pytest.mark.parametrize("slot", ["log", "queue-0-of-2", "queue-1-of-2"])
def test_a_page_that_another_file_has_taken_the_name_of_is_noticed(
    stage: Stage, live: RunningStore, slot: str
) -> None:
    stage.publish(stage.end)
    live.refresh()
    assert not live.pages.are_replaced()
    path = page_path(stage.root, slot)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    path.unlink()
    assert not live.pages.are_replaced()
    assert live.pages.are_gone()
    other.rename(path)
    assert live.pages.are_replaced()
    assert live.pages.growths() == [0, 0], "whoever asks looks at the same mapping"
    assert live.pages.are_replaced()


def test_numbers_that_are_being_replaced_change_nothing(stage: Stage, live: RunningStore) -> None:
    stage.publish(stage.end)
    live.refresh()
    stage.log.publish(epoch=0, readable=5)
    live.refresh()
    assert live.log.end == stage.end


def test_what_retention_removes_goes_from_log_and_queues(stage: Stage, live: RunningStore) -> None:
    stage.publish(stage.end)
    live.refresh()
    reader = live.queue(*QUEUE)
    assert reader is not None
    assert reader.min_offset == 0
    assert live.log.raw(0, live.log.record_at(0).size)
    start = 262_144 * 12
    stage.log.publish(min_offset=start)
    for path in sorted((stage.root / "commitlog").iterdir())[:12]:
        path.unlink()
    live.refresh()
    reader = live.queue(*QUEUE)
    assert reader is not None
    unit = reader.unit(reader.min_offset)
    assert unit is not None
    assert unit.physical_offset >= start
    assert get_message(live.log, reader, 0, PullRequest()).status is PullStatus.OFFSET_TOO_SMALL
    with pytest.raises(NotFound):
        live.log.record_at(0)


def test_keys_are_found_while_the_index_is_written(stage: Stage, live: RunningStore) -> None:
    stage.publish(stage.end)
    live.refresh()
    assert live.index.query("lonely", "k190") == [191]
    # A slot that names an entry the header does not count yet hides nothing.
    path = min((stage.root / "index").iterdir())
    with path.open("r+b") as file:
        file.seek(36)
        file.write((2).to_bytes(4, "big"))
    assert [found.physical_offset for found in live.index.candidates("lonely", "k190")] == [191]


def test_a_closed_running_store_is_in_no_reference_cycle(stage: Stage) -> None:
    gc.disable()
    try:
        with RunningStore(stage.root, SHARDS, SETTINGS) as live:
            stage.publish(stage.end)
            live.refresh()
            assert live.index.query("lonely", "k190") == [191]
            assert live.queue(*QUEUE) is not None
        gone = weakref.ref(live)
        del live
        assert gone() is None
    finally:
        gc.enable()


def test_index_files_are_listed_again_only_when_their_folder_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "20260101000000000").write_bytes(b"x")
    index = IndexFolder(tmp_path, Settings().index_geometry, OpenFiles(4))
    listings: list[int] = []
    listed = index.names

    def counted() -> list[str]:
        listings.append(1)
        return listed()

    monkeypatch.setattr(index, "names", counted)
    for number in (1, 2):  # changed just now: its time may not tell the next change
        assert index.live_names() == ["20260101000000000"]
        assert len(listings) == number
    os.utime(folder, (1, 1))
    for _ in range(3):
        assert index.live_names() == ["20260101000000000"]
    assert len(listings) == 3
    (folder / "20260101000000001").write_bytes(b"x")
    assert index.live_names() == ["20260101000000000", "20260101000000001"]
    shutil.rmtree(folder)
    assert index.live_names() == []


def test_index_files_that_are_deleted_one_by_one_hide_none_of_those_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    geometry = IndexGeometry(slot_count=10, index_num=20)
    folder = tmp_path / "index"
    folder.mkdir()
    paths = [folder / f"2026010100000000{number}" for number in range(4)]
    for path in paths:
        path.write_bytes(bytes(geometry.file_bytes))
    index = IndexFolder(tmp_path, geometry, OpenFiles(4))
    listed, expired = index.names, paths[:3]

    def listed_then_deleted() -> list[str]:
        names = listed()
        if expired:
            expired.pop(0).unlink()
        return names

    monkeypatch.setattr(index, "names", listed_then_deleted)
    assert index.live_files()[-1].name == paths[3].name
    monkeypatch.setattr(index, "names", lambda: [paths[0].name])
    with pytest.raises(StoreDamaged, match=paths[0].name):
        index.live_files()
