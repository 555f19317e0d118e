"""The loop: what is dispatched, saved and undone, whatever becomes of the log."""

import errno
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workers.index_file
import workers.queue_files
import workers.sparse_file
from node.runtime.disk import write_all
from node.runtime.service_loop import LoopPace
from node.store.checkpoints import WorkerCheckpoint, load_progress
from protocol.errors import StoreDamaged
from tests.workers.bench_of_workers import SLOTS, Running, expected, new_log, of_kind, running
from tests.workers.living_log import LivingLog, derived
from workers.dispatch import FLUSH_REST_S_MAX, FLUSH_RESTS


@pytest.fixture
def log(tmp_path: Path) -> Any:
    log = new_log(tmp_path)
    yield log
    log.close()


@pytest.mark.parametrize("slot", SLOTS)
def test_following_in_small_steps_gives_what_a_rebuild_gives(slot: str, log: LivingLog) -> None:
    with running(log, slot) as worker:
        for count in (1, 2, 40, 1, 200):
            log.grow(count)
            worker.catch_up()
            assert worker.page.read().dispatched == log.end
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)


@pytest.mark.parametrize("slot", SLOTS)
def test_progress_never_passes_what_is_durable_in_the_log(slot: str, log: LivingLog) -> None:
    log.grow(20)
    durable = log.end
    log.grow(20, flush=False)
    with running(log, slot) as worker:
        worker.save()
        assert worker.dispatcher.done == log.end
        assert load_progress(log.root, slot) == WorkerCheckpoint(1, durable)
        assert worker.page.read().saved == durable
        log.publish()
        worker.save()
        assert load_progress(log.root, slot) == WorkerCheckpoint(1, log.end)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_writer_that_stops_is_not_kept_waiting_for_progress(slot: str, log: LivingLog) -> None:
    log.grow(20)
    with running(log, slot) as worker:
        assert load_progress(log.root, slot) == WorkerCheckpoint(1, 0)
        log.end_in_order()
        deadline = time.monotonic() + 10
        while worker.page.read().saved < log.end:
            assert time.monotonic() < deadline
            worker.dispatcher.turn()
    assert load_progress(log.root, slot) == WorkerCheckpoint(1, log.end)


def test_queue_units_are_synced_by_least_pages_or_after_the_thorough_interval(
    log: LivingLog,
) -> None:
    with running(log, "queue-0-of-1") as worker:
        loop = worker.dispatcher._flush_loop
        loop.pace = LoopPace(1.0, 1, 60.0)
        for seconds, count, is_due in ((1, 200, False), (1, 5, True), (1, 1, False), (58, 1, True)):
            log.grow(count)
            worker.catch_up()
            now = loop.turned_at + seconds
            assert worker.dispatcher._is_flush_due(now) is is_due
            if is_due:
                worker.save()
                assert load_progress(log.root, "queue-0-of-1") == WorkerCheckpoint(1, log.end)


