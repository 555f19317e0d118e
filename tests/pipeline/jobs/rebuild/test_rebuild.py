"""A rebuild in tasks writes the bytes that the workers' rebuild writes, and nothing else.

The engine here runs tasks one by one, each twice; Spark itself: test_jobs_spark.py.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from keelog.pipeline.errors import BadOption, JobFailed
from keelog.pipeline.jobs import scan
from keelog.pipeline.jobs.rebuild import RebuildResult, rebuild
from keelog.pipeline.jobs.scan import ScanRange
from keelog.pipeline.task_spec import LogAt
from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.store.checkpoints import WorkerCheckpoint, load_progress, save_progress
from protocol.errors import MqError, NotAStore, StoreDamaged, StoreLocked
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from protocol.record.encode import NewMessage
from tests.pipeline.jobs.forged_log import FORGED_TOPIC, forged_log
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.support.golden import GetStore
from tests.workers.living_log import SETTINGS, LivingLog
from tests.workers.test_rebuild import settings_of
from workers.rebuild import rebuild as rebuild_by_workers

STORES = ("mixed-kinds", "small-torn", "trimmed-cq-missing")
"""The others: test_jobs_spark.py, with Spark."""
Tree = dict[str, bytes | None]


def tree(root: Path) -> Tree:
    """What was derived: each file's bytes, None for a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for name in (CONSUME_QUEUE_DIR, INDEX_DIR)
        for path in (root / name, *(root / name).rglob("*"))
        if path.exists()
    }


def run(root: Path, settings: Settings = SETTINGS, **options: Any) -> RebuildResult:
    engine: Any = PlainEngine(times=2)
    return rebuild(engine, root, settings=settings, **options)


def grown(root: Path, count: int = 150) -> LivingLog:
    log = LivingLog(root)
    log.grow(count)
    log.close()
    return log


@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_is_rebuilt_as_the_workers_do(name: str, golden_copy: GetStore) -> None:
    by_workers, by_tasks = golden_copy(name), golden_copy(name)
    settings = settings_of(name)
    report = rebuild_by_workers(by_workers, settings=settings)
    result = run(by_tasks, settings, range_bytes=200_000)
    assert tree(by_tasks) == tree(by_workers)
    assert (result.records, result.queues, result.queue_files, result.index_files) == (
        *(report.records, report.queues, report.queue_files, report.index_files),
    )
    assert not (by_tasks / "rebuild.building").exists()


def test_a_queue_that_begins_within_a_file_gets_its_fillers(tmp_path: Path) -> None:
    for name in ("a", "b"):
        log = LivingLog(tmp_path / name)
        log.next_offset = {Queue("orders", 0): 37, Queue("orders", 1): 20}
        log.grow(150)
        log.close()
    rebuild_by_workers(tmp_path / "a", settings=SETTINGS)
    run(tmp_path / "b", range_bytes=3000)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_forged_record_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        start, place = forged_log(tmp_path / name)

    def cut(log: LogAt, _bytes: int, _least: int) -> list[ScanRange]:
        borders = [0, start + 100, place + 500, log.end]
        return [
            ScanRange(number, *pair, number == 0) for number, pair in enumerate(pairwise(borders))
        ]

    monkeypatch.setattr(scan, "plan_ranges", cut)
    rebuild_by_workers(tmp_path / "a", settings=SETTINGS)
    assert run(tmp_path / "b").repaired
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert not any(FORGED_TOPIC in path for path in tree(tmp_path / "b"))


def test_a_store_in_use_is_locked_and_stays_as_it_is(tmp_path: Path) -> None:
    grown(tmp_path)
    lock = StoreLock.acquire(tmp_path)
    with pytest.raises(StoreLocked, match="KEELOG_STORE_LOCKED"):
        run(tmp_path)
    lock.release()
    assert tree(tmp_path) == {}


