"""Whether a worker sees that files of queues which it has open are gone."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.state_page import queue_slot
from tests.workers.bench_of_workers import Running, new_log
from tests.workers.living_log import LivingLog
from workers.consume_queue import ConsumeQueues
from workers.queue_files import QueueWriter


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LivingLog]:
    log = new_log(tmp_path)
    log.grow(50)
    yield log
    log.close()


@pytest.fixture
def worker(log: LivingLog) -> Iterator[Running]:
    worker = Running(log, queue_slot(0, 1))
    worker.start()
    worker.catch_up()
    yield worker
    worker.kill()


def queues(worker: Running) -> ConsumeQueues:
    assert isinstance(worker.handler, ConsumeQueues)
    return worker.handler


def test_all_is_in_place_until_a_folder_is_removed(worker: Running) -> None:
    handler = queues(worker)
    assert handler.lost_files() == ""
    lost = next(iter(handler._ends))
    shutil.rmtree(worker.files.root / lost.topic)
    assert f"of {lost.topic}: " in handler.lost_files()


def test_the_folder_of_all_queues_is_lost_with_all_of_them(worker: Running) -> None:
    handler = queues(worker)
    shutil.rmtree(worker.files.root)
    assert "is gone" in handler.lost_files()
    assert handler._lost.keys() == handler._ends.keys()


def test_a_removal_during_a_look_is_seen_by_the_next_one(
    worker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = queues(worker)
    lost = next(iter(handler._ends))

    def removed(files: QueueWriter, _: object) -> list[int]:
        shutil.rmtree(files.root / lost.topic)
        raise FileNotFoundError

    with monkeypatch.context() as inner:
        inner.setattr(QueueWriter, "bases", removed)
        assert handler.lost_files() == ""
    assert f"of {lost.topic}: " in handler.lost_files()
