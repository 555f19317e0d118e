"""A node that is killed under load: its senders and readers, its kills and its restarts.

Kills of a running query or of a disk's power are added by those who use it.
"""

import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from keelog.bench.node_process import START_S, Node, await_workers, processes
from keelog.bench.queue_checks import Ints, verify_deep
from keelog.client.client import connect
from tests.soak.load import Traffic, receipt_files, send, told_in

Work = tuple[Callable[..., None], tuple[Any, ...]]
"""A function for a process of its own, and its arguments; the event that ends it comes last."""

SMALL_FILES = (
    "mapped_file_size_commit_log=1048576",
    "mapped_file_size_consume_queue=6000",
    "max_hash_slot_num=1000",
    "max_index_num=4000",
)
"""So small that each file rolls every few seconds."""
LARGE_FILES = (
    "mapped_file_size_commit_log=67108864",
    "mapped_file_size_consume_queue=600000",
    "max_hash_slot_num=500000",
    "max_index_num=2000000",
)
"""For senders at full speed: many files roll."""
OFTEN_SAVED = (
    "flush_interval_consume_queue=200",
    "flush_consume_queue_least_pages=0",
    "flush_interval_commit_log=2000",
)
"""Progress is saved often; the log in ASYNC_FLUSH seldom, so that a power loss takes something."""
LARGE_PULLS = (
    "max_transfer_count_on_message_in_memory=4000",
    "max_transfer_bytes_on_message_in_memory=1048576",
    "max_transfer_count_on_message_in_disk=4000",
    "max_transfer_bytes_on_message_in_disk=1048576",
)
"""A check that pulls everything is quick."""
ORPHANS_S_MAX = 60.0
"""How long the children of a killed supervisor may live on, on a machine with other work too."""
_JOIN_S = 300


class KilledNode:
    """A node and what was killed of it. `faults` are sentences."""

    def __init__(
        self, folder: Path, node: Node, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """`folder`: for what is written down; the store may be elsewhere."""
        self.node = node
        node.talk = folder / "node.log"
        self.kills: Counter[str] = Counter()
        self.faults: list[str] = []
        self.orphan_s_max = self.back_s_max = 0.0
        self._tell = tell

    def start(self) -> None:
        """Starts the node; returns when it is ready."""
        began = time.monotonic()
        self.node.begin()
        self.node.await_ready()
        self.back_s_max = max(self.back_s_max, time.monotonic() - began)

    # -- kills ---------------------------------------------------------------------------------

    def count(self, kind: str) -> None:
        """Counts a kill, and reports progress."""
        self.kills[kind] += 1
        self._tell(f"{self.kills.total()} kills, the last: {kind}")

    def kill_one(self, rnd: random.Random, role: str) -> bool:
        """Kills a process of a role, by chance; False when there is none just now."""
        victims = [child for its, child in self.node.children() if its == role]
        if not victims:
            return False
        with suppress(psutil.NoSuchProcess):
            rnd.choice(victims).kill()
            self.count(role)
        return True

    def kill_node(self) -> None:
        """Kills all of it at once."""
        self.node.kill()
        self.count("node")

    def kill_supervisor(self) -> None:
        """Kills the supervisor alone: its children must end by themselves."""
        began = time.monotonic()
        _, alive = psutil.wait_procs(self.node.kill_supervisor(), _JOIN_S)
        took = time.monotonic() - began
        self.orphan_s_max = max(self.orphan_s_max, took)
        if alive or took > ORPHANS_S_MAX:
            self.faults.append(f"children outlived their supervisor by {took:.1f} s")
        for child in alive:
            child.kill()
        self.count("supervisor")

    def await_all(self) -> None:
        """Returns when every process of the node runs: killed ones come back by themselves."""
        deadline = time.monotonic() + START_S
        with connect(self.node.endpoint, timeout=START_S) as client:
            while any(one.state != "running" for one in processes(client).values()):
                if time.monotonic() > deadline:
                    self.faults.append(f"not all processes run: {processes(client)}")
                    return
                time.sleep(0.05)

    # -- the end -------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Returns when queues and index hold all of the log."""
        self.await_all()
        with connect(self.node.endpoint, timeout=START_S) as client:
            await_workers(client)

    def stop(self) -> None:
        """Stops the node in order."""
        if code := self.node.stop():
            self.faults.append(f"the node ended with {code}")

    def verify(self, settings: Sequence[str] = ()) -> None:
        """Runs `keelog store verify --deep` on the store at rest."""
        code, said = verify_deep(self.node.root, settings)
        if code:
            self.faults.append(f"store verify --deep ended with {code}: {said}")


class LoadedNode(KilledNode):
    """Such a node, and what sends to it."""

    def __init__(
        self,
        folder: Path,
        node: Node,
        traffic: Traffic,
        producers: int,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(folder, node, tell)
        self.traffic = traffic
        self._receipts = receipt_files(folder, producers)

    def create_topics(self, *others: str) -> None:
        """Makes those of the traffic and others."""
        with connect(self.node.endpoint, timeout=START_S) as client:
            for topic in (*self.traffic.topics, *others):
                client.create_topic(topic, self.traffic.queues)

    @contextmanager
    def load(self, readers: Mapping[Path, Work] | None = None) -> Iterator[None]:
        """Senders and readers run inside, each in a process that writes rows into its file.

        Readers are told to stop once nothing more is sent.
        """
        senders = {
            path: (send, (self.node.endpoint, self.traffic, number, path))
            for number, path in self._receipts.items()
        }
        with self._running(readers or {}), self._running(senders):
            _await_rows([*senders, *(readers or ())])
            yield

    @contextmanager
    def _running(self, works: Mapping[Path, Work]) -> Iterator[None]:
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        helpers = [
            context.Process(target=target, args=(*arguments, stop), daemon=True)
            for target, arguments in works.values()
        ]
        for helper in helpers:
            helper.start()
        try:
            yield
        finally:
            stop.set()
            for helper in helpers:
                helper.join(_JOIN_S)
                if helper.exitcode != 0:
                    self.faults.append(f"a sender or reader ended with {helper.exitcode}")
                    helper.kill()

    def told(self) -> dict[int, Ints]:
        """What the senders know by now."""
        return told_in(self._receipts)


def _await_rows(paths: list[Path]) -> None:
    """Returns when each file has something to show. Raises SystemExit."""
    deadline = time.monotonic() + START_S
    while not all(path.exists() and path.stat().st_size for path in paths):
        if time.monotonic() > deadline:
            raise SystemExit(f"not all of {paths} begin")
        time.sleep(0.02)
