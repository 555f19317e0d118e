"""A running node as a source: the rows of its files, without its files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from keelog.pipeline.stores import access
from keelog.pipeline.stores.access import StoreAt
from keelog.pipeline.stores.planned_store import open_planned
from keelog.pipeline.task_spec import Part
from protocol.errors import MqError
from protocol.names import offset_file_name
from protocol.requests import FETCH_BYTES_MAX
from tests.pipeline.facts_as_rows import options_for, plain_rows, read_rows
from tests.pipeline.stream.stream_engine import Engine
from tests.support.golden import GetStore, Row, facts, unpack
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("spark")]

NAMES = ("small-clean", "mixed-kinds")
READS: tuple[dict[str, str], ...] = (
    {},
    {"minPartitions": "7"},
    {"subscribePattern": ".*", "minPartitions": "3"},
    {"table": "queues"},
    {"table": "index"},
)
NAME = "small-clean"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunningNode]]:
    """Nodes that serve copies of golden stores."""
    running = {}
    for name in NAMES:
        node = RunningNode(unpack(name, tmp_path_factory.mktemp("node")), queue_workers=1)
        node.start()
        node.wait_dispatched()
        running[name] = node
    yield running
    for node in running.values():
        node.stop()


def named(address: str, **options: str) -> dict[str, str]:
    return {"nodes": json.dumps({"n": address}), **options}


def keyed(rows: list[Row]) -> list[str]:
    return sorted(json.dumps(row, default=repr, sort_keys=True) for row in rows)


def rows_of(parts: list[Part]) -> list[Row]:
    return [row for part in parts for batch in read_part(part) for row in plain_rows(batch)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("small-clean", options) for options in READS),
        *(("mixed-kinds", one) for one in READS[:3:2]),
    ],
    ids=str,
)
def test_rows_from_a_node_are_the_rows_of_its_files(
    nodes: dict[str, RunningNode], golden: GetStore, name: str, options: dict[str, str]
) -> None:
    wanted = read_rows(**named(str(golden(name))), **options_for(name, facts(name), **options))
    found = read_rows(**named(nodes[name].endpoint, **options))
    assert len(found) > 100
    assert keyed(found) == keyed(wanted)


def test_small_windows_cut_records_anywhere_and_nothing_changes(
    nodes: dict[str, RunningNode], golden: GetStore
) -> None:
    wanted = read_rows(**named(str(golden(NAME))))
    small = {"fetch.windowBytes": "4096", "fetch.inFlight": "7"}
    assert read_rows(**named(nodes[NAME].endpoint, **small)) == wanted


def test_a_window_is_no_more_than_a_node_gives() -> None:
    assert access.WINDOW_BYTES_MAX == FETCH_BYTES_MAX


def test_times_and_offsets_choose_the_same_rows(
    nodes: dict[str, RunningNode], golden: GetStore
) -> None:
    times = sorted(fact["storeTimestamp"] for fact in facts(NAME).messages)
    options = {
        "startingTimestamp": str(times[len(times) // 3]),
        "endingTimestamp": str(times[2 * len(times) // 3]),
        "columns": "topic,queueId,queueOffset",
    }
    wanted = read_rows(**named(str(golden(NAME)), **options))
    assert 0 < len(wanted) < len(times)
    assert keyed(read_rows(**named(nodes[NAME].endpoint, **options))) == keyed(wanted)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_a_node_and_its_folder_as_one_table(
    nodes: dict[str, RunningNode], spark: SparkSession
) -> None:
    node = nodes[NAME]
    both = json.dumps({"far": node.endpoint, "near": str(node.root)})
    frame = spark.read.format("keelog").option("nodes", both).option("columns", "node").load()
    counts = {row["node"]: row["count"] for row in frame.groupBy("node").count().collect()}
    assert counts == {"far": len(facts(NAME).messages), "near": len(facts(NAME).messages)}


def test_an_idle_refresh_is_one_small_request_and_news_are_seen(
    nodes: dict[str, RunningNode],
) -> None:
    node = nodes["mixed-kinds"]
    options = parse_options({"path": node.endpoint})
    with open_planned(StoreAt("n", node.endpoint), options) as store:
        before, end = store.queue("fresh", 0), store.log.end
        assert before is None
        store.refresh()
        assert store.log.end == end
        sent = node.client.send("fresh", b"news", queue_id=0)

        def is_seen() -> bool:
            store.refresh()
            reader = store.queue("fresh", 0)
            return reader is not None and reader.max_offset == 1

        wait_until(is_seen, "the message is not seen")
        assert store.log.end > sent.physical_offset
        reader = store.queue("fresh", 0)
        assert reader is not None
        assert int(reader.units(0, 1)["physical_offset"][0]) == sent.physical_offset
    rows = read_rows(**named(node.endpoint, subscribe="fresh"))
    assert [row["body"] for row in rows] == [b"news"]


def test_a_named_topic_is_all_that_a_node_is_asked_for(nodes: dict[str, RunningNode]) -> None:
    node, topic = nodes[NAME], facts(NAME).queue_units[0]["topic"]
    options = parse_options({"path": node.endpoint, "subscribe": topic})
    with open_planned(StoreAt("n", node.endpoint), options) as store:
        assert {queue.topic for queue in store.queues()} == {topic}
        assert len(store.topics()) > 1
    with pytest.raises(MqError, match=rf"\[KEELOG_UNKNOWN_TOPIC\].*nosuch.*one of.*{topic}"):
        read_rows(**named(node.endpoint, subscribe="nosuch"))


def test_a_folder_is_read_while_its_node_runs_and_after_it_was_killed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    ways: tuple[dict[str, str], ...] = ({}, {"subscribePattern": ".*"}, {"table": "queues"})
    settings = ("store.flush_disk_type=SYNC_FLUSH", "store.mapped_file_size_commit_log=65536")
    with RunningNode(root, settings, queue_workers=2, readers=1) as node:
        for number in range(300):
            node.client.send("t", b"%d" % number * 100, acks="flushed")
        for way in ways:
            assert len(read_rows(path=str(root), **way)) == 300, way
        query = Engine(path=str(root), startingOffsets="earliest")
        assert sum(map(len, query.drain())) == 300
        node.kill_all()
    for way in ways:
        assert len(read_rows(path=str(root), **way)) == 300, way


def test_a_stream_follows_a_node(nodes: dict[str, RunningNode]) -> None:
    node = nodes["mixed-kinds"]
    query = Engine(**named(node.endpoint), subscribePattern="followed", startingOffsets="earliest")
    assert query.drain() == [[]]
    seen: list[bytes] = []
    for number in range(3):
        node.client.send("followed", b"%d" % number, queue_id=0)

        def has_come(wanted: int = number + 1) -> bool:
            seen.extend(row["body"] for rows in query.drain() for row in rows)
            return len(seen) >= wanted

        wait_until(has_come, f"message {number} does not come")
    assert seen == [b"0", b"1", b"2"]


def test_readers_that_are_killed_in_a_read_cost_time_alone(nodes: dict[str, RunningNode]) -> None:
    node = nodes[NAME]
    parts = plan_parts(parse_options(named(node.endpoint, **{"fetch.windowBytes": "8192"})))
    (part,) = parts
    batches = read_part(part)
    rows = next(batches).num_rows
    for index in range(node.readers):
        node.kill("reader", index)
    rows += sum(batch.num_rows for batch in batches)
    assert rows == len(facts(NAME).messages)
    node.wait_all_run()


def test_the_writer_may_start_anew_between_plan_and_read(nodes: dict[str, RunningNode]) -> None:
    node = nodes[NAME]
    ways: tuple[dict[str, str], ...] = ({}, {"subscribePattern": ".*"}, {"table": "queues"})
    plans = [plan_parts(parse_options(named(node.endpoint, **way))) for way in ways]
    epoch = node.log_state().epoch
    node.kill("writer")
    wait_until(lambda: node.log_state().epoch > epoch, "no new epoch")
    for plan in plans:
        assert len(rows_of(plan)) == len(facts(NAME).messages)
    node.wait_all_run()


def test_a_node_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = named("tcp://127.0.0.1:9", **{"fetch.timeoutMs": "300"})
    with pytest.raises(MqError, match=r"\[KEELOG_NODE_UNREACHABLE\].*127.0.0.1:9"):
        read_rows(**options)


def test_a_node_that_dies_in_a_read_is_waited_for_and_then_named(golden_copy: GetStore) -> None:
    options = {"fetch.timeoutMs": "400", "fetch.windowBytes": "8192", "fetch.inFlight": "1"}
    with RunningNode(golden_copy(NAME), queue_workers=1, readers=1) as node:
        (part,) = plan_parts(parse_options(named(node.endpoint, **options)))
        batches = read_part(part)
        next(batches)
        node.kill_all()
        with pytest.raises(MqError, match=r"\[KEELOG_NODE_UNREACHABLE\].*fetch.timeoutMs"):
            list(batches)


def test_what_is_deleted_under_a_read_is_a_loss_that_is_told(golden_copy: GetStore) -> None:
    root = golden_copy(NAME)
    first = root / "commitlog" / offset_file_name(0)
    end = first.stat().st_size
    ways: tuple[dict[str, str], ...] = ({}, {"subscribePattern": ".*"})
    with RunningNode(root, queue_workers=1, readers=1) as node:
        plans = {
            fail: [
                plan_parts(parse_options(named(node.endpoint, failOnDataLoss=fail, **way)))
                for way in ways
            ]
            for fail in ("true", "false")
        }
        first.unlink()
        for plan in plans["true"]:
            with pytest.raises(MqError, match=r"\[KEELOG_DATA_LOSS\].*deleted"):
                rows_of(plan)
        left = [fact for fact in facts(NAME).messages if fact["physicalOffset"] >= end]
        for plan in plans["false"]:
            assert sorted(row["physicalOffset"] for row in rows_of(plan)) == [
                fact["physicalOffset"] for fact in left
            ]
        node.kill_all()
