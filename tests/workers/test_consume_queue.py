"""Where the queue worker resumes, and which queues it makes anew."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.state_page import queue_slot
from node.store.checkpoints import Tails, WorkerCheckpoint, list_progress, save_progress, save_tails
from protocol.derived.file_layouts import FILLER_UNIT
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR
from protocol.record.codec import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from protocol.record.encode import NewMessage
from tests.workers.bench_of_workers import Running, expected, new_log, of_kind, running
from tests.workers.living_log import LivingLog, derived
from workers.progress import load_unfinished, save_unfinished

ALL = queue_slot(0, 1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LivingLog]:
    log = new_log(tmp_path)
    yield log
    log.close()


def queue_files(log: LivingLog) -> dict[str, str]:
    return of_kind(derived(log.root), ALL)


def rebuilt_files(log: LivingLog) -> dict[str, str]:
    return of_kind(expected(log), ALL)


def run(log: LivingLog, *slots: str) -> list[int]:
    """Starts each worker, lets it catch up and stops it; answers where they resumed."""
    resumed = []
    for slot in slots or (ALL,):
        worker = Running(log, slot)
        worker.start()
        resumed.append(worker.dispatcher.done)
        worker.catch_up()
        worker.stop()
    return resumed


def topics_known(log: LivingLog, *topics: str) -> None:
    table = {topic: {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for topic in topics}
    (log.root / "config").mkdir()
    (log.root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))


def test_a_restart_goes_on_where_the_progress_is(log: LivingLog) -> None:
    log.grow(50)
    end = log.end
    assert run(log) == [0]
    log.grow(50)
    assert run(log) == [end]
    assert queue_files(log) == rebuilt_files(log)


def test_one_record_at_a_time_gives_the_units_that_many_at_once_give(log: LivingLog) -> None:
    messages = [
        NewMessage("orders", b"x", 0, tags=tags, sys_flag=flag)
        for tags in ("A", "", "\u00fc||b")
        for flag in (0, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
    ]
    with running(log, ALL) as worker:
        for message in messages * 4:
            log.append(message)
            log.publish()
            worker.catch_up()
        assert worker.dispatcher.done == log.end
        assert queue_files(log) == rebuilt_files(log)


def test_few_records_are_dispatched_without_columns(
    log: LivingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.grow(200)
    with running(log, ALL) as worker:
        monkeypatch.setattr(worker.handler, "apply", None)
        log.append(NewMessage("orders", b"x", 0))
        log.publish()
        worker.catch_up()
        assert worker.dispatcher.done == log.end
        assert queue_files(log) == rebuilt_files(log)


def test_without_progress_it_goes_on_from_the_least_that_the_queues_cover(log: LivingLog) -> None:
    log.grow(100)
    run(log)
    shutil.rmtree(log.root / "keelog" / "progress")
    log.grow(20)
    (resumed,) = run(log)
    assert 0 < resumed <= log.starts[100]
    assert queue_files(log) == rebuilt_files(log)


def test_without_progress_units_that_the_log_does_not_know_are_dropped(log: LivingLog) -> None:
    log.grow(100)
    run(log)
    log.begin_epoch(cut_at=log.starts[70])
    shutil.rmtree(log.root / "keelog" / "progress")
    log.grow(20)
    run(log)
    assert queue_files(log) == rebuilt_files(log)


def test_missing_queues_void_the_progress(log: LivingLog) -> None:
    log.grow(50)
    run(log)
    shutil.rmtree(log.root / CONSUME_QUEUE_DIR)
    assert run(log) == [0]
    assert queue_files(log) == rebuilt_files(log)


@pytest.mark.parametrize("lost", ["folder", "last file", "first file"])
def test_a_queue_shorter_than_the_writer_knows_is_rebuilt(log: LivingLog, lost: str) -> None:
    log.grow(200)
    run(log)
    save_tails(log.root, Tails(log.end, log.next_offset))
    topics_known(log, "orders")
    folder = log.root / CONSUME_QUEUE_DIR / "orders" / "0"
    files = sorted(folder.iterdir())
    assert len(files) > 2
    if lost == "folder":
        shutil.rmtree(folder)
    else:
        files[-1 if lost == "last file" else 0].unlink()
    assert run(log) == [log.end]
    assert queue_files(log) == rebuilt_files(log)


def test_a_queue_of_a_deleted_topic_is_not_missed(log: LivingLog) -> None:
    log.grow(50)
    run(log)
    save_tails(log.root, Tails(log.end, log.next_offset))
    topics_known(log, "payments")
    shutil.rmtree(log.root / CONSUME_QUEUE_DIR / "orders")
    run(log)
    assert not (log.root / CONSUME_QUEUE_DIR / "orders").exists()


@pytest.mark.parametrize("damage", ["gap", "length"])
def test_a_queue_whose_files_do_not_join_is_rebuilt(log: LivingLog, damage: str) -> None:
    log.grow(200)
    run(log)
    files = sorted((log.root / CONSUME_QUEUE_DIR / "orders" / "0").iterdir())
    if damage == "gap":
        files[1].unlink()
    else:
        files[1].write_bytes(b"short")
    run(log)
    assert queue_files(log) == rebuilt_files(log)


def test_a_folder_in_a_queue_file_s_place_is_refused_by_name_and_not_emptied(
    log: LivingLog,
) -> None:
    log.grow(200)
    run(log)
    place = min((log.root / CONSUME_QUEUE_DIR / "orders" / "0").iterdir())
    place.unlink()
    place.mkdir()
    (place / "kept").touch()
    worker = Running(log, queue_slot(0, 1))
    with pytest.raises(StoreDamaged, match=f"{place}.*is a folder") as caught:
        worker.start()
    assert "keelog store repair" in caught.value.hint
    assert (place / "kept").exists()
    worker.kill()


def test_a_rebuild_that_was_killed_is_made_again(log: LivingLog) -> None:
    log.grow(200)
    run(log)
    save_unfinished(log.root, ALL, [Queue("orders", 0)])
    files = sorted((log.root / CONSUME_QUEUE_DIR / "orders" / "0").iterdir())
    files[-1].unlink()
    assert run(log) == [log.end]
    assert queue_files(log) == rebuilt_files(log)
    assert load_unfinished(log.root) == set()


def test_a_unit_that_differs_from_the_log_has_its_queue_rebuilt(log: LivingLog) -> None:
    log.grow(100)
    with running(log, ALL) as worker:
        path = log.root / CONSUME_QUEUE_DIR / "orders" / "0" / ("0" * 20)
        with path.open("r+b") as file:
            file.seek(32)
            file.write(b"\x77")
        worker.dispatcher.done = 0
        worker.catch_up()
    assert queue_files(log) == rebuilt_files(log)


def test_records_dispatched_twice_are_placed_once(log: LivingLog) -> None:
    log.grow(100)
    with running(log, ALL) as worker:
        before = queue_files(log)
        worker.dispatcher.done = 0
        worker.catch_up()
    assert queue_files(log) == before


@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (2, 3)])
def test_another_number_of_workers_goes_on_from_the_least_and_retires_the_old(
    log: LivingLog, counts: tuple[int, int]
) -> None:
    old = [queue_slot(shard, counts[0]) for shard in range(counts[0])]
    new = [queue_slot(shard, counts[1]) for shard in range(counts[1])]
    log.grow(60)
    run(log, old[0])
    least = log.end
    for slot in old[1:]:
        log.grow(30)
        run(log, slot)
    assert run(log, *new) == [least] * counts[1]
    run(log, new[0])
    assert set(list_progress(log.root)) == set(new)
    assert queue_files(log) == rebuilt_files(log)


def test_a_number_of_workers_that_comes_back_before_the_change_was_over_starts_with_the_least(
    log: LivingLog,
) -> None:
    log.grow(60)
    run(log, queue_slot(0, 2))
    log.grow(60)
    run(log, queue_slot(1, 2))
    with running(log, queue_slot(0, 3)):
        pass
    run(log, queue_slot(0, 2), queue_slot(1, 2))
    assert queue_files(log) == rebuilt_files(log)


def test_progress_of_a_lost_epoch_vouches_for_nothing(log: LivingLog) -> None:
    log.grow(60)
    run(log)
    save_progress(log.root, ALL, WorkerCheckpoint(99, log.end))
    assert run(log) == [0]


def test_a_topic_that_can_be_no_folder_gets_no_queue_and_is_told_once(
    log: LivingLog, caplog: pytest.LogCaptureFixture
) -> None:
    log.grow(5)
    log.append(NewMessage("../../outside", b"x", 0))
    log.append(NewMessage("../../outside", b"x", 1))
    log.publish()
    log.grow(5)
    run(log)
    assert not list(log.root.parent.rglob("outside"))
    (told,) = caplog.records
    assert told.message == "not all records of a topic are in queues"
    assert vars(told)["fields"]["topic"] == "'../../outside'"


def test_a_log_that_begins_late_has_its_queues_begin_with_filler(log: LivingLog) -> None:
    log.grow(500)
    first = sorted((log.root / "commitlog").iterdir())[0]
    first.unlink()
    log.min_offset = log.segment_bytes
    log.begin_epoch()
    run(log)
    assert queue_files(log) == rebuilt_files(log)
    files = sorted((log.root / CONSUME_QUEUE_DIR / "orders" / "0").iterdir())
    assert files[0].name != "0" * 20
    assert files[0].read_bytes().startswith(FILLER_UNIT)


def test_few_open_files_are_enough_for_many_queues(log: LivingLog) -> None:
    for number in range(100):
        log.append(NewMessage("wide", b"", number % 50))
    log.publish()
    with running(log, ALL, open_max=3) as worker:
        assert len(worker.files._open) <= 3  # type: ignore[arg-type]
    assert queue_files(log) == rebuilt_files(log)


def test_no_queue_file_is_ever_stored_to_through_a_map(log: LivingLog) -> None:
    log.grow(100)
    with running(log, ALL), running(log, "index"):
        maps = Path("/proc/self/maps").read_text().splitlines()
        names = ("/consumequeue/", "/index/")
        assert not [
            line for line in maps if any(n in line for n in names) and "w" in line.split()[1]
        ]
