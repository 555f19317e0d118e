"""The file from which a broker starts: it says no more than what is synced."""

import os
from pathlib import Path

import pytest

from node.runtime.locks import FileLock
from node.runtime.settings import Settings
from node.runtime.state_page import WorkerPage, queue_slot, run_dir
from node.writer.broker_checkpoint import BrokerCheckpoint, live_workers
from protocol.derived.file_layouts import StoreCheckpoint, decode_checkpoint
from tests.support.golden import GetStore, facts

SETTINGS = Settings(max_hash_slot_num=500, max_index_num=2000)
HEADERS = facts("small-clean").index_headers


def saved(root: Path, queues: int, index: int) -> StoreCheckpoint:
    """What is written when the workers have synced so far."""
    run_dir(root).mkdir(parents=True, exist_ok=True)
    locks = []
    for slot, offset in ((queue_slot(0, 1), queues), ("index", index)):
        locks.append(FileLock.take(run_dir(root) / f"{slot}.lock"))
        with WorkerPage.create(root, slot) as page:
            page.publish(saved=offset)
    checkpoint = BrokerCheckpoint(root, SETTINGS)
    checkpoint.save_running()
    checkpoint.close()
    for lock in locks:
        lock.release()
    data = (root / "checkpoint").read_bytes()
    assert len(data) == 4096
    return decode_checkpoint(data)


@pytest.mark.parametrize("full", [1, 3, 7])
def test_only_full_and_synced_index_files_are_named(golden_copy: GetStore, full: int) -> None:
    root = golden_copy("small-clean")
    synced = HEADERS[full - 1]["endPhyOffset"] + 1
    found = saved(root, queues=10**9, index=synced)
    assert found.index_msg_timestamp == HEADERS[full - 1]["endTimestamp"]
    assert found.logics_physical_offset == min(HEADERS[full]["beginPhyOffset"], synced)
    assert found.logics_msg_timestamp == HEADERS[full]["beginTimestamp"]


def test_an_index_that_nothing_vouches_for_is_not_named(golden_copy: GetStore) -> None:
    found = saved(golden_copy("small-clean"), queues=10**9, index=0)
    assert (found.index_msg_timestamp, found.logics_physical_offset) == (0, 0)


def test_the_slowest_queue_worker_counts(golden_copy: GetStore) -> None:
    found = saved(golden_copy("small-clean"), queues=4711, index=10**9)
    assert found.logics_physical_offset == 4711


def test_without_workers_the_file_stays_as_it_is(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    before = (root / "checkpoint").read_bytes()
    checkpoint = BrokerCheckpoint(root, SETTINGS)
    checkpoint.save_running()
    checkpoint.close()
    assert (root / "checkpoint").read_bytes() == before


@pytest.mark.parametrize("way", ["in place", "emptied", "removed", "by rename"])
def test_what_others_put_there_is_written_over_at_a_clean_stop(
    golden_copy: GetStore, way: str
) -> None:
    root = golden_copy("small-clean")
    path = root / "checkpoint"
    checkpoint = BrokerCheckpoint(root, SETTINGS)
    checkpoint.save_clean(7, 8, 9)
    before = path.read_bytes()
    if way == "in place":
        path.write_bytes(os.urandom(4096))
    elif way == "emptied":
        os.truncate(path, 0)
    elif way == "removed":
        path.unlink()
    else:
        (root / "other").write_bytes(os.urandom(4096))
        (root / "other").rename(path)
    checkpoint.save_clean(7, 8, 9)
    checkpoint.close()
    assert path.read_bytes()[:48] == before[:48]
    assert path.stat().st_size == 4096


def test_a_page_that_is_being_made_is_no_worker(tmp_path: Path) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    (run_dir(tmp_path) / "index.page").write_bytes(b"")
    lock = FileLock.take(run_dir(tmp_path) / "queue-0-of-1.lock")
    with WorkerPage.create(tmp_path, "queue-0-of-1"):
        assert set(live_workers(tmp_path)) == {"queue-0-of-1"}
    lock.release()


def test_a_page_whose_lock_nobody_holds_is_no_worker_whatever_its_pid(tmp_path: Path) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    with WorkerPage.create(tmp_path, "queue-0-of-1") as page:
        assert page.read().pid == os.getpid()
        assert not live_workers(tmp_path)
        lock = FileLock.take(run_dir(tmp_path) / "queue-0-of-1.lock")
        page.publish(pid=2**22 + 1)
        assert set(live_workers(tmp_path)) == {"queue-0-of-1"}
        lock.release()
