"""Nodes at a real name server of RocketMQ 5.5.0: one cluster for its own, unmodified client."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from keelog.client.client import Client
from node.runtime.run_files import OtherMaster, read_other_master
from node.store.identity.places import create_store
from node.store.identity.roles import MASTER, StoreRole, save_role
from node.store.identity.store_id import ensure_id
from node.store.opening import open_store
from node.supervisor.bind import free_ports
from protocol.errors import ServiceNotAvailable
from protocol.remoting.bodies import ClusterInfo, TopicRouteData
from protocol.remoting.codes import RequestCode
from protocol.remoting.java_json import read_body
from tests.interop import probe
from tests.interop.test_remoting_clients import COUNT, JAVA, good_facts, run_client
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]
CLUSTER = "keels"
START_S = 180.0
BACK_S = 35.0
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


class NameServer:
    """The process of a name server, at one port over all its starts."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.port = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it; it listens afterwards."""
        self._home.mkdir(exist_ok=True)
        (self._home / "namesrv.conf").write_text(f"listenPort={self.port}\n")
        libraries = (JAVA / "target" / "cp.txt").read_text().strip()
        command = ["java", "-Xms128m", "-Xmx128m", f"-Duser.home={self._home}", "-cp", libraries]
        command += ["org.apache.rocketmq.namesrv.NamesrvStartup"]
        with (self._home / "said").open("ab") as said:
            self._process = subprocess.Popen(
                [*command, "-c", str(self._home / "namesrv.conf")],
                stdout=said, stderr=said, env={**os.environ, "ROCKETMQ_HOME": str(self._home)},
            )  # fmt: skip
        wait_until(lambda: self.route("none") is None, "no name server", START_S)

    def kill(self) -> None:
        """SIGKILL: it knows nothing when it starts again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S)
            self._process = None

    def route(self, topic: str) -> TopicRouteData | None:
        """The route that a client gets; None for an unknown topic. Raises AssertionError."""
        assert self._process is not None
        assert self._process.poll() is None, (self._home / "said").read_text()
        try:
            with closing(RemotingPeer(("127.0.0.1", self.port))) as peer:
                found = peer.ask(ROUTE, {"topic": topic, "acceptStandardJsonOnly": True})
        except OSError:
            return TopicRouteData()
        return read_body(TopicRouteData, found.body) if found.code == 0 else None

    def brokers(self, topic: str) -> set[str]:
        """The names of the brokers that have a topic."""
        route = self.route(topic)
        return {one.broker_name for one in route.queue_datas} if route else set()

    def clusters(self) -> ClusterInfo:
        """What `mqadmin clusterList` begins with."""
        with closing(RemotingPeer(("127.0.0.1", self.port))) as peer:
            return read_body(ClusterInfo, peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body)


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServer]:
    probe.build()
    server = NameServer(tmp_path / "namesrv")
    server.start()
    yield server
    server.kill()


def node_at(name_server: NameServer, root: Path, name: str) -> RunningNode:
    """A node that registers there under this name."""
    settings = (
        REMOTING, f"broker.namesrv_addr={name_server.place}", f"broker.broker_name={name}",
        f"broker.broker_cluster_name={CLUSTER}",
    )  # fmt: skip
    return RunningNode(root, settings, queue_workers=1, readers=1)


def queue_ends(root: Path, topic: str) -> Sequence[int]:
    """How many messages each queue of a stopped node got."""
    with open_store(root) as store:
        found = [store.queue(topic, number) for number in range(4)]
    return [queue.max_offset if queue else 0 for queue in found]


def test_an_old_master_does_not_take_the_place_of_one_that_was_promoted(
    tmp_path: Path, name_server: NameServer
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    create_store(new)
    ensure_id(new)
    save_role(new, StoreRole(MASTER, "127.0.0.1:1", epoch=2, offset=4_711))
    with node_at(name_server, new, "keel") as promoted:
        wait_until(lambda: name_server.brokers("TBW102") == {"keel"}, "not registered", 10)
        host, port = remoting_place(promoted.stderr)
        with node_at(name_server, old, "keel") as late:
            wait_until(
                lambda: read_other_master(old) == OtherMaster(f"{host}:{port}", leads=True),
                f"it was not noticed: {late.stderr}",
            )
            places = name_server.clusters().broker_addr_table["keel"].broker_addrs
            assert dict(places) == {0: f"{host}:{port}"}
            wait_until(lambda: is_refused(late.client), "it takes messages beside the other one")
        promoted.client.send("orders", b"x")


def is_refused(client: Client) -> bool:
    """Whether a send is refused by a node that knows of a newer master."""
    try:
        client.send("orders", b"x", timeout=2.0)
    except ServiceNotAvailable as error:
        return "another_master" in error.reason
    return False


def test_two_nodes_are_one_cluster_for_a_client(tmp_path: Path, name_server: NameServer) -> None:
    roots = {name: tmp_path / name for name in ("keel-a", "keel-b")}
    with (
        node_at(name_server, roots["keel-a"], "keel-a") as first,
        node_at(name_server, roots["keel-b"], "keel-b") as second,
    ):
        both = set(roots)
        wait_until(lambda: name_server.brokers("TBW102") == both, "not registered", 10)
        assert name_server.brokers(CLUSTER) == both, "tools find the brokers of a cluster by it"
        places = {"keel-a": remoting_place(first.stderr), "keel-b": remoting_place(second.stderr)}
        info = name_server.clusters()
        assert {name: set(names) for name, names in info.cluster_addr_table.items()} == {
            CLUSTER: both
        }
        assert {name: dict(one.broker_addrs) for name, one in info.broker_addr_table.items()} == {
            name: {0: f"{host}:{port}"} for name, (host, port) in places.items()
        }
        found = run_client(tmp_path, "RemotingClient", name_server.place, "orders", str(COUNT), "8")
        assert found.pop("first").startswith("SEND_OK ")
        assert found == good_facts(queues=8, brokers=2)
        assert name_server.brokers("orders") == both
        second.stop()
        wait_until(lambda: name_server.brokers("orders") == {"keel-a"}, "not unregistered", 5)
    ends = {name: queue_ends(root, "orders") for name, root in roots.items()}
    assert sum(map(sum, ends.values())) == 5 * COUNT, "each message once"
    assert all(min(one) > 0 for one in ends.values()), ends


def test_a_route_is_back_soon_after_its_name_server_was_killed_and_goes_with_its_topic(
    tmp_path: Path, name_server: NameServer
) -> None:
    with node_at(name_server, tmp_path / "store", "keel-a") as node:
        node.client.create_topic("orders", 4)
        wait_until(lambda: name_server.brokers("orders") == {"keel-a"}, "not registered", 10)
        name_server.kill()
        time.sleep(5)
        name_server.start()
        wait_until(lambda: name_server.brokers("orders") == {"keel-a"}, "not back", BACK_S)
        wait_until(lambda: node.stderr.count("registered at a name server") == 3, node.stderr, 5)
        node.client.delete_topic("orders")
        wait_until(lambda: name_server.route("orders") is None, "the route stays", 10)
        assert name_server.brokers("TBW102") == {"keel-a"}, "the node stays registered"


def test_a_killed_gateway_is_gone_at_once_and_comes_back(
    tmp_path: Path, name_server: NameServer
) -> None:
    with node_at(name_server, tmp_path / "store", "keel-a") as node:
        wait_until(lambda: name_server.brokers("TBW102") == {"keel-a"}, "not registered", 10)
        node.kill("gateway")
        wait_until(lambda: name_server.brokers("TBW102") == set(), "not gone", 5)
        wait_until(lambda: name_server.brokers("TBW102") == {"keel-a"}, "not back", 20)
        assert len(node.pids()["gateway"]) == 1
