"""Slaves of RocketMQ 5.5.0 behind a node: log, queues and index are those of the node."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.run_files import read_followers
from scripts.rivals.rocketmq import Program, missing
from tests.cluster.java_slave import BROKER, Site
from tests.cluster.same_store import (
    differing_index,
    differing_log,
    differing_queues,
    rebuilt_copy,
)
from tests.support.golden import STORES, GetStore, facts
from tests.support.golden_view import size_pairs
from tests.support.node import RunningNode, wait_until
from tests.workers.test_rebuild import settings_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
SIZES = (
    "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
)  # fmt: skip
KILLS = 20


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "site") as found:
        yield found


def settled_end(node: RunningNode) -> int:
    """The end of the log once nothing is appended any more, and all of it is flushed."""
    seen, since = -1, time.monotonic()
    while time.monotonic() - since < 3:
        state = node.log_state()
        if state.appended != seen or state.flushed != seen:
            seen, since = state.appended, time.monotonic()
        time.sleep(0.1)
    return seen


@pytest.mark.parametrize("name", STORES)
def test_a_slave_gets_every_golden_store(
    site: Site, name: str, golden_copy: GetStore, tmp_path: Path
) -> None:
    root, known = golden_copy(name), facts(name)
    config = known.state["config"]
    slave = site.slave({size: config[size] for size in SIZES})
    try:
        with site.node(root, tuple(size_pairs(name, known))) as node:
            node.wait_all_run()
            slave.broker.start()
            end = settled_end(node)
            slave.wait_for(end)
            begin = node.log_state().min_offset
            assert settled_end(node) == end
            (shown,) = read_followers(root).followers
            assert (shown.acknowledged, shown.in_sync) == (end, True)
        slave.broker.stop()
        assert differing_log(root, slave.store, begin, end) == []
        settings = settings_of("small-clean" if name == "small-clean-533" else name)
        made = rebuilt_copy(root, tmp_path, settings)
        assert differing_queues(made, slave.store) == []
        assert differing_index(made, slave.store) == []
        for table in ("topics.json", "subscriptionGroup.json"):
            assert (slave.store / "config" / table).exists(), table
    finally:
        slave.remove()


def test_kills_of_either_side_under_load_leave_equal_stores(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak.cluster.java_slave", "--kills", str(KILLS)]
    command += ["--store", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert sum(found["kills"].values()) == KILLS
    assert found["bytes"] > 8 << 20


def test_a_java_consumer_reads_from_the_slave_alone(site: Site, tmp_path: Path) -> None:
    count = 1_000
    slave = site.slave({"mappedFileSizeCommitLog": 16 << 20})
    program = None
    try:
        with site.node(tmp_path / "node") as node:
            node.wait_all_run()
            with node.client.producer() as producer:
                producer.send_many("kept", [b"%d" % number for number in range(count)])
            slave.broker.start()
            slave.wait_for(settled_end(node))
            # A slave takes the topics a minute after its start, and serves none before.
            topics = slave.store / "config" / "topics.json"
            wait_until(
                lambda: topics.exists() and '"kept"' in topics.read_text(),
                "the slave has not taken the topic",
                150,
            )
        program = Program(site.classes, tmp_path / "program", site.addresses.name_server)
        read = program.ask("push", topic="kept", group="readers", messages=count, pull=32)
        assert (read["messages"], read["failed"]) == (count, 0), (BROKER, read)
    finally:
        if program is not None:
            program.kill()
        slave.remove()
