"""The workers as processes: alone on a store at rest, following a log, killed, told to stop."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from node.runtime.state_page import DAMAGED, RUNNING, STOPPED, WorkerPage, run_dir
from node.runtime.wakeup import RINGS_AT_ONCE, Wakeup
from node.store.checkpoints import list_progress
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from tests.support.golden import GetStore
from tests.workers.bench_of_workers import expected, new_log
from tests.workers.living_log import SETTING_OPTIONS, LivingLog, derived
from tests.workers.test_rebuild import expected_files, found_files

pytestmark = pytest.mark.process

QUEUES = ("workers.consume_queue", "--shard", "0", "--shards", "1")
HALVES = (
    ("workers.consume_queue", "--shard", "0", "--shards", "2"),
    ("workers.consume_queue", "--shard", "1", "--shards", "2"),
)
INDEX = ("workers.index_file",)
WAIT_S = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]


class Process:
    """One worker, ready when this is made."""

    def __init__(self, root: Path, worker: tuple[str, ...], *options: str) -> None:
        read_end, write_end = os.pipe()
        module, *rest = worker
        options = (*rest, *SETTING_OPTIONS, *options, "--ready-fd", str(write_end))
        self.child = subprocess.Popen(
            [sys.executable, "-m", module, str(root), *options],
            pass_fds=[write_end],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            self.ready = pipe.readline()

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Exit code and what it said, after a signal or by itself."""
        if number is not None:
            self.child.send_signal(number)
        _, said = self.child.communicate(timeout=WAIT_S)
        return self.child.returncode, said


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def dispatched(log: LivingLog, slot: str) -> int:
    with WorkerPage.open(log.root, slot) as page:
        return page.read().dispatched


def test_workers_alone_on_a_store_at_rest_make_rocketmqs_files(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    for folder in (CONSUME_QUEUE_DIR, INDEX_DIR):
        shutil.rmtree(root / folder)
    sizes = ("mapped_file_size_consume_queue=4000", "max_hash_slot_num=500", "max_index_num=2000")
    options = [word for size in sizes for word in ("-X", size)]
    workers = [Process(root, worker, "--once", *options) for worker in (*HALVES, INDEX)]
    assert [worker.end()[0] for worker in workers] == [0, 0, 0]
    assert found_files(root) == expected_files("small-clean")


def test_following_workers_keep_up_tell_readers_and_stop_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new_log(tmp_path)
    log.grow(40)
    workers = [Process(log.root, worker) for worker in (*HALVES, INDEX)]
    slots = ["queue-0-of-2", "queue-1-of-2", "index"]
    assert [json.loads(worker.ready)["ready"] for worker in workers] == [True] * 3
    monkeypatch.chdir(run_dir(log.root))
    listener, bell = WorkerPage.create(log.root, "reader-0"), Wakeup("reader-0")
    listener.publish(listens=1)

    def hears() -> bool:
        """A worker finds a new reader within the time of a heartbeat."""
        log.grow(3)
        return bell.hush(RINGS_AT_ONCE) > 0

    until(hears)
    listener.publish(listens=0)
    log.grow(60)
    for slot in slots:
        until(lambda slot=slot: dispatched(log, slot) == log.end)  # type: ignore[misc]
        with WorkerPage.open(log.root, slot) as page:
            assert page.read().state == RUNNING
            assert abs(page.read().heartbeat_ms - time.time() * 1000) < 5000
    bell.close()
    listener.close()
    log.grow(5)
    for worker in workers:  # each waits a while for the end of the writer, which is not there
        worker.child.send_signal(signal.SIGTERM)
    for worker, slot in zip(workers, slots, strict=True):
        assert worker.end()[0] == 0
        with WorkerPage.open(log.root, slot) as page:
            assert (page.read().state, page.read().saved) == (STOPPED, log.end)
    log.close()
    assert {progress.offset for progress in list_progress(log.root).values()} == {log.end}
    assert derived(log.root) == expected(log)


def test_a_worker_that_starts_again_tells_readers_what_no_worker_before_it_told(
    tmp_path: Path,
) -> None:
    log = new_log(tmp_path)
    seen = [-1]

    def tells_more() -> bool:
        with WorkerPage.open(log.root, "queue-0-of-1") as page:
            seen.append(page.growths)
        return seen[-1] > max(seen[:-1])

    for _ in range(3):
        worker = Process(log.root, QUEUES)
        until(tells_more)  # of its start alone
        log.grow(5)
        until(tells_more)
        assert worker.end(signal.SIGKILL)[0] == -signal.SIGKILL
    log.close()


@pytest.mark.faults
def test_workers_killed_again_and_again_end_in_what_a_rebuild_gives(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    rnd = random.Random(7)
    options = (
        *("-X", "flush_interval_consume_queue=20"),
        *("-X", "flush_consume_queue_least_pages=0"),
    )
    for _ in range(4):
        workers = [Process(log.root, worker, *options) for worker in (QUEUES, INDEX)]
        deadline = time.monotonic() + rnd.random() * 0.4
        while time.monotonic() < deadline:
            log.grow(rnd.randrange(1, 30))
        for worker in workers:
            assert worker.end(signal.SIGKILL)[0] == -signal.SIGKILL
    workers = [Process(log.root, worker, *options) for worker in (QUEUES, INDEX)]
    assert [worker.end(signal.SIGTERM)[0] for worker in workers] == [0, 0]
    log.close()
    assert derived(log.root) == expected(log)


def test_a_slot_runs_once_and_other_numbers_of_shards_keep_out(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.grow(3)
    first = Process(log.root, QUEUES)
    for worker in (QUEUES, HALVES[1]):
        code, said = Process(log.root, worker).end()
        assert code == 6, said
    assert first.end(signal.SIGTERM)[0] == 0
    log.close()


def test_damage_that_ends_the_log_ends_the_worker_with_a_code_that_says_so(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.grow(200)
    bad = log.starts[-1]
    path = log.root / "commitlog" / f"{bad - bad % log.segment_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(bad % log.segment_bytes + 4)
        file.write(b"\xff\xff\xff")
    code, said = Process(log.root, INDEX).end()
    assert code == 5
    assert f"{path}, offset {bad}" in said or (path.name in said and str(bad) in said)
    with WorkerPage.open(log.root, "index") as page:
        assert (page.read().state, page.read().damaged_at) == (DAMAGED, bad)
        assert page.read().dispatched == bad
    log.close()


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    code, said = Process(log.root, INDEX, "-X", "no_such=1").end()
    assert code == 2
    assert "no_such" in said
    code, said = Process(tmp_path / "nowhere", INDEX).end()
    assert code == 2
    log.close()
