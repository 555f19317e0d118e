"""A master of RocketMQ, a replica of it, a replica of that, and a slave of RocketMQ at the end."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from protocol.remoting.bodies import RegisterBrokerBody
from protocol.remoting.codes import RequestCode
from protocol.remoting.java_json import write_body
from scripts.rivals.rocketmq import missing
from tests.cluster.java_master import JavaMaster, replica_of, wait_copied
from tests.cluster.java_slave import BROKER, CLUSTER, Site
from tests.cluster.same_store import differing_index, differing_log, differing_queues
from tests.soak.cluster.java_master import MASTER_SIZES
from tests.soak.harness import SMALL_FILES
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode
from tests.support.remoting import RemotingPeer

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def name_as_master(site: Site, remoting: str, ha: str) -> RemotingPeer:
    """Tells a name server of its own that a replica is the master of a name: so the operator of a
    slave that is to follow a replica does it. It holds while the connection is open."""
    host, _, port = site.addresses.name_server.partition(":")
    peer = RemotingPeer((host, int(port)))
    names = {
        "brokerName": BROKER, "clusterName": CLUSTER, "brokerId": 0, "brokerAddr": remoting,
        "haServerAddr": ha, "heartbeatTimeoutMillis": 3_600_000, "bodyCrc32": 0,
    }  # fmt: skip
    body = write_body(RegisterBrokerBody(), standard=True)
    assert peer.ask(RequestCode.REGISTER_BROKER, names, body).code == 0
    return peer


def test_the_slave_at_the_end_of_a_chain_has_the_first_masters_store(tmp_path: Path) -> None:
    with ExitStack() as ends:
        master = ends.enter_context(JavaMaster(tmp_path / "master", MASTER_SIZES))
        master.send(3_000)
        first = ends.enter_context(replica_of(master, tmp_path / "first", HA, *SMALL_FILES))
        site = ends.enter_context(Site(tmp_path / "site"))
        source, remoting = followers_place(first), f"127.0.0.1:{site.remoting}"
        settings = (
            f"follow={source[0]}:{source[1]}",
            f"follow_remoting={master.addresses.broker}",
            f"serve.remoting={remoting}",
            HA,
            *SMALL_FILES,
        )
        node = RunningNode(tmp_path / "second", settings, queue_workers=1, readers=1)
        second = ends.enter_context(node)
        host, port = followers_place(second)
        ends.callback(name_as_master(site, remoting, f"{host}:{port}").close)
        slave = site.slave(MASTER_SIZES)
        ends.callback(slave.remove)
        slave.broker.start()
        master.send(3_000, body=700)
        end = wait_copied(master, second)
        slave.wait_for(end)
        begin = master.facts().begin
        slave.broker.stop()
        second.stop()
        first.stop()
        master.broker.stop()
        assert end - begin > 3 << 20, "more than three segments"
        for store in (first.root, second.root, slave.store):
            assert differing_log(store, master.store, begin, end) == []
            assert differing_queues(store, master.store) == []
            assert differing_index(store, master.store) == []