def test_a_flush_that_takes_long_is_followed_by_a_longer_time_without_one(
    log: LivingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(log, "queue-0-of-1") as worker:
        dispatcher = worker.dispatcher
        dispatcher._flush_loop.pace = LoopPace(1.0, 0, 0)
        flush = dispatcher._handler.flush
        slow = 0.2

        def slow_flush() -> int:
            time.sleep(slow)
            return flush()

        monkeypatch.setattr(dispatcher._handler, "flush", slow_flush)
        log.grow(1)
        worker.catch_up()
        before = time.monotonic()
        worker.save()
        rested = before + (1 + FLUSH_RESTS) * slow
        assert not dispatcher._is_flush_due(rested - 0.01)
        assert dispatcher._is_flush_due(time.monotonic() + FLUSH_REST_S_MAX)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_blank_that_closes_a_segment_is_passed(slot: str, log: LivingLog) -> None:
    log.grow(5)
    left = log.segment_bytes - log.end % log.segment_bytes
    log.end += left
    data = (log.root / "commitlog" / ("0" * 20)).read_bytes()
    blank = left.to_bytes(4, "big") + bytes.fromhex("cbd43194")
    at = len(data) - left
    (log.root / "commitlog" / ("0" * 20)).write_bytes(data[:at] + blank + data[at + 8 :])
    log.publish()
    with running(log, slot) as worker:
        assert worker.page.read().dispatched == log.end
        worker.save()
        assert worker.page.read().saved == log.end


@pytest.mark.parametrize("slot", SLOTS)
def test_a_full_disk_publishes_nothing_and_the_same_bytes_are_written_again(
    slot: str, log: LivingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.grow(30)
    with running(log, slot) as worker:
        done = worker.dispatcher.done
        log.grow(300)
        rnd = random.Random(3)
        dispatched: list[int] = []

        def failing(descriptor: int, data: Any, position: int) -> None:
            if rnd.random() < 0.2:
                write_all(descriptor, bytes(data)[: len(data) // 2], position)
                dispatched.append(worker.page.read().dispatched)
                raise OSError(errno.ENOSPC, "no space")
            write_all(descriptor, data, position)

        with monkeypatch.context() as patch:
            for module in (workers.queue_files, workers.index_file, workers.sparse_file):
                patch.setattr(module, "write_all", failing)
            worker.catch_up()
    assert worker.waits
    assert set(worker.waits) == {1.0}
    assert dispatched[0] == done
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)


@pytest.mark.parametrize("slot", SLOTS)
def test_damage_that_ends_the_log_stops_the_worker_before_it_and_is_named(
    slot: str, log: LivingLog
) -> None:
    log.grow(200)
    bad = log.starts[-1]
    path = log.root / "commitlog" / f"{bad - bad % log.segment_bytes:020d}"
    with path.open("r+b") as file:
        file.seek(bad % log.segment_bytes + 4)
        file.write(b"\0\0\0\0")
    worker = Running(log, slot)
    worker.start()
    with pytest.raises(StoreDamaged, match=path.name) as raised:
        worker.catch_up()
    assert raised.value.offset == bad
    assert worker.page.read().dispatched == bad
    worker.kill()


@pytest.mark.parametrize("slot", SLOTS)
def test_bad_bytes_that_were_never_flushed_are_waited_for_until_the_writer_has_cut_them(
    slot: str, log: LivingLog
) -> None:
    """The page of a killed writer goes on naming them until its successor has looked."""
    log.grow(100)
    log.grow(60, flush=False)
    bad = log.starts[120]
    with (log.root / "commitlog" / f"{bad - bad % log.segment_bytes:020d}").open("r+b") as file:
        file.seek(bad % log.segment_bytes + 4)
        file.write(b"\0\0\0\0")
    with running(log, slot) as worker:
        worker.catch_up()
        assert worker.page.read().dispatched == bad
        assert worker.waits
        log.begin_epoch(cut_at=bad)
        log.grow(80)
        worker.catch_up()
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)


@pytest.mark.parametrize("slot", SLOTS)
def test_a_live_worker_undoes_what_the_writer_cut(slot: str, log: LivingLog) -> None:
    log.grow(100)
    with running(log, slot) as worker:
        worker.save()
        log.grow(60, flush=False)
        worker.catch_up()
        log.begin_epoch(cut_at=log.starts[120])
        log.grow(80)
        worker.catch_up()
        assert worker.page.read().epoch == 2
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)


FEWER = settings(max_examples=settings().max_examples // 3)
"""Each example is a whole life of a store."""

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 60), st.booleans()),
        st.tuples(st.sampled_from(["turn", "save", "kill", "stop"])),
        st.tuples(st.just("epoch"), st.integers(0, 40)),
    ),
    max_size=12,
)


@pytest.mark.parametrize("slot", SLOTS)
@FEWER
@given(steps=STEPS, seed=st.integers(0, 5))
def test_any_history_of_cuts_and_kills_ends_in_what_a_rebuild_gives(
    slot: str, steps: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = new_log(tmp_path_factory.mktemp("history"), seed)
    worker: Running | None = None
    for step in [*steps, ("grow", 10, True), ("turn",)]:
        match step:
            case ("grow", count, flush):
                log.grow(count, flush)
            case ("epoch", lost):
                # The writer never loses what was flushed.
                fresh = [start for start in log.starts if start >= log.flushed]
                log.begin_epoch(cut_at=fresh[-lost:][0] if fresh and lost else None)
            case ("turn",):
                if worker is None:
                    worker = Running(log, slot)
                    worker.start()
                worker.catch_up()
            case ("save",) if worker:
                worker.save()
            case ("kill",) if worker:
                worker.kill()
                worker = None
            case ("stop",) if worker:
                worker.stop()
                worker = None
    assert worker is not None
    worker.stop()
    log.close()
    assert of_kind(derived(log.root), slot) == of_kind(expected(log), slot)
