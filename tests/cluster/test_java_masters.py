"""Replicas of a master of RocketMQ 5.5.0: log, queues and index are those of the master."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.run_files import FOLLOWING, WAITING, read_follow_state
from node.store.config.consumer_offsets import read_group_offsets
from node.store.config.topics_file import TopicsFile
from scripts.rivals.rocketmq import missing
from tests.cluster.java_master import (
    BROKER,
    QUEUES,
    TOPIC,
    JavaMaster,
    replica_of,
    wait_copied,
)
from tests.cluster.same_store import differing_index, differing_log, differing_queues
from tests.soak.cluster.java_master import MASTER_SIZES
from tests.soak.harness import SMALL_FILES
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
KILLS = 20


@pytest.fixture
def master(tmp_path: Path) -> Iterator[JavaMaster]:
    with JavaMaster(tmp_path / "master", MASTER_SIZES) as found:
        yield found


def check_equal(master: JavaMaster, node: RunningNode) -> None:
    """Stops both, then compares log, queues and index."""
    end = wait_copied(master, node)
    begin = master.facts().begin
    node.stop()
    master.broker.stop()
    assert end - begin > 1 << 20, "more than a segment"
    assert differing_log(node.root, master.store, begin, end) == []
    assert differing_queues(node.root, master.store) == []
    assert differing_index(node.root, master.store) == []


def test_a_replica_that_comes_later_and_one_under_load_have_the_masters_store(
    master: JavaMaster, tmp_path: Path
) -> None:
    master.send(6_000)
    with replica_of(master, tmp_path / "copy", *SMALL_FILES) as node:
        master.send(6_000, body=700)
        wait_copied(master, node)
        state = read_follow_state(node.root)
        assert (state.state, state.lag_bytes, state.connections) == (FOLLOWING, 0, 1)
        topic = TopicsFile(node.root).topics[TOPIC]
        assert (topic.read_queues, topic.write_queues) == (QUEUES, QUEUES)
        assert all(not why for why in state.metadata.values())
        shown = node.client.status().raw
        assert shown["mode"] == "replica"
        assert shown["following"]["state"] == FOLLOWING
        check_equal(master, node)


def test_offsets_of_consumers_come_from_the_master(master: JavaMaster, tmp_path: Path) -> None:
    master.send(400)
    read = master.producer.ask("push", topic=TOPIC, group="readers", messages=400, pull=32)
    assert read["messages"] == 400
    with replica_of(master, tmp_path / "copy", *SMALL_FILES) as node:

        def places(root: Path) -> dict[int, int]:
            return read_group_offsets(root).get("readers", {}).get(TOPIC, {})

        # The broker saves them every 5 s, the replica asks every 60 s.
        wait_until(lambda: sum(places(master.store).values()) > 0, "nothing was committed", 30)
        wait_until(
            lambda: places(node.root) == places(master.store), "the offsets did not come", 150
        )
        groups = (node.root / "config" / "subscriptionGroup.json").read_text()
        assert '"readers"' in groups


def test_kills_of_either_side_under_load_leave_equal_stores(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak.cluster.java_master", "--kills", str(KILLS)]
    command += ["--store", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert sum(found["kills"].values()) == KILLS
    assert found["segments"] > 4


def test_a_replica_of_a_trimmed_master_begins_where_it_does(
    master: JavaMaster, tmp_path: Path
) -> None:
    master.send(9_000)
    master.broker.stop()
    segments = sorted((master.store / "commitlog").iterdir())
    for path in segments[:2]:
        path.unlink()
    master.restart()
    begin = master.facts().begin
    assert begin == int(segments[2].name)
    master.send(1_000)
    with replica_of(master, tmp_path / "copy", *SMALL_FILES) as node:
        end = wait_copied(master, node)
        assert node.log_state().min_offset == begin
        node.stop()
        master.broker.stop()
        assert differing_log(node.root, master.store, begin, end) == []


def test_a_replica_finds_its_master_and_consumers_read_from_it_when_that_is_lost(
    master: JavaMaster, tmp_path: Path
) -> None:
    master.send(500)
    source = f"namesrv:{master.addresses.name_server}/{BROKER}"
    settings = (
        f"follow={source}",
        REMOTING,
        f"broker.broker_cluster_name={BROKER}",
        "slave_read_enable=true",
        *SMALL_FILES,
    )
    with RunningNode(tmp_path / "copy", settings, queue_workers=1, readers=1) as node:
        wait_copied(master, node)
        expected = (master.ha, master.addresses.broker)
        wait_until(lambda: read_follow_state(node.root).connections > 0, "no state is shown")
        state = read_follow_state(node.root)
        assert (state.master, state.remoting) == expected
        sent = master.producer.ask("send", topic=TOPIC, body=10, messages=20, threads=1, batch=1)
        assert sent["failed"] == 0  # a producer goes to the master alone
        wait_copied(master, node)
        master.broker.kill()
        read = master.producer.ask("push", topic=TOPIC, group="late", messages=520, pull=32)
        assert (read["messages"], read["failed"]) == (520, 0)


def test_a_replica_of_an_empty_master_waits_for_its_first_message(
    master: JavaMaster, tmp_path: Path
) -> None:
    with replica_of(master, tmp_path / "copy", *SMALL_FILES) as node:
        wait_until(lambda: read_follow_state(node.root).connections == 1, "not connected")
        assert read_follow_state(node.root).state in (WAITING, FOLLOWING)
        master.send(50)
        time.sleep(0.5)
        wait_copied(master, node)


def test_a_replica_of_a_replica_has_the_masters_store(master: JavaMaster, tmp_path: Path) -> None:
    first = RunningNode(
        tmp_path / "first", (f"follow={master.ha}", HA, *SMALL_FILES), queue_workers=1, readers=1
    )
    with first:
        host, port = followers_place(first)
        second = RunningNode(
            tmp_path / "second",
            (f"follow={host}:{port}", f"follow_remoting={master.addresses.broker}", *SMALL_FILES),
            queue_workers=1,
            readers=1,
        )
        with second:
            master.send(6_000)
            wait_copied(master, first)
            check_equal(master, second)
