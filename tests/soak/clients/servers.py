"""What Java's clients talk to while it is killed: a Keelog node, or a real broker of RocketMQ."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from keelog.bench.node_process import ANY_DISK, Node
from node.runtime.settings import Settings, load_settings
from node.supervisor.bind import free_ports
from scripts.rivals.rocketmq import Addresses, Jvm, RocketMQ, class_path, start_name_server
from tests.soak.harness import OFTEN_SAVED, SMALL_FILES, KilledNode

BROKER = "sequences-a"
"""The name of either in its cluster."""
LEVELS = "1s 2s 3s 5s 10s"
"""Delayed messages take the first two, those that are handed back the third."""
LEVELS_SETTING = f"message_delay_level={LEVELS}"
BROKER_HEAP = ("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=1g")
NO_SETTINGS: Mapping[str, object] = {}
BROKER_SETTINGS: dict[str, object] = {
    "messageDelayLevel": LEVELS,
    "diskMaxUsedSpaceRatio": 99,
}


class KilledServer(ABC):
    """`kinds` is what can be killed, in turn; `settings` those that its store is read with."""

    name: str
    kinds: tuple[str, ...]
    root: Path
    settings: Settings
    name_server: str
    place: tuple[str, int]
    """Where it serves clients."""

    def __init__(self) -> None:
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []

    @abstractmethod
    def start(self) -> None:
        """Starts it; it serves afterwards."""

    @abstractmethod
    def kill(self, kind: str) -> None:
        """SIGKILL; everything runs again when this returns."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it in order."""

    @abstractmethod
    def close(self) -> None:
        """Ends what is left of it."""


class KilledKeelog(KilledServer):
    """A node with a gateway: its processes by role, and all of it."""

    name = "Keelog"
    kinds = ("gateway", "writer", "reader", "tasks", "node")

    def __init__(
        self, folder: Path, rnd: random.Random, tell: Callable[[str], None] = lambda _: None,
        broker: str = BROKER, name_servers: str = "", more: Mapping[str, object] = NO_SETTINGS,
    ) -> None:  # fmt: skip
        """`name_servers`: where it registers; else it is its own. `more`: RocketMQ's settings."""
        super().__init__()
        self._rnd = rnd
        self.root = folder / "store"
        self.place = ("127.0.0.1", free_ports(4) + 3)
        own = "{}:{}".format(*self.place)
        self.name_server = name_servers or own
        own_settings = [f"store.{name}={value}" for name, value in more.items()]
        files = (*SMALL_FILES, *OFTEN_SAVED, *ANY_DISK, LEVELS_SETTING, *own_settings)
        pairs = [*files, f"serve.remoting={own}", f"broker.broker_name={broker}"]
        if name_servers:
            pairs.append(f"broker.namesrv_addr={name_servers}")
        self.settings = load_settings(files)
        self.node = Node(self.root, pairs, readers=1)
        self._node = KilledNode(folder, self.node, tell)
        self.kills, self.faults = self._node.kills, self._node.faults

    def start(self) -> None:
        self._node.start()
        # The gateway is not needed for `ready`.
        self._node.await_all()

    def kill(self, kind: str) -> None:
        if kind == "node":
            self.kill_whole()
            self.start()
        elif self._node.kill_one(self._rnd, kind):
            self._node.await_all()
        else:
            self.faults.append(f"there is no {kind} to kill")

    def kill_whole(self) -> None:
        """SIGKILL to all of it; it stays away."""
        self._node.kill_node()

    def stop(self) -> None:
        self._node.catch_up()
        self._node.stop()
        self._node.verify([LEVELS_SETTING])

    def close(self) -> None:
        if self.node.is_running:
            self.node.kill()


class KilledBroker(KilledServer):
    """RocketMQ's own broker; its name server lives on."""

    name = "RocketMQ"
    kinds = ("broker",)

    def __init__(
        self, folder: Path, tell: Callable[[str], None], more: Mapping[str, object] = NO_SETTINGS
    ) -> None:
        super().__init__()
        self._folder, self._tell = folder, tell
        self._classes = class_path()
        addresses = Addresses.free()
        self.name_server = addresses.name_server
        host, _, port = addresses.broker.partition(":")
        self.place = host, int(port)
        settings = {**BROKER_SETTINGS, "brokerName": BROKER, **more}
        self._broker = RocketMQ(self._classes, folder / "broker", addresses, settings, BROKER_HEAP)
        self.root = self._broker.store
        self.settings = load_settings([LEVELS_SETTING])
        self._names: Jvm | None = None

    def start(self) -> None:
        if self._names is None:
            self._names = start_name_server(self._classes, self._folder / "names", self.name_server)
        self._broker.start()

    def kill(self, kind: str) -> None:
        self._broker.kill()
        self.kills[kind] += 1
        self._tell(f"RocketMQ: {self.kills.total()} kills")
        self._broker.start()

    def stop(self) -> None:
        self._broker.stop()

    def close(self) -> None:
        self._broker.kill()
        if self._names is not None:
            self._names.kill()
