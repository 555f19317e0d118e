"""Removed topics and purged queues in Spark's tables and jobs."""

from pathlib import Path
from typing import Any

import pytest

from keelog.pipeline.errors import naming_conditions
from keelog.pipeline.jobs.audit import audit
from keelog.pipeline.jobs.rebuild import rebuild
from node.store.checkpoints import load_removed, save_removed
from node.store.opening import StoppedStore
from protocol.errors import UnknownTopic
from protocol.ids import Queue
from tests.pipeline.facts_as_rows import read_rows
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.pipeline.jobs.rebuild.test_rebuild import tree
from tests.workers.living_log import SETTINGS, LivingLog
from workers.rebuild import rebuild as rebuild_by_workers

GONE, AGAIN, PURGED = "payments", "orders", Queue("audit_log", 0)
LEVELS = {
    f"store.{name}": str(getattr(SETTINGS, name))
    for name in ("mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num")
}
WAYS = pytest.mark.parametrize("way", [{}, {"subscribePattern": ".*"}], ids=["log", "queues"])


class Left:
    """A store from which a topic was removed, another one removed and made again, a queue purged;
    and the places of the records that are left, by queue."""

    def __init__(self, root: Path) -> None:
        self.root = root
        log = LivingLog(root)
        log.grow(150)
        horizon = log.end
        for queue in [queue for queue in log.next_offset if queue.topic in (GONE, AGAIN)]:
            del log.next_offset[queue]
        first = len(log._history)
        while len(log._history) < first + 100:
            message = log._any_message()
            if message.topic != GONE:
                log.append(message)
        log.publish()
        log.close()
        self.places: dict[Queue, list[int]] = {}
        for place, queue in log._history:
            if queue.topic != GONE and (queue.topic != AGAIN or place >= horizon):
                self.places.setdefault(queue, []).append(place)
        begin = self.places[PURGED][len(self.places[PURGED]) // 2]
        self.places[PURGED] = [place for place in self.places[PURGED] if place >= begin]
        removed = load_removed(root).without_topic(GONE, horizon, 0)
        removed = removed.without_topic(AGAIN, horizon, 0).with_purged({PURGED: begin})
        save_removed(root, removed)
        rebuild_by_workers(root, settings=SETTINGS)

    @property
    def every_place(self) -> list[int]:
        return sorted(place for places in self.places.values() for place in places)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    return Left(tmp_path_factory.mktemp("removed") / "store")


@WAYS
@pytest.mark.parametrize("cuts", ["1", "5"])
def test_the_table_of_messages_has_what_is_left(left: Left, way: dict[str, str], cuts: str) -> None:
    rows = read_rows(path=str(left.root), minPartitions=cuts, **LEVELS, **way)
    assert sorted(row["physicalOffset"] for row in rows) == left.every_place
    assert {row["topic"] for row in rows} == {queue.topic for queue in left.places}


def test_the_table_of_queues_has_what_is_left(left: Left) -> None:
    rows = read_rows(path=str(left.root), table="queues", **LEVELS)
    found: dict[Queue, list[int]] = {}
    for row in rows:
        found.setdefault(Queue(row["topic"], row["queueId"]), []).append(row["physicalOffset"])
    assert {queue: sorted(places) for queue, places in found.items()} == left.places


def test_the_table_of_the_index_has_no_entry_of_a_removed_message(left: Left) -> None:
    rows = read_rows(path=str(left.root), table="index", **LEVELS)
    found = {row["physicalOffset"] for row in rows}
    assert found
    assert found <= set(left.every_place)
    with StoppedStore(left.root, SETTINGS) as store:
        every = {
            int(entry["physical_offset"])
            for file in store.index.files()
            for entry in file.entries()
        }
    assert found == every & set(left.every_place), "and all of the others"
    assert every - found, "the files keep the entries"


def test_a_removed_topic_is_unknown(left: Left) -> None:
    with pytest.raises(UnknownTopic), naming_conditions():
        read_rows(path=str(left.root), subscribe=GONE, **LEVELS)


def test_a_rebuild_in_tasks_gives_the_workers_bytes(left: Left) -> None:
    before = tree(left.root)
    engine: Any = PlainEngine(times=2)
    rebuild(engine, left.root, settings=SETTINGS, range_bytes=9_000)
    assert tree(left.root) == before


def test_an_audit_finds_nothing_wrong(left: Left) -> None:
    engine: Any = PlainEngine()
    assert audit(engine, left.root, SETTINGS, 9_000).report.findings == []
