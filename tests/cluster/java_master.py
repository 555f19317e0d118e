"""A real master of RocketMQ 5.5.0 with a producer, for replicas of ours."""

import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from keelog.replication.replica.master_link import MasterFacts, ask_facts
from scripts.rivals.rocketmq import (
    Addresses,
    Program,
    RivalFailed,
    RocketMQ,
    class_path,
    start_name_server,
)
from tests.clients.sides import BROKER_AT_REST, BROKER_OPTIONS
from tests.support.node import RunningNode, wait_until

BROKER = "rival"
TOPIC = "followed"
QUEUES = 4
CATCH_UP_S = 120.0
PROGRAM_OPTIONS = ("-Xms128m", "-Xmx512m")


class JavaMaster:
    """Name server, broker and producer, as a context. `settings` are the broker's."""

    def __init__(self, home: Path, settings: Mapping[str, object]) -> None:
        self.home = home
        classes = class_path()
        self.addresses = Addresses.free()
        self._name_server = start_name_server(classes, home / "namesrv", self.addresses.name_server)
        found = {"brokerIP2": "127.0.0.1", **BROKER_AT_REST, **settings}
        self.broker = RocketMQ(classes, home / "broker", self.addresses, found, BROKER_OPTIONS)
        self.broker.start()
        self.producer = Program(
            classes, home / "producer", self.addresses.name_server, PROGRAM_OPTIONS
        )
        self._load: threading.Thread | None = None
        self._is_over = threading.Event()
        self.sent = 0

    def __enter__(self) -> Self:
        self.producer.ask("topic", topic=TOPIC, queues=QUEUES, broker=self.addresses.broker)
        return self

    def __exit__(self, *_: object) -> None:
        self.end_load()
        self.producer.kill()
        self.broker.kill()
        self._name_server.kill()

    @property
    def ha(self) -> str:
        """Where its replication is."""
        host, _, port = self.addresses.broker.partition(":")
        return f"{host}:{int(port) + 1}"

    @property
    def store(self) -> Path:
        """Its folder."""
        return self.broker.store

    def send(self, count: int, body: int = 300, **more: object) -> None:
        """Sends and waits. Raises RivalFailed when one failed."""
        asked = {"threads": 2, "batch": 1, "in_flight": 1, "keyed": True, **more}
        said = self.producer.ask("send", topic=TOPIC, body=body, messages=count, **asked)
        if said["failed"]:
            raise RivalFailed(f"{said}")
        self.sent += count

    def begin_load(self, body: int = 300, pause_s: float = 0.0) -> None:
        """Sends without an end in a thread, whatever happens to the broker; two seconds each time,
        then nothing for `pause_s`."""

        def send() -> None:
            while not self._is_over.is_set():
                try:
                    said = self.producer.ask(
                        "send", topic=TOPIC, body=body, seconds=2, threads=2, batch=1,
                        in_flight=1, keyed=True,
                    )  # fmt: skip
                    self.sent += int(said["messages"]) - int(said["failed"])
                except RivalFailed:
                    time.sleep(0.5)
                self._is_over.wait(pause_s)

        self._load = threading.Thread(target=send, daemon=True)
        self._load.start()

    def end_load(self) -> None:
        """Ends it."""
        if self._load is not None:
            self._is_over.set()
            self._load.join(60)
            self._load = None

    def facts(self) -> MasterFacts:
        """Where its log begins and ends."""
        found: list[MasterFacts] = []

        def answers() -> bool:
            said = ask_facts(self.addresses.broker)
            if isinstance(said, MasterFacts):
                found.append(said)
            return bool(found)

        wait_until(answers, "the broker does not answer", CATCH_UP_S)
        return found[0]

    def restart(self) -> None:
        """Starts the broker again."""
        self.broker.start()

    def remove(self) -> None:
        """Deletes its folders, when it has ended."""
        shutil.rmtree(self.home, ignore_errors=True)


def replica_of(master: JavaMaster, root: Path, *settings: str) -> RunningNode:
    """A node that follows it, by the address of its replication."""
    return RunningNode(root, (f"follow={master.ha}", *settings), queue_workers=1, readers=1)


def wait_copied(master: JavaMaster, node: RunningNode) -> int:
    """Returns the end of the master's log when the replica has it, in queues and index too."""
    end = master.facts().end
    wait_until(
        lambda: node.log_state().flushed >= end,
        f"the replica does not reach {end}",
        CATCH_UP_S,
    )
    node.wait_dispatched(CATCH_UP_S)
    return end
