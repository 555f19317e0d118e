"""The two sides that a client is tried at: RocketMQ's broker with a name server, and a node."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from protocol.remoting.codes import RequestCode, ResponseCode
from scripts.rivals.rocketmq import (
    SMALL_HEAP,
    Addresses,
    RocketMQ,
    class_path,
    start_name_server,
)
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, RemotingPeer, remoting_place

CLUSTER, BROKER = "DefaultCluster", "broker-a"
DELAY_LEVELS = "1s 2s 1s 2s 2s"
"""A message that is handed back for the first time comes again after the third."""
BROKER_OPTIONS = SMALL_HEAP
BROKER_AT_REST = MappingProxyType(
    {"transactionMetricFlushInterval": 100, "timerFlushIntervalMs": 60_000}
)
"""Without these a broker takes a core for its first 10 s and up to a fifth of one from then on: it
spins until its counts of transactions are due, and goes through its timer wheel each second."""
TBW102_QUEUES = 8


class Side(NamedTuple):
    """Where clients find it: HOST:PORT of the name server, and of the broker."""

    name_server: str
    broker: str

    def create_topic(self, name: str, queues: int) -> None:
        """Makes a topic, as `mqadmin updateTopic` does; its route is known afterwards."""
        with closing(RemotingPeer(place_of(self.broker))) as peer:
            made = peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues))
            assert made.code == ResponseCode.SUCCESS, made.header.remark
        self.await_route(name)

    def await_route(self, topic: str) -> None:
        """Waits until the name server has a topic's route."""

        def is_known() -> bool:
            with closing(RemotingPeer(place_of(self.name_server))) as peer:
                found = peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            return found.code == ResponseCode.SUCCESS

        wait_until(is_known, f"no route for {topic}")


def topic_fields(name: str, queues: int) -> dict[str, object]:
    """Of the request that makes a topic (17)."""
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip


def place_of(address: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = address.partition(":")
    return host, int(port)


@contextmanager
def running_broker(
    home: Path,
    addresses: Addresses | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[Side]:
    """A broker of RocketMQ 5.5.0 at a name server of its own. `more`: RocketMQ's settings."""
    classes, addresses = class_path(), addresses or Addresses.free()
    settings = {
        "brokerClusterName": CLUSTER, "brokerName": BROKER, "messageDelayLevel": DELAY_LEVELS,
        "mappedFileSizeCommitLog": 64 << 20, **more,
    }  # fmt: skip
    name_server = start_name_server(classes, home / "namesrv", addresses.name_server)
    try:
        broker = RocketMQ(classes, home / "broker", addresses, settings, BROKER_OPTIONS)
        broker.start()
        try:
            side = Side(addresses.name_server, addresses.broker)
            side.await_route("TBW102")
            yield side
        finally:
            broker.kill()
    finally:
        name_server.kill()


@contextmanager
def running_node(
    root: Path,
    remoting: str = REMOTING,
    more: Mapping[str, object] = MappingProxyType({}),
    settings: Sequence[str] = (),
) -> Iterator[tuple[Side, RunningNode]]:
    """A node, which is its own name server. `more`: RocketMQ's settings; `settings`: others."""
    pairs = (
        remoting, *settings, *(f"store.{name}={value}" for name, value in more.items()),
        f"broker.broker_cluster_name={CLUSTER}", f"broker.broker_name={BROKER}",
        f"message_delay_level={DELAY_LEVELS}",
    )  # fmt: skip
    with RunningNode(root, pairs, queue_workers=1, readers=1) as node:
        host, port = remoting_place(node.stderr)
        yield Side(f"{host}:{port}", f"{host}:{port}"), node
