"""Damage in the log costs its own messages their units and keys, and no later ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from node.runtime.state_page import queue_slot
from node.store.checkpoints import Tails, save_tails
from protocol.ids import Queue
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage
from tests.workers.bench_of_workers import new_log, running
from tests.workers.living_log import LivingLog
from workers.consume_queue import ConsumeQueues
from workers.index_file import IndexWriter
from workers.queue_files import QueueWriter

BAD = (60, 150, 151, 152)
"""One record alone, and three in a row."""


@pytest.fixture
def log(tmp_path: Path) -> Any:
    log = new_log(tmp_path)
    log.grow(200)
    yield log
    log.close()


def segment(log: LivingLog, offset: int) -> Path:
    return log.root / "commitlog" / f"{offset - offset % log.segment_bytes:020d}"


def records(log: LivingLog) -> list[Record]:
    found = [decode(segment(log, at).read_bytes(), at % log.segment_bytes, at) for at in log.starts]
    assert all(isinstance(one, Record) for one in found)
    return found  # type: ignore[return-value]


def damage(log: LivingLog, numbers: tuple[int, ...] = BAD) -> set[int]:
    """Overwrites the magic of records; returns their log offsets."""
    for at in (log.starts[number] for number in numbers):
        with segment(log, at).open("r+b") as file:
            file.seek(at % log.segment_bytes + 4)
            file.write(b"\0\0\0\0")
    return {log.starts[number] for number in numbers}


def test_all_later_messages_keep_their_numbers(
    log: LivingLog, caplog: pytest.LogCaptureFixture
) -> None:
    before = records(log)
    bad = damage(log)
    with running(log, queue_slot(0, 1)) as worker:
        assert worker.page.read().dispatched == log.end
        files, handler = worker.files, worker.handler
        assert isinstance(files, QueueWriter)
        assert isinstance(handler, ConsumeQueues)
        holes = 0
        for record in before:
            queue = Queue(record.topic, record.head.queue_id)
            end = handler._ends[queue].end if queue in handler._ends else None
            number, offset = record.head.queue_offset, record.physical_offset
            if offset not in bad:
                assert files.unit(queue, number).physical_offset == offset, (queue, number)
            elif end is not None and number < end:
                unit = files.unit(queue, number)
                inside = [at for at in bad if at <= unit.physical_offset]
                assert inside, unit
                holes += 1
        assert holes
        worker.save()
    assert caplog.text.count("damage is passed over") == 2
    with running(log, queue_slot(0, 1)) as again:
        assert isinstance(again.handler, ConsumeQueues)
        assert not again.handler._rebuilt


def test_a_queue_that_is_gone_when_damaged_messages_get_their_units_is_made_anew(
    log: LivingLog,
) -> None:
    queue = Queue("late", 0)
    for _ in range(3):
        log.append(NewMessage(queue.topic, b"x", queue.queue_id))
    log.publish()
    damage(log, (len(log.starts) - 1,))
    log.grow(1)
    with running(log, queue_slot(0, 1)) as worker:
        files = worker.files
        assert isinstance(files, QueueWriter)
        shutil.rmtree(files.root / queue.topic)
        files.close()
        log.append(NewMessage(queue.topic, b"x", queue.queue_id))
        log.publish()
        worker.catch_up()
        assert files.unit(queue, 3).physical_offset == log.starts[-1]


def test_a_queues_last_message_is_not_missing_in_silence(log: LivingLog) -> None:
    """The writer knows of it: a reader that comes to the end meets the damage there."""
    last: dict[Queue, int] = {}
    for number, record in enumerate(records(log)):
        last[Queue(record.topic, record.head.queue_id)] = number
    queue, number = min(last.items(), key=lambda item: item[1])
    assert number < len(log.starts) - 1
    (bad,) = damage(log, (number,))
    save_tails(log.root, Tails(log.end, log.next_offset))
    for _ in range(2):
        with running(log, queue_slot(0, 1)) as worker:
            assert isinstance(worker.files, QueueWriter)
            unit = worker.files.unit(queue, log.next_offset[queue] - 1)
            assert unit.physical_offset == bad
            worker.save()
    log.append(NewMessage(topic=queue.topic, queue_id=queue.queue_id, body=b"later"))
    log.publish()
    with running(log, queue_slot(0, 1)) as worker:
        assert isinstance(worker.files, QueueWriter)
        later = worker.files.unit(queue, log.next_offset[queue] - 1)
        assert later.physical_offset == log.starts[-1]


def test_keys_of_later_messages_are_entered(log: LivingLog) -> None:
    before = records(log)
    bad = damage(log)
    with running(log, "index") as worker:
        assert worker.page.read().dispatched == log.end
        worker.save()
        files = worker.files
        assert isinstance(files, IndexWriter)
        entered = {
            int(offset)
            for name in files.names()
            for offset in files.entries(name, 1, files.header(name).index_count)["physical_offset"]
        }
    wanted = {one.physical_offset for one in before if one.keys or one.unique_key or one.tags}
    assert entered == wanted - bad
