"""One streaming query's driver side on real folders: at rest and growing, or run by a node."""

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelog.pipeline import stream_query as module
from keelog.pipeline.micro_batch import INITIAL_KEY
from keelog.pipeline.options import parse_options
from node.runtime.locks import StoreLock
from node.runtime.state_page import RUNNING, STARTING
from protocol.errors import MqError
from protocol.record.encode import NewMessage
from tests.pipeline.facts_as_rows import read_rows
from tests.pipeline.stream.stream_engine import Engine
from tests.support.golden import GetStore, Row, facts
from tests.support.living_store import LivingStore
from tests.support.node import RunningNode
from tests.workers.living_log import SETTINGS, LivingLog
from workers.rebuild import rebuild

SETTING = {"store.mapped_file_size_consume_queue": "200"}
COLUMNS = {"columns": "topic,queueId,queueOffset,physicalOffset,storeTimestamp,storeSize"}


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIST_S", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LivingLog]:
    """A folder at rest with 40 messages, to be grown."""
    log = LivingLog(tmp_path / "store", segment_bytes=4096)
    log.grow(40)
    yield log
    log.close()


def query(store: LivingLog, **options: str) -> Engine:
    return Engine(path=str(store.root), **SETTING, **COLUMNS, **options)


def from_start(store: LivingLog, **options: str) -> Engine:
    return query(store, startingOffsets="earliest", **options)


