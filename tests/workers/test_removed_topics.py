"""Queue workers and removed topics: any history of appends, removals, stops and kills."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelog.restore import repair
from node.runtime.state_page import queue_slot
from node.store.checkpoints import Tails, load_removed, save_removed, save_tails
from node.store.opening import StoppedStore
from node.store.verify.verify import verify
from protocol.ids import Queue
from tests.workers.bench_of_workers import Running, new_log, of_kind
from tests.workers.living_log import SETTINGS, TOPICS, LivingLog, derived
from workers.rebuild import rebuild

ALL = queue_slot(0, 1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LivingLog]:
    log = new_log(tmp_path)
    yield log
    log.close()


class History:
    """The log, the plain model of its queues, and a worker or none."""

    def __init__(self, log: LivingLog) -> None:
        self.log = log
        self.model: dict[Queue, list[int]] = {}
        self.purged: dict[Queue, int] = {}
        """How many of a queue's first messages are gone."""
        self._appended = 0
        self.worker: Running | None = None

    def grow(self, count: int) -> None:
        self.log.grow(count)
        history = self.log._history[self._appended :]
        self._appended += len(history)
        for place, queue in history:
            self.model.setdefault(queue, []).append(place)

    def remove(self, topic: str) -> None:
        """As the writer: the note first, then its number on the page."""
        log = self.log
        removed = load_removed(log.root).without_topic(topic, log.end, 0)
        save_removed(log.root, removed)
        log._page.publish(removals=removed.number)
        for queue in [queue for queue in self.model if queue.topic == topic]:
            del self.model[queue], log.next_offset[queue]
            self.purged.pop(queue, None)

    def purge(self, queue: Queue, before: int) -> None:
        """As the writer: units stay, and readers begin at a later one."""
        places, log = self.model[queue], self.log
        before = min(before, len(places))
        begin = places[before] if before < len(places) else log.end
        removed = load_removed(log.root).with_purged({queue: begin})
        save_removed(log.root, removed)
        log._page.publish(removals=removed.number)
        self.purged[queue] = max(self.purged.get(queue, 0), before)

    @property
    def visible(self) -> dict[Queue, list[int]]:
        """What a reader gets, the first offset before the places."""
        shown: dict[Queue, list[int]] = {}
        for queue, places in self.model.items():
            begin = self.purged.get(queue, 0)
            shown[queue] = [begin, *places[begin:]]
        return shown

    def start(self) -> None:
        if self.worker is None:
            self.worker = Running(self.log, ALL)
            self.worker.start()

    def catch_up(self) -> None:
        if self.worker is not None:
            self.worker.catch_up()

    def end(self, in_order: bool, is_last: bool = False) -> None:
        """`is_last`: the writer ends too, and begins a new epoch."""
        if self.worker is not None:
            self.worker.stop() if in_order else self.worker.kill()
        self.worker = None
        if is_last:
            self.log.begin_epoch()
            self.log._page.publish(removals=load_removed(self.log.root).number)

    def check(self) -> None:
        """What a reader sees, and what a rebuild gives, is the model."""
        assert shown(self.log.root) == self.visible
        copy = self.log.root.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.log.root, copy, ignore=shutil.ignore_patterns("run"))
        rebuild(copy, settings=SETTINGS)
        assert shown(copy) == self.visible
        if self.worker is not None:
            files = of_kind(derived(self.log.root), ALL)
            assert files == of_kind(derived(copy), ALL)


def shown(root: Path) -> dict[Queue, list[int]]:
    """The first offset of each queue that has messages or had some, then their places."""
    found: dict[Queue, list[int]] = {}
    with StoppedStore(root, SETTINGS) as store:
        for queue in store.queues():
            reader = store.queue(*queue)
            assert reader is not None
            low, high = reader.min_offset, reader.max_offset
            if high:
                found[queue] = [low, *reader.units(low, high - low)["physical_offset"].tolist()]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_any_history_ends_in_what_the_model_and_a_rebuild_have(log: LivingLog, seed: int) -> None:
    rnd, history = random.Random(seed), History(log)
    for _ in range(60):
        match rnd.randrange(10):
            case 0 | 1 | 2:
                history.grow(rnd.randrange(1, 30))
            case 3:
                history.remove(rnd.choice(TOPICS))
            case 4:
                history.start()
            case 9 if history.model:
                history.purge(rnd.choice(sorted(history.model)), rnd.randrange(40))
            case 5:
                history.end(in_order=rnd.random() < 0.5, is_last=rnd.random() < 0.3)
            case 6:
                save_tails(log.root, Tails(log.end, dict(log.next_offset)))
            case 7 if rnd.random() < 0.3 and history.worker is None:
                shutil.rmtree(log.root / "consumequeue", ignore_errors=True)
            case _:
                history.catch_up()
                if history.worker is not None and rnd.random() < 0.5:
                    history.worker.save()
    history.start()
    history.catch_up()
    history.check()
    history.end(in_order=True)
    history.check()


def test_a_worker_that_runs_deletes_the_queues_of_a_removed_topic(log: LivingLog) -> None:
    history = History(log)
    history.grow(60)
    history.start()
    history.catch_up()
    history.remove("orders")
    assert (log.root / "consumequeue/orders").exists()
    history.catch_up()
    assert not (log.root / "consumequeue/orders").exists()
    history.grow(60)
    history.catch_up()
    history.check()
    history.end(in_order=True)
    findings = verify(log.root, deep=True, settings=SETTINGS).findings
    assert [one.kind for one in findings] == ["entry_missing"], "no index worker has run"


def test_a_worker_that_was_killed_before_it_deleted_them_does_so_at_its_start(
    log: LivingLog,
) -> None:
    history = History(log)
    history.grow(60)
    history.start()
    history.catch_up()
    history.end(in_order=False)
    history.remove("orders")
    assert {queue.topic for queue in shown(log.root)} == {"payments", "audit_log"}
    assert verify(log.root, deep=True, settings=SETTINGS).ok
    history.start()
    assert not (log.root / "consumequeue/orders").exists()
    history.catch_up()
    history.check()
    history.end(in_order=True)


def test_a_repair_that_cuts_the_log_lowers_the_horizon(log: LivingLog) -> None:
    """What is appended after the cut is new, though it lies below the old horizon."""
    history = History(log)
    history.grow(40)
    history.remove("orders")
    cut_at = log.starts[-3]
    with (log.root / "commitlog" / f"{0:020d}").open("r+b") as file:
        assert cut_at < log.segment_bytes
        file.seek(cut_at)
        file.write(bytes(log.end - cut_at))
    repair(log.root, SETTINGS)
    assert load_removed(log.root).horizon("orders") == cut_at
    with StoppedStore(log.root, SETTINGS) as store:
        assert store.log.end == cut_at
        assert "orders" not in store.topics()
