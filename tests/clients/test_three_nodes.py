"""Three nodes at two real name servers are one cluster for RocketMQ's Java client, under kills."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from keelog.client.client import connect
from scripts.rivals.rocketmq import missing
from tests.interop import probe
from tests.interop.test_name_server import NameServer
from tests.soak.clients.check import (
    Repeats,
    check_committed,
    check_given,
    check_stored,
    committed_of,
    read_kept,
)
from tests.soak.clients.programs import TOLD, JavaLoad
from tests.soak.clients.servers import KilledKeelog
from tests.support.node import wait_until

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
NODES = ("keel-a", "keel-b", "keel-c")
PATIENCE_S = 90.0
ROUTE_POLL_S = 30.0
"""So often clients ask a name server for routes."""
GAP_S_MAX = 10.0
AWAY_S = 8.0


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[tuple[NameServer, NameServer]]:
    probe.build()
    first, second = NameServer(tmp_path / "names-a"), NameServer(tmp_path / "names-b")
    with ExitStack() as ends:
        for one in (first, second):
            ends.callback(one.kill)
            one.start()
        yield first, second


@pytest.fixture
def nodes(
    tmp_path: Path, name_servers: tuple[NameServer, NameServer]
) -> Iterator[list[KilledKeelog]]:
    both = ";".join(one.place for one in name_servers)
    with ExitStack() as ends:
        found = []
        for name in NODES:
            folder = tmp_path / name
            folder.mkdir()
            node = KilledKeelog(folder, random.Random(1), broker=name, name_servers=both)
            ends.callback(node.close)
            node.start()
            found.append(node)
        yield found


def brokers_that_acknowledged(load: JavaLoad, since_ns: int) -> set[int]:
    """The brokers of messages that were acknowledged after a moment."""
    rows = np.concatenate(list(load.told().values()))
    return set(rows[rows[:, TOLD.index("ns")] > since_ns, 0].tolist()) - {-1}


def longest_gap_s(load: JavaLoad, since_ns: int) -> float:
    """The longest time without an acknowledgement."""
    moments = np.sort(load.acknowledged()[:, 2])
    moments = np.concatenate([[since_ns], moments[moments > since_ns], [time.monotonic_ns()]])
    return float(np.diff(moments).max()) / 1e9


def test_a_killed_node_and_a_killed_name_server_cost_a_java_client_nothing(
    tmp_path: Path, name_servers: tuple[NameServer, NameServer], nodes: list[KilledKeelog]
) -> None:
    load = JavaLoad(tmp_path / "clients", nodes[0].name_server, NODES)
    for node in nodes:
        with connect(node.node.endpoint, timeout=30.0) as client:
            client.create_topic(load.topic, 4)
    for one in name_servers:
        wait_until(lambda one=one: one.brokers(load.topic) == set(NODES), "no routes", PATIENCE_S)  # type: ignore[misc]
    with ExitStack() as ends:
        ends.callback(load.kill)
        producer = load.produce(producers=1)
        consumers = [load.consume(name) for name in ("one", "two")]
        wait_until(lambda: brokers_that_acknowledged(load, 0) == {0, 1, 2}, "not all", PATIENCE_S)
        assert not load.await_both(time.monotonic_ns(), PATIENCE_S)

        killed_ns = time.monotonic_ns()
        nodes[1].kill_whole()
        time.sleep(AWAY_S)
        assert not load.await_both(time.monotonic_ns(), PATIENCE_S)
        assert longest_gap_s(load, killed_ns) < GAP_S_MAX, "the producer goes on at the others"
        back_ns = time.monotonic_ns()
        nodes[1].start()
        wait_until(lambda: 1 in brokers_that_acknowledged(load, back_ns), "not back", PATIENCE_S)

        killed_ns = time.monotonic_ns()
        name_servers[0].kill()
        time.sleep(ROUTE_POLL_S + AWAY_S)
        assert not load.await_both(time.monotonic_ns(), PATIENCE_S)
        assert longest_gap_s(load, killed_ns) < GAP_S_MAX
        assert brokers_that_acknowledged(load, killed_ns) == {0, 1, 2}

        producer.finish()
        assert not load.await_all_consumed(PATIENCE_S)
        for consumer in consumers:
            consumer.finish()
        for number, node in enumerate(nodes):
            committed = committed_of(node.place, load, number)
            assert len(committed) == 5, "four queues and the retry topic"
            assert check_committed(committed, load.given()) == []
    repeats = Repeats()
    for node in nodes:
        node.stop()
        assert node.faults == []
    kept = {number: read_kept(node.root, node.settings, load) for number, node in enumerate(nodes)}
    check_stored(load, kept, repeats)
    check_given(load, kept, repeats)
    assert repeats.faults == []
    assert repeats.acknowledged == len(load.acknowledged()) > 1_000
