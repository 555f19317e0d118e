"""A real slave of RocketMQ 5.5.0 beside a node, which it finds through a real name server."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from node.supervisor.bind import free_ports
from protocol.addresses import VIP_DISTANCE
from protocol.remoting.bodies import KVTable
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import read_body
from scripts.rivals.rocketmq import Addresses, Jvm, RocketMQ, class_path, start_name_server
from tests.clients.sides import BROKER_AT_REST, BROKER_OPTIONS
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import RemotingPeer

CLUSTER, BROKER = "keels", "keel-a"
CATCH_UP_S = 180.0
"""A slave finds its master 10 to 20 s after its start."""


class Site:
    """A name server, and where a slave is to listen. Gone behind the context."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.classes = class_path()
        self.addresses = Addresses.free()
        self.name_server: Jvm | None = None
        self.remoting = free_ports(VIP_DISTANCE + 1) + VIP_DISTANCE
        self.ha = free_ports(1)

    def __enter__(self) -> "Site":
        home, address = self.home / "namesrv", self.addresses.name_server
        self.name_server = start_name_server(self.classes, home, address)
        return self

    def __exit__(self, *_: object) -> None:
        if self.name_server is not None:
            self.name_server.kill()

    def settings(self) -> tuple[str, ...]:
        """Of a node that registers there as a master, and may be followed; always at one place."""
        return (
            f"serve.remoting=127.0.0.1:{self.remoting}", f"serve.ha_listen=127.0.0.1:{self.ha}",
            f"broker.namesrv_addr={self.addresses.name_server}",
            f"broker.broker_name={BROKER}", f"broker.broker_cluster_name={CLUSTER}",
        )  # fmt: skip

    def node(self, root: Path, settings: Sequence[str] = ()) -> RunningNode:
        """A node with these settings."""
        return RunningNode(root, (*self.settings(), *settings), queue_workers=1, readers=1)

    def slave(self, settings: Mapping[str, object]) -> "JavaSlave":
        """A slave of that node; `settings` name the sizes of its files."""
        addresses = replace(Addresses.free(), name_server=self.addresses.name_server)
        return JavaSlave(self.classes, self.home / "slave", addresses, settings)


class JavaSlave:
    """One slave, which may be killed and started again."""

    def __init__(
        self, classes: str, home: Path, addresses: Addresses, settings: Mapping[str, object]
    ) -> None:
        found = {
            "brokerClusterName": CLUSTER, "brokerName": BROKER, "brokerId": 1,
            "brokerRole": "SLAVE", "slaveReadEnable": "true", "brokerIP2": "127.0.0.1",
            **BROKER_AT_REST, **settings,
        }  # fmt: skip
        self.broker = RocketMQ(classes, home, addresses, found, BROKER_OPTIONS)
        host, _, port = addresses.broker.partition(":")
        self.place = host, int(port)

    @property
    def store(self) -> Path:
        """Its folder."""
        return self.broker.store

    def runtime(self) -> Mapping[str, str]:
        """What it says of itself; empty while it does not answer, or cannot say it: in its first
        second a broker fails to reckon its rates."""
        with suppress(OSError, EOFError), closing(RemotingPeer(self.place)) as peer:
            found = peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {})
            if found.code == ResponseCode.SUCCESS:
                return read_body(KVTable, found.body).table
        return {}

    def end(self) -> int:
        """Where its log ends; -1 while it does not answer."""
        return int(self.runtime().get("commitLogMaxOffset", -1))

    def wait_for(self, end: int) -> None:
        """Returns when it has the log up to there, and has dispatched it."""

        def is_there() -> bool:
            time.sleep(0.2)
            found = self.runtime()
            return (
                int(found.get("commitLogMaxOffset", -1)) >= end
                and int(found.get("dispatchBehindBytes", -1)) == 0
            )

        wait_until(is_there, f"the slave's log does not reach {end}", CATCH_UP_S)

    def remove(self) -> None:
        """Kills it and deletes its folder."""
        self.broker.kill()
        shutil.rmtree(self.store.parent, ignore_errors=True)