def test_with_out_the_store_is_only_read_and_needs_no_lock(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "derived"
    grown(root)
    before = sorted(path for path in root.rglob("*") if path.name != "lock")
    lock = StoreLock.acquire(root)
    run(root, out=out)
    lock.release()
    assert sorted(path for path in root.rglob("*") if path.name != "lock") == before
    with pytest.raises(BadOption, match="exists"):
        run(root, out=out)
    run(root)
    assert tree(out) == tree(root)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["derived", "store"]


def test_one_kind_can_be_rebuilt_alone(tmp_path: Path) -> None:
    grown(tmp_path)
    assert run(tmp_path, index=False).index_files == 0
    assert not (tmp_path / INDEX_DIR).exists()
    result = run(tmp_path, queues=False)
    assert (result.queues, result.units, result.records) == (0, 0, 150)
    assert (tmp_path / INDEX_DIR).exists()


def test_progress_is_treated_as_by_the_workers_rebuild(tmp_path: Path) -> None:
    log = grown(tmp_path)
    save_progress(tmp_path, "queue-1-of-2", WorkerCheckpoint(1, 99))
    save_progress(tmp_path, "index", WorkerCheckpoint(1, 99))
    note = tmp_path / "keelog" / "run" / "queue-1-of-2.rebuilding"
    note.write_text("[]")
    run(tmp_path, index=False)
    assert load_progress(tmp_path, "queue-1-of-2") == WorkerCheckpoint(1, log.end)
    assert load_progress(tmp_path, "index") == WorkerCheckpoint(1, 99)
    assert not note.exists()


def repeated(log: LivingLog) -> None:
    log.next_offset[Queue("orders", 0)] = 3


def skipped(log: LivingLog) -> None:
    log.next_offset[Queue("orders", 0)] += 5


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (repeated, r"orders/0: queue offsets 3 to 3 are there twice"),
        (skipped, r"orders/0: queue offsets (\d+) to \d+ are missing"),
    ],
)
@pytest.mark.parametrize("range_bytes", [2000, 1 << 20])
def test_queue_offsets_that_do_not_follow_are_named_and_nothing_is_exchanged(
    tmp_path: Path, fault: Any, told: str, range_bytes: int
) -> None:
    log = LivingLog(tmp_path)
    log.grow(100)
    run(tmp_path)
    before = tree(tmp_path)
    fault(log)
    offset = log.append(NewMessage(topic="orders", queue_id=0, body=b"x"))
    log.publish()
    log.close()
    with pytest.raises(JobFailed, match=told) as caught:
        run(tmp_path, range_bytes=range_bytes)
    assert str(offset) in str(caught.value)
    assert tree(tmp_path) == before


def test_damage_in_the_log_is_named_and_what_was_built_stays(tmp_path: Path) -> None:
    log = grown(tmp_path, 300)
    run(tmp_path)
    save_progress(tmp_path, "index", WorkerCheckpoint(1, log.end))
    before = tree(tmp_path)
    at = log.starts[120]
    path = tmp_path / "commitlog" / f"{at - at % log.segment_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(at % log.segment_bytes + 89)
        file.write(b"\xff\xff")
    with pytest.raises(StoreDamaged, match=f"log offset {at}"):
        run(tmp_path, range_bytes=2000)
    assert load_progress(tmp_path, "index") == WorkerCheckpoint(1, log.end)
    assert tree(tmp_path) == before


@contextmanager
def failing_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes fail after some have been made."""
    left = 20
    write = os.pwrite

    def pwrite(*arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("node.runtime.disk.os.pwrite", pwrite)
        yield


def test_an_aborted_job_leaves_the_old_files_and_the_next_one_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown(tmp_path)
    run(tmp_path)
    before = tree(tmp_path)
    with failing_in_the_middle(monkeypatch), pytest.raises(MqError, match="No space left"):
        run(tmp_path)
    assert tree(tmp_path) == before
    assert (tmp_path / "rebuild.building").is_dir()
    run(tmp_path)
    assert tree(tmp_path) == before
    assert not (tmp_path / "rebuild.building").exists()


def test_a_folder_without_a_log_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / CONSUME_QUEUE_DIR).mkdir()
    (tmp_path / CONSUME_QUEUE_DIR / "mine").touch()
    with pytest.raises(NotAStore, match="commitlog"):
        run(tmp_path)
    assert list(tree(tmp_path)) == [CONSUME_QUEUE_DIR, f"{CONSUME_QUEUE_DIR}/mine"]


def test_a_plan_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="inplace or shuffle"):
        run(tmp_path, plan="sideways")