def places(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    return Counter((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def all_places(store: LivingLog) -> Counter[tuple[str, int, int]]:
    return Counter(
        (queue.topic, queue.queue_id, number)
        for queue, end in store.next_offset.items()
        for number in range(end)
    )


def flat(batches: list[list[Row]]) -> list[Row]:
    return [row for batch in batches for row in batch]


def test_the_first_batch_is_empty_and_all_rows_come_once(store: LivingLog) -> None:
    engine = from_start(store)
    batches = engine.drain()
    assert [len(batch) for batch in batches] == [0, 40]
    assert INITIAL_KEY in engine.log[0][0] and INITIAL_KEY not in engine.log[0][1]
    store.grow(7)
    batches += engine.drain()
    assert places(flat(batches)) == all_places(store)


def test_an_idle_query_makes_no_batch(store: LivingLog) -> None:
    engine = from_start(store)
    engine.drain()
    assert not any(engine.plan() for _ in range(20))
    assert json.dumps(engine.latest()) == json.dumps(engine.log[-1][1])


def test_latest_is_durable_before_a_row_is_read(store: LivingLog) -> None:
    """The query dies in its first batch, messages come, and it begins anew."""
    engine = query(store)
    assert engine.plan()
    store.grow(9)
    engine = engine.restarted()
    # Spark asks for the beginning again, and replays the batch whose end is in the log.
    engine.log[0] = (engine.reader.initialOffset(), engine.log[0][1])
    assert engine.rows(0) == []
    rows = flat(engine.drain())
    assert len(rows) == 9
    assert set(places(rows)) < set(all_places(store))


def test_all_at_once_is_one_batch_with_everything(store: LivingLog) -> None:
    """`once=True` asks without a limit, once; an empty batch would be all that it gets."""
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    engine = from_start(store, maxOffsetsPerTrigger="3")
    start = engine.reader.initialOffset()
    engine.log.append((start, engine.reader.latestOffset(start, ReadAllAvailable())))
    assert places(engine.rows()) == all_places(store)


def test_a_batch_that_is_planned_again_has_the_same_rows(store: LivingLog) -> None:
    engine = from_start(store, maxOffsetsPerTrigger="11")
    first = engine.drain()
    store.grow(30)
    engine = engine.restarted()
    again = [engine.rows(number) for number in range(len(first))]
    assert again == first


@pytest.mark.parametrize(
    "limits",
    [
        {"maxOffsetsPerTrigger": "9"},
        {"maxBytesPerTrigger": "1500"},
        {"maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "900"},
    ],
    ids=lambda limits: "+".join(limits),
)
def test_limits_are_kept_and_everything_comes(store: LivingLog, limits: dict[str, str]) -> None:
    engine = from_start(store, **limits)
    batches = engine.drain()[1:]
    assert places(flat(batches)) == all_places(store)
    queues = len(store.next_offset)
    for batch in batches:
        assert len(batch) <= 9 + queues
        if "maxBytesPerTrigger" in limits:
            sizes = sorted(row["storeSize"] for row in batch)
            assert sum(sizes) <= int(limits["maxBytesPerTrigger"]) + sum(sizes[-queues:])
    assert len(batches) > 3


def test_a_new_topic_begins_at_its_first_message(store: LivingLog) -> None:
    engine = query(store, subscribePattern="new.*|orders")
    assert flat(engine.drain()) == []
    for number in range(5):
        store.append(NewMessage(topic="newcomer", queue_id=number % 2, body=b"x"))
    store.publish()
    assert places(flat(engine.drain())) == Counter(
        {("newcomer", 0, n): 1 for n in range(3)} | {("newcomer", 1, n): 1 for n in range(2)}
    )


def test_available_now_ends_at_what_was_there_when_it_began(store: LivingLog) -> None:
    engine = from_start(store, maxOffsetsPerTrigger="5", minOffsetsPerTrigger="1000")
    expected = all_places(store)
    engine.reader.prepareForTriggerAvailableNow()
    assert engine.plan()
    store.grow(20)
    store.append(NewMessage(topic="late", queue_id=0, body=b"x"))
    store.publish()
    rows = flat(engine.drain(60))
    assert places(rows) == expected
    engine = engine.restarted()
    engine.reader.prepareForTriggerAvailableNow()
    assert places(rows + flat(engine.drain(60))) == all_places(store)


def test_available_now_says_that_its_target_is_gone(store: LivingLog) -> None:
    engine = from_start(store, maxOffsetsPerTrigger="5")
    engine.reader.prepareForTriggerAvailableNow()
    engine.plan()
    store.begin_epoch(cut_at=store.starts[20])
    store.publish()
    with pytest.raises(MqError, match=r"\[KEELOG_TARGET_MOVED\].* should end at \d+ or later"):
        engine.drain()


def test_a_batch_waits_for_enough_messages(store: LivingLog) -> None:
    engine = from_start(store, minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert len(flat(engine.drain())) == 40
    store.grow(3)
    store.append(NewMessage(topic="brandnew", queue_id=0, body=b"x"))
    store.publish()
    assert not engine.plan()
    store.grow(1)
    assert len(flat(engine.drain())) == 5


def test_a_short_delay_ends_the_wait(store: LivingLog) -> None:
    engine = from_start(store, minOffsetsPerTrigger="5", maxTriggerDelay="1ms")
    engine.drain()
    store.grow(1)
    while not engine.plan():
        pass
    assert len(engine.rows()) == 1


def lost_head(store: LivingLog) -> int:
    """Retention takes the first segment; answers how many messages went with it."""
    rebuild(store.root, settings=SETTINGS)
    (store.root / "commitlog" / f"{0:020d}").unlink()
    return sum(start < store.segment_bytes for start in store.starts)


def test_messages_that_retention_took_are_counted_by_queue(
    store: LivingLog, caplog: pytest.LogCaptureFixture
) -> None:
    engine = from_start(store)
    engine.plan()
    count = lost_head(store)
    assert 0 < count < 40
    with pytest.raises(MqError, match=rf"\[KEELOG_DATA_LOSS\].*; {count} messages in all"):
        engine.plan()
    engine = engine.restarted(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        rows = flat(engine.drain())
    assert len(rows) == 40 - count
    assert f"{count} messages in all" in caplog.text


@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_that_became_shorter_is_a_loss_with_its_offsets(
    store: LivingLog, replaced: bool
) -> None:
    engine = from_start(store, subscribe="orders", queueIds="0")
    engine.drain()
    end = engine.log[-1][1]["orders"]["store"]["0"]
    store.begin_epoch(cut_at=0 if replaced else store.starts[20])
    if replaced:
        store.append(NewMessage(topic="orders", queue_id=0, body=b"other"))
    store.publish()
    now = next(n for queue, n in store.next_offset.items() if queue == ("orders", 0))
    assert now < end
    text = f"orders/0 of store: {end - now} messages, {now} to {end - 1}: it ended at {end}"
    with pytest.raises(MqError, match=rf"\[KEELOG_DATA_LOSS\] {text}"):
        engine.plan()
    engine = engine.restarted(failOnDataLoss="false")
    assert flat(engine.drain()) == []
    store.append(NewMessage(topic="orders", queue_id=0, body=b"new"))
    store.publish()
    assert places(flat(engine.drain())) == Counter({("orders", 0, now): 1})


def test_a_new_query_begins_at_a_time(store: LivingLog) -> None:
    everything = flat(from_start(store).drain())
    times = sorted(row["storeTimestamp"] // 1000 for row in everything)
    middle = times[20]
    later = [row for row in everything if row["storeTimestamp"] // 1000 >= middle]
    rows = flat(query(store, startingTimestamp=str(middle)).drain())
    assert places(rows) == places(later)
    of_each = json.dumps({"orders": {"0": middle}})
    assign = {"assign": json.dumps({"orders": [0]}), "startingOffsetsByTimestamp": of_each}
    rows = flat(query(store, **assign, startingOffsets="earliest").drain())
    assert places(rows) == places(
        [row for row in later if (row["topic"], row["queueId"]) == ("orders", 0)]
    )


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"subscribe": "nosuch"}, "UNKNOWN_TOPIC"),
        ({"assign": '{"orders": [0]}', "startingOffsets": '{"orders": {"0": 999}}'},
         "OFFSET_OUT_OF_RANGE"),
        ({"endingOffsets": "latest"}, "UNKNOWN_OPTION"),
        ({"table": "index"}, "BAD_OPTION"),
        ({"maxTriggerDelay": "soon"}, "BAD_OPTION"),
        ({"maxOffsetsPerTrigger": "0"}, "BAD_OPTION"),
    ],
    ids=str,
)  # fmt: skip
def test_a_stream_that_cannot_begin_says_why(
    store: LivingLog, options: dict[str, str], condition: str
) -> None:
    with pytest.raises(MqError, match=rf"\[KEELOG_{condition}\]"):
        query(store, **options).plan()


def test_units_are_a_stream_too(store: LivingLog) -> None:
    engine = Engine(path=str(store.root), table="queues", startingOffsets="earliest", **SETTING)
    assert places(flat(engine.drain())) == all_places(store)


@pytest.fixture
def running(golden_copy: GetStore) -> Iterator[LivingStore]:
    """A folder that a node runs, with half of its log published."""
    root = golden_copy("small-clean")
    lock = StoreLock.acquire(root)
    known = facts("small-clean")
    with LivingStore(root, known) as pages:
        pages.publish(known.messages[3500]["physicalOffset"])
        yield pages
    lock.release()


def test_a_stream_of_a_running_node_follows_what_it_publishes(running: LivingStore) -> None:
    known = facts("small-clean")
    engine = Engine(path=str(running.root), startingOffsets="earliest", **COLUMNS)
    assert len(flat(engine.drain())) == 3500
    for at in (5000, 5001):
        running.publish(known.messages[at]["physicalOffset"])
        rows = flat(engine.drain())
        assert (
            max(row["physicalOffset"] for row in rows) == (known.messages[at - 1]["physicalOffset"])
        )
    assert not engine.plan()
    running.publish(running.end)
    assert len(flat(engine.drain())) == len(known.messages) - 5001


@pytest.mark.parametrize("by", [{"subscribePattern": ".*"}, {}], ids=["queues", "log"])
def test_only_flushed_rows_are_read_where_that_is_asked_for(
    running: LivingStore, by: dict[str, str]
) -> None:
    known = facts("small-clean").messages
    options = {"path": str(running.root), "isolation": "flushed", **COLUMNS}
    engine = Engine(startingOffsets="earliest", **options)
    running.publish(known[6000]["physicalOffset"])
    running.log.publish(flushed=known[4000]["physicalOffset"])
    assert len(flat(engine.drain())) == len(read_rows(**options, **by)) == 4000
    running.log.publish(flushed=known[5000]["physicalOffset"])
    assert len(flat(engine.drain())) == 1000
    with pytest.raises(MqError, match=r"\[KEELOG_BAD_OPTION\].*SYNC_FLUSH"):
        parse_options({"path": "tcp://127.0.0.1:1", "isolation": "flushed"})


def test_queues_of_a_worker_that_starts_again_are_late_and_not_lost(
    running: LivingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(path=str(running.root), startingOffsets="earliest", **COLUMNS)
    engine.drain()
    end = engine.log[-1][1]
    worker, epoch = running.workers[0], running.log.read().epoch
    worker.publish(state=STARTING, dispatched=0)
    assert not engine.plan(), "it neither fails nor goes back"
    engine = engine.restarted()
    assert engine.latest() == end
    monkeypatch.setattr(module, "COME_BACK_S_MAX", 0.1)
    with pytest.raises(MqError, match=r"\[KEELOG_STORE_UNREADABLE\].*still being made"):
        engine.rows()
    worker.begin_epoch(epoch, dispatched=0, saved=0)
    worker.publish(state=RUNNING)
    assert engine.latest() == end, "running, but not yet where the log is"
    running.publish(running.end)
    assert len(flat(engine.drain())) == 3500


def test_a_running_log_that_became_shorter_is_believed_after_a_moment(
    running: LivingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another reader may be a moment behind the one that was asked before."""
    engine = Engine(path=str(running.root), startingOffsets="earliest", **COLUMNS)
    engine.drain()
    running.begin_epoch(facts("small-clean").messages[3000]["physicalOffset"])
    assert not engine.plan()
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    with pytest.raises(MqError, match=r"\[KEELOG_DATA_LOSS\].*; 500 messages in all"):
        engine.plan()
    again = engine.restarted()
    again.reader.prepareForTriggerAvailableNow()
    with pytest.raises(MqError, match=r"\[KEELOG_DATA_LOSS\].*; 500 messages in all"):
        again.plan()


@pytest.mark.process
def test_a_node_is_followed_by_its_address_as_by_its_folder(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store") as node:
        options = {"startingOffsets": "earliest", "subscribePattern": "a|b", **COLUMNS}
        options["maxBytesPerTrigger"] = "2000"
        engines = [
            Engine(nodes=json.dumps({"n": at}), **options)
            for at in (node.endpoint, str(tmp_path / "store"))
        ]
        for topic in "abc":
            for number in range(20):
                node.client.send(topic, b"x" * number, queue_id=number % 3)
            node.wait_dispatched()
            rows = [flat(engine.drain()) for engine in engines]
            expected = {(topic, n % 3, n // 3): 1 for n in range(20)} if topic != "c" else {}
            assert [places(found) for found in rows] == [Counter(expected)] * 2
        assert engines[0].log == engines[1].log


@pytest.mark.process
@pytest.mark.parametrize("way", ["address", "folder"])
def test_a_topic_that_was_removed_and_made_anew_is_lost_data_not_another_topics(
    tmp_path: Path, way: str
) -> None:
    with RunningNode(tmp_path / "store") as node:
        at = node.endpoint if way == "address" else str(tmp_path / "store")
        options = {"nodes": json.dumps({"n": at}), "topics": "a", **COLUMNS}
        for number in range(5):
            node.client.send("a", b"old %d" % number, queue_id=0)
        node.wait_dispatched()
        engine = Engine(startingOffsets="earliest", **options)
        assert len(flat(engine.drain())) == 5
        before = list(engine.log)
        node.client.delete_topic("a")
        for number in range(10):
            node.client.send("a", b"new %d" % number, queue_id=0)
        node.wait_dispatched()
        for query in (engine, engine.restarted()):
            with pytest.raises(MqError, match=r"KEELOG_DATA_LOSS.*removed"):
                query.plan()
            assert query.log == before, "nothing of it is in the checkpoint"
        again = engine.restarted(failOnDataLoss="false")
        assert places(flat(again.drain())) == Counter({("a", 0, n): 1 for n in range(10)})
        assert not again.plan(), "an idle query makes no batch"
        sound = Engine(startingOffsets="earliest", **options)
        assert len(flat(sound.drain())) == 10
        node.client.send("a", b"more", queue_id=0)
        node.wait_dispatched()
        assert len(flat(sound.restarted().drain())) == 1, "it knows of which topic it has read"


@pytest.mark.process
def test_a_batch_that_was_planned_reads_nothing_of_a_topic_made_anew(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store") as node:
        for number in range(5):
            node.client.send("a", b"old %d" % number, queue_id=0)
        node.wait_dispatched()
        options = {"nodes": json.dumps({"n": node.endpoint}), "topics": "a", **COLUMNS}
        engine = Engine(startingOffsets="earliest", **options)
        while engine.plan() and len(engine.log) < 2:
            engine.rows()
        node.client.delete_topic("a")
        for number in range(10):
            node.client.send("a", b"new %d" % number, queue_id=0)
        node.wait_dispatched()
        with pytest.raises(MqError, match="KEELOG_DATA_LOSS"):
            engine.restarted().rows()
        again = engine.restarted(failOnDataLoss="false")
        assert again.rows() == []
        assert len(flat(again.drain())) == 10
