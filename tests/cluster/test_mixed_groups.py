"""A broker of RocketMQ 5.5.0 in controller mode and nodes are one group, whoever is the master."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from keelog.replication.keeper.controllers import Controllers
from protocol.remoting.controller import ControllerCode
from scripts.rivals.rocketmq import Addresses, Program, RocketMQ, missing
from tests.clients.sides import BROKER_AT_REST, BROKER_OPTIONS
from tests.cluster.elected_site import ControllerSite
from tests.cluster.same_store import differing_log
from tests.soak.harness import SMALL_FILES
from tests.support.elected_node import (
    BROKER,
    CLUSTER,
    ElectedNode,
    await_true,
    elected_nodes,
    master_of,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    # One site at a time: three controllers at rest take a third of a core.
    pytest.mark.xdist_group("controllers"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
TOPIC = "mixed"
COUNT = 3_000
JAVA_ID = 2
WAIT_S = 120.0
JAVA = {
    "brokerClusterName": CLUSTER, "brokerName": BROKER, "brokerIP2": "127.0.0.1",
    "enableControllerMode": "true", "allAckInSyncStateSet": "true",
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000, "maxIndexNum": 4000,
}  # fmt: skip


@pytest.fixture
def site(tmp_path: Path) -> Iterator[ControllerSite]:
    with ControllerSite(tmp_path, 3) as found:
        yield found


def java_broker(site: ControllerSite, home: Path) -> RocketMQ:
    """A broker of the same group."""
    addresses = Addresses(site.name_servers, Addresses.free().broker)
    settings = {**BROKER_AT_REST, **JAVA, "controllerAddr": site.controllers}
    return RocketMQ(site.classes, home, addresses, settings, BROKER_OPTIONS)


def elect(site: ControllerSite, broker_id: int) -> None:
    """As `mqadmin electMaster`."""
    controllers = Controllers(site.controllers.split(";"))
    ext = {
        "clusterName": CLUSTER, "brokerName": BROKER, "brokerId": str(broker_id),
        "designateElect": "true", "invokeTime": str(int(time.time() * 1000)),
    }  # fmt: skip
    assert controllers.ask(ControllerCode.ELECT_MASTER, ext).code == 0
    controllers.close()


def java_end(broker: RocketMQ) -> int:
    """Where its log ends, by its files: of zeros the rest of the last one."""
    paths = sorted((broker.store / "commitlog").iterdir())
    last = next((p for p in reversed(paths) if p.read_bytes().strip(b"\0")), paths[0])
    return int(last.name) + len(last.read_bytes().rstrip(b"\0"))


def await_copied(nodes: Sequence[ElectedNode], broker: RocketMQ) -> int:
    """The end of the log, once all have it."""

    def is_copied() -> bool:
        ends = {node.end() for node in nodes}
        return len(ends) == 1 and abs(max(ends) - java_end(broker)) < 8

    await_true(is_copied, f"ends differ, the broker's is {java_end(broker)}", nodes, WAIT_S)
    return nodes[0].end()


def await_members(nodes: Sequence[ElectedNode], count: int) -> None:
    """So many are in sync, as a node says."""
    await_true(lambda: len(nodes[0].state().in_sync) == count, "not all are in sync", nodes, WAIT_S)


def test_a_broker_follows_a_node_leads_nodes_and_follows_again(
    site: ControllerSite, tmp_path: Path
) -> None:
    java = Program(site.classes, tmp_path / "java", site.name_servers)
    nodes = elected_nodes(tmp_path, 2, site.controllers, site.name_servers, SMALL_FILES)
    broker = java_broker(site, tmp_path / "broker")
    try:
        nodes[0].begin()
        await_true(lambda: nodes[0].leads, "it does not lead", nodes[:1], WAIT_S)
        broker.start()
        await_members(nodes[:1], 2)
        nodes[1].begin()
        await_members(nodes, 3)

        def send() -> None:
            said = java.ask("send", topic=TOPIC, body=300, messages=COUNT, threads=4)
            assert said["messages"] >= COUNT, said

        send()
        check_equal(nodes, broker)

        elect(site, JAVA_ID)
        await_true(lambda: all(one.follows for one in nodes), "no replica", nodes, WAIT_S)
        await_members(nodes, 3)
        await_sends(java, send)
        check_equal(nodes, broker)

        elect(site, nodes[1].state().broker_id)
        await_true(lambda: master_of(nodes) is nodes[1], "it does not lead", nodes, WAIT_S)
        await_members(nodes, 3)
        await_sends(java, send)
        check_equal(nodes, broker)
    finally:
        for node in nodes:
            if node.is_running:
                node.kill()
        broker.kill()
        java.kill()


def await_sends(java: Program, send: Callable[[], None]) -> None:
    """The producer looks for the master each 30 s."""
    java.ask("first_send", topic=TOPIC, limit_s=60)
    send()


def check_equal(nodes: Sequence[ElectedNode], broker: RocketMQ) -> None:
    """All three logs are the same."""
    end = await_copied(nodes, broker)
    assert end > 0
    for node in nodes:
        assert differing_log(node.root, broker.store, 0, end) == []
