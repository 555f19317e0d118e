"""Which deleted files of queues a worker notices when it starts, and what it leaves alone."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.state_page import queue_slot
from node.store.checkpoints import Tails, save_tails
from protocol.derived.file_layouts import FILLER_UNIT, QUEUE_UNIT, UNIT_BYTES
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, offset_file_name
from protocol.record.encode import NewMessage
from tests.workers.bench_of_workers import Running, expected, new_log, of_kind, running
from tests.workers.living_log import SETTINGS, TOPICS, LivingLog, derived
from tests.workers.test_passed_damage import damage
from tests.workers.test_trim import expire
from workers.queue_files import QueueWriter

ALL = queue_slot(0, 1)
FILE_UNITS = SETTINGS.queue_file_bytes // UNIT_BYTES


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LivingLog]:
    log = new_log(tmp_path)
    table = {
        topic: {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for topic in (*TOPICS, "late")
    }
    (log.root / "config").mkdir()
    (log.root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    yield log
    log.close()


def queue_files(log: LivingLog) -> dict[str, str]:
    return of_kind(derived(log.root), ALL)


def rebuilt_files(log: LivingLog) -> dict[str, str]:
    return of_kind(expected(log), ALL)


def snapshot(log: LivingLog) -> None:
    """As the writer saves it."""
    save_tails(log.root, Tails(log.end, dict(log.next_offset)))


def restart(log: LivingLog) -> set[str]:
    """Starts the worker once more and stops it; answers the topics of what it made anew."""
    worker = Running(log, ALL)
    worker.start()
    rebuilt = {queue.topic for queue in worker.handler._rebuilt}  # type: ignore[attr-defined]
    worker.catch_up()
    worker.stop()
    return rebuilt


def late_topic(log: LivingLog, count: int) -> Path:
    """Messages to a topic of one queue; answers its folder."""
    for _ in range(count):
        log.append(NewMessage("late", b"x", 0))
    log.publish()
    return log.root / CONSUME_QUEUE_DIR / "late" / "0"


def test_a_deleted_queue_is_noticed_that_is_younger_than_the_snapshot(log: LivingLog) -> None:
    log.grow(50)
    snapshot(log)
    folder = late_topic(log, 30)
    restart(log)
    shutil.rmtree(folder.parent)
    assert restart(log) == {"late"}
    assert queue_files(log) == rebuilt_files(log)


def test_a_deleted_queue_is_noticed_when_the_snapshot_is_ahead_of_the_progress(
    log: LivingLog,
) -> None:
    folder = late_topic(log, 30)
    log.grow(50)
    restart(log)
    late_topic(log, 3)
    log.grow(50)
    snapshot(log)
    shutil.rmtree(folder.parent)
    assert restart(log) == {"late"}
    assert queue_files(log) == rebuilt_files(log)


def test_a_lost_last_file_is_noticed_when_the_snapshot_is_ahead_of_the_progress(
    log: LivingLog,
) -> None:
    folder = late_topic(log, 3 * FILE_UNITS)
    log.grow(50)
    restart(log)
    late_topic(log, 3)
    snapshot(log)
    max(folder.iterdir()).unlink()
    assert restart(log) == {"late"}
    assert queue_files(log) == rebuilt_files(log)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_queues_that_only_lag_behind_the_snapshot_are_not_made_anew(
    log: LivingLog, is_ahead: bool
) -> None:
    log.grow(100)
    restart(log)
    if not is_ahead:
        snapshot(log)
    log.grow(100)
    late_topic(log, 30)
    if is_ahead:
        snapshot(log)
    assert restart(log) == set()
    assert restart(log) == set()
    assert queue_files(log) == rebuilt_files(log)


@pytest.mark.parametrize("lost", [1, 2])
def test_lost_first_files_of_a_queue_come_back(log: LivingLog, lost: int) -> None:
    log.grow(100)
    folder = late_topic(log, 4 * FILE_UNITS)
    restart(log)
    for path in sorted(folder.iterdir())[:lost]:
        path.unlink()
    assert restart(log) == {"late"}
    assert queue_files(log) == rebuilt_files(log)


def test_a_lost_first_file_behind_retention_comes_back(log: LivingLog) -> None:
    log.grow(900)
    with running(log, ALL) as worker:
        expire(log, 3)
        worker.catch_up()
        worker.save()
    folder = log.root / CONSUME_QUEUE_DIR / "orders" / "0"
    files = sorted(folder.iterdir())
    assert int(files[0].name) > 0
    files[0].unlink()
    assert restart(log) == {"orders"}
    found, wanted = queue_files(log), rebuilt_files(log)
    ours = f"{CONSUME_QUEUE_DIR}/orders/0/"
    assert {name: mark for name, mark in found.items() if name.startswith(ours)} == {
        name: mark for name, mark in wanted.items() if name.startswith(ours)
    }


def test_files_that_retention_took_are_not_missed(log: LivingLog) -> None:
    log.grow(900)
    with running(log, ALL) as worker:
        expire(log, 3)
        worker.catch_up()
        worker.save()
    before = queue_files(log)
    assert any(int(name.rpartition("/")[2]) for name in before)
    assert restart(log) == set()
    assert queue_files(log) == before


def test_a_queue_whose_files_end_where_the_log_now_begins_is_left_alone(log: LivingLog) -> None:
    folder = late_topic(log, FILE_UNITS)
    segments = 1 + log.end // log.segment_bytes
    while log.end <= segments * log.segment_bytes:
        log.append(NewMessage("orders", b"x", 0))
    late_topic(log, FILE_UNITS)
    with running(log, ALL) as worker:
        expire(log, segments)
        worker.catch_up()
        worker.save()
    (first,) = folder.iterdir()
    assert first.name == offset_file_name(FILE_UNITS * UNIT_BYTES)
    assert QUEUE_UNIT.read(first.read_bytes()[:UNIT_BYTES]).physical_offset >= log.min_offset
    assert restart(log) == set()


def test_a_queue_that_was_made_late_is_left_alone(log: LivingLog) -> None:
    log.grow(20)
    folder = late_topic(log, FILE_UNITS + 3)
    restart(log)
    shutil.rmtree(folder)
    late_topic(log, 1)
    restart(log)
    (first,) = folder.iterdir()
    assert first.read_bytes().startswith(FILLER_UNIT)
    before = queue_files(log)
    assert restart(log) == set()
    assert queue_files(log) == before


def test_damage_in_the_log_ahead_makes_no_queue_anew(log: LivingLog) -> None:
    folder = late_topic(log, 3)
    restart(log)
    log.grow(50)
    late_topic(log, 1)
    snapshot(log)
    at = log.starts[10]
    path = log.root / "commitlog" / offset_file_name(at - at % log.segment_bytes)
    data = bytearray(path.read_bytes())
    data[at % log.segment_bytes + 20 : at % log.segment_bytes + 60] = bytes(40)
    path.write_bytes(data)
    before = sorted(folder.iterdir())
    worker = Running(log, ALL)
    worker.start()
    assert not worker.handler._rebuilt  # type: ignore[attr-defined]
    worker.kill()
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_queue_whose_last_message_is_damaged_is_no_lost_one(
    log: LivingLog, has_snapshot: bool
) -> None:
    log.grow(50)
    late_topic(log, 5)
    bad = len(log.starts) - 1
    log.grow(50)
    damage(log, (bad,))
    restart(log)
    if has_snapshot:
        snapshot(log)
    assert restart(log) == set(), "a walk of the whole log at each start"
    late_topic(log, 1)
    with running(log, ALL) as worker:
        assert isinstance(worker.files, QueueWriter)
        units = [worker.files.unit(Queue("late", 0), number) for number in range(6)]
    assert units[5].physical_offset == log.starts[-1], "a later message keeps its number"
    assert log.starts[bad] <= units[4].physical_offset < log.starts[bad + 1]
    assert restart(log) == set()


def test_a_deleted_queue_whose_log_has_damage_too_is_noticed(log: LivingLog) -> None:
    folder = late_topic(log, 5)
    bad = len(log.starts) - 1
    log.grow(50)
    damage(log, (bad,))
    restart(log)
    snapshot(log)
    shutil.rmtree(folder.parent)
    assert restart(log) == {"late"}
