"""Queue and index files of a part of the log that is gone are deleted; the last one stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.state_page import queue_slot
from protocol.derived.file_layouts import QUEUE_UNIT, UNIT_BYTES
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name
from tests.workers.bench_of_workers import new_log, running
from tests.workers.living_log import LivingLog
from workers.index_file import IndexWriter
from workers.queue_files import QueueWriter

ALL = queue_slot(0, 1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LivingLog]:
    log = new_log(tmp_path)
    yield log
    log.close()


def expire(log: LivingLog, segments: int) -> None:
    """As the writer's retention: the begin is published first, then the files go."""
    log.min_offset = segments * log.segment_bytes
    log._page.publish(min_offset=log.min_offset)
    for number in range(segments):
        path = log.root / COMMIT_LOG_DIR / offset_file_name(number * log.segment_bytes)
        path.unlink(missing_ok=True)


def queue_files(log: LivingLog) -> dict[Path, list[Path]]:
    folder = log.root / CONSUME_QUEUE_DIR
    return {queue: sorted(queue.iterdir()) for queue in sorted(folder.glob("*/*"))}


def test_a_queue_keeps_the_files_whose_last_record_is_still_there_and_its_last_file(
    log: LivingLog,
) -> None:
    log.grow(600)
    with running(log, ALL) as worker:
        before = queue_files(log)
        expire(log, 3)
        log.grow(5)
        worker.catch_up()
        after = queue_files(log)
        assert before.keys() == after.keys()
        assert sum(map(len, after.values())) < sum(map(len, before.values()))
        for queue, files in after.items():
            assert files, f"{queue} has lost its last file"
            for path in files[:-1]:
                last = QUEUE_UNIT.read(path.read_bytes()[-UNIT_BYTES:])
                assert last.physical_offset >= log.min_offset
        worker.catch_up()
        assert queue_files(log) == after, "the same begin deletes nothing more"


def test_a_queue_without_new_messages_keeps_its_end(log: LivingLog) -> None:
    log.grow(600)
    ends = dict(log.next_offset)
    with running(log, ALL):
        pass
    expire(log, 4)
    with running(log, ALL) as worker:
        handler = worker.handler
        assert {q: state.end for q, state in handler._ends.items()} == ends  # type: ignore[attr-defined]
        log.grow(50)
        worker.catch_up()
        assert {
            q: state.end
            for q, state in handler._ends.items()  # type: ignore[attr-defined]
        } == log.next_offset


def test_a_queue_whose_log_went_before_it_was_dispatched_begins_anew_at_the_logs_begin(
    log: LivingLog,
) -> None:
    log.grow(50)
    with running(log, ALL) as worker:
        log.grow(600)
        expire(log, 4)
        assert worker.dispatcher.done < log.min_offset, "the worker had caught up"
        worker.catch_up()
        log.grow(20)
        worker.catch_up()
        handler = worker.handler
        assert {q: state.end for q, state in handler._ends.items()} == log.next_offset  # type: ignore[attr-defined]
        feed, files = worker.feed, worker.files
        assert isinstance(files, QueueWriter)
        for queue, end in log.next_offset.items():
            units = [(number, files.unit(queue, number)) for number in range(end - 5, end)]
            for number, unit in units:
                assert feed.log.record_at(unit.physical_offset).head.queue_offset == number
            assert min(files.bases(queue)) > 0, "units of records that are gone are still there"


def test_expired_index_files_go_and_the_others_stay(log: LivingLog) -> None:
    log.grow(600)
    with running(log, "index") as worker:
        folder = worker.files
        assert isinstance(folder, IndexWriter)
        before = folder.names()
        ends = {name: folder.header(name).end_physical_offset for name in before}
        expire(log, 3)
        log.grow(1)
        worker.catch_up()
        left = [name for name in before if ends[name] >= log.min_offset]
        assert 0 < len(left) < len(before)
        assert folder.names()[: len(left)] == left


def test_the_last_index_file_stays_when_all_its_records_are_gone(log: LivingLog) -> None:
    log.grow(300)
    with running(log, "index") as worker:
        expire(log, 1 + log.end // log.segment_bytes)
        worker.handler.trim(log.min_offset)
        assert len(list((log.root / INDEX_DIR).iterdir())) == 1


def test_a_worker_that_was_overtaken_goes_on_where_the_log_begins(log: LivingLog) -> None:
    log.grow(300)
    with running(log, ALL) as worker:
        log.grow(400)
        expire(log, 5)
        worker.catch_up()
        assert worker.dispatcher.done == log.end
        assert worker.feed.limits().min_offset == log.min_offset
