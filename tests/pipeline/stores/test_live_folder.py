"""A folder that a node runs now: rows end where the node says, and pages alone are nothing."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from keelog.pipeline.stores import planned_store
from keelog.pipeline.stores.access import StoreAt
from keelog.pipeline.stores.planned_store import open_planned
from node.runtime.locks import StoreLock
from node.runtime.state_page import RUNNING, STARTING
from protocol.errors import MqError
from tests.pipeline.facts_as_rows import plain_rows, read_rows
from tests.support.golden import GetStore, facts
from tests.support.living_store import LivingStore

NAME = "small-clean"
NO_PROCESS_HERE = 2**22 + 1
"""Above the largest pid of Linux."""
WAYS = pytest.mark.parametrize("way", [{}, {"subscribePattern": ".*"}], ids=["log", "queues"])
MESSAGES = facts(NAME).messages
HALF = MESSAGES[len(MESSAGES) // 2]["physicalOffset"]
BEFORE_HALF = [fact["physicalOffset"] for fact in MESSAGES if fact["physicalOffset"] < HALF]


class Running(NamedTuple):
    """Pages of this process, and the lock that a node holds."""

    pages: LivingStore
    locks: list[StoreLock]

    @property
    def root(self) -> Path:
        return self.pages.root


@pytest.fixture
def running(golden_copy: GetStore) -> Iterator[Running]:
    """A store whose node, in a container of its own, has published half of it."""
    root = golden_copy(NAME)
    locks = [StoreLock.acquire(root)]
    with LivingStore(root, facts(NAME)) as pages:
        pages.log.publish(pid=NO_PROCESS_HERE)
        pages.publish(HALF)
        yield Running(pages, locks)
    for lock in locks:
        lock.release()


def offsets(root: Path, **options: str) -> list[int]:
    rows = read_rows(path=str(root), columns="physicalOffset", **options)
    return sorted(row["physicalOffset"] for row in rows)


@WAYS
def test_rows_end_where_the_node_says_that_its_log_is_readable(
    running: Running, way: dict[str, str]
) -> None:
    assert offsets(running.root, **way) == BEFORE_HALF


@pytest.mark.parametrize("table", ["queues", "index"])
def test_so_do_the_rows_of_what_is_derived(running: Running, table: str) -> None:
    found = set(offsets(running.root, table=table))
    assert found <= set(BEFORE_HALF)
    assert BEFORE_HALF[-1] in found


@WAYS
def test_the_pages_of_a_killed_node_are_not_believed(running: Running, way: dict[str, str]) -> None:
    running.locks.pop().release()
    assert offsets(running.root, **way) == [fact["physicalOffset"] for fact in MESSAGES]


def test_units_end_where_their_worker_is_and_the_log_where_the_writer_is(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_store, "SETTLE_S_MAX", 0.0)
    for worker in running.pages.workers:
        worker.publish(dispatched=0)
    assert offsets(running.root, table="queues") == []
    assert offsets(running.root) == BEFORE_HALF


def test_a_batch_waits_a_moment_for_the_queue_workers(running: Running) -> None:
    for worker in running.pages.workers:
        worker.publish(dispatched=0)
    later = threading.Timer(0.1, running.pages.publish, [HALF])
    later.start()
    assert offsets(running.root, subscribePattern=".*") == BEFORE_HALF
    later.join()


def test_a_writer_that_recovers_is_waited_for(running: Running) -> None:
    """Until then its predecessor's page may name more than will be left."""
    running.pages.log.publish(state=STARTING, readable=MESSAGES[-1]["physicalOffset"])

    def recovered() -> None:
        running.pages.publish(HALF)
        running.pages.log.publish(state=RUNNING)

    later = threading.Timer(0.1, recovered)
    later.start()
    assert offsets(running.root) == BEFORE_HALF
    later.join()


def test_a_writer_that_stays_away_leaves_a_page_that_is_gone_by(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of room on the disk, say: its supervisor and readers go on."""
    monkeypatch.setattr(planned_store, "OPEN_S_MAX", 0.05)
    running.locks.pop().release()
    running.locks.append(StoreLock.acquire(running.root, flock=True, record=False))
    assert offsets(running.root) == BEFORE_HALF


def test_a_store_that_is_locked_by_something_else_is_refused(
    golden_copy: GetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_store, "OPEN_S_MAX", 0.05)
    root = golden_copy(NAME)
    lock = StoreLock.acquire(root)
    with pytest.raises(MqError, match=r"\[KEELOG_STORE_UNREADABLE\].*rebuilt.*tcp://"):
        read_rows(path=str(root))
    lock.release()


def test_the_page_of_a_killed_writer_is_not_its_successors(
    golden_copy: GetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor has the lock, and reads the log before it says anything. The pid in the page
    may be that of another process by now."""
    monkeypatch.setattr(planned_store, "OPEN_S_MAX", 0.3)
    root = golden_copy(NAME)
    lock = StoreLock.acquire(root)
    with LivingStore(root, facts(NAME)) as pages:
        pages.end_beats()
        with pytest.raises(MqError, match=r"\[KEELOG_STORE_UNREADABLE\]"):
            read_rows(path=str(root))
    lock.release()


def test_planned_rows_stay_the_rows_read_while_the_log_grows(running: Running) -> None:
    plans = [
        plan_parts(parse_options({"path": str(running.root), "columns": "physicalOffset", **way}))
        for way in ({}, {"subscribePattern": ".*"})
    ]
    running.pages.publish(running.pages.end)
    for plan in plans:
        rows = [row for part in plan for batch in read_part(part) for row in plain_rows(batch)]
        assert sorted(row["physicalOffset"] for row in rows) == BEFORE_HALF
    assert len(offsets(running.root)) == len(MESSAGES)


def test_a_stream_sees_ends_move_and_a_node_come_and_be_another(
    golden_copy: GetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planned_store, "LOOK_S", 0.0)
    root = golden_copy(NAME)
    topic, queue_id = MESSAGES[0]["topic"], MESSAGES[0]["queueId"]

    def seen() -> tuple[int, int, int]:
        store.refresh()
        reader = store.queue(topic, queue_id)
        assert reader is not None
        return store.epoch, store.log.end, reader.max_offset

    def count(end: int) -> int:
        mine = [fact for fact in MESSAGES if fact["physicalOffset"] < end]
        return sum((fact["topic"], fact["queueId"]) == (topic, queue_id) for fact in mine)

    end = facts(NAME).state["maxPhyOffset"]
    with open_planned(StoreAt("a", str(root)), parse_options({"path": str(root)})) as store:
        assert seen() == (0, end, count(end))
        lock = StoreLock.acquire(root)
        with LivingStore(root, facts(NAME)) as pages:
            pages.publish(HALF)
            assert seen() == (1, HALF, count(HALF))
            pages.publish(end)
            assert seen() == (1, end, count(end))
            pages.begin_epoch(HALF)
            assert seen() == (2, HALF, count(HALF))
        for page in (root / "keelog" / "run").glob("*.page"):
            page.unlink()
        with LivingStore(root, facts(NAME), shards=3):
            assert seen() == (1, end, count(end))
        lock.release()
