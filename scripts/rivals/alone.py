"""Keelog's turns without a node that serves: the store in process, dispatch of a log, restarts."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import zmq

from keelog.bench.node_process import ANY_DISK, Node
from keelog.bench.results import Stream
from keelog.bench.running import run
from keelog.bench.workload import Workload
from protocol.record.encode import EncodedRecords
from scripts.bench.dispatch import DispatchRow
from scripts.bench.dispatch import run as run_dispatch
from scripts.bench.recovery import GIB, batches, fill_with, first_append, under_load
from scripts.rivals.ours import wake_node
from scripts.rivals.plan import Side
from scripts.rivals.proc import family
from scripts.rivals.results import Figures
from scripts.rivals.rows import Load
from scripts.rivals.theirs import DISPATCH_TOPICS, KILL_AFTER_S, QUEUES, keyed_log

RESTART_QUEUES = 1_000
SHARDS = 2
"""Queue workers, as many as a node has by itself."""


class OurStore(Side):
    """Puts in process; dispatch by the workers of a node that starts on a log."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "alone"

    def close(self) -> None:
        """Removes the store."""
        shutil.rmtree(self._root, ignore_errors=True)

    def prepare(self, load: Load) -> None:
        """For dispatch: a log whose records have one key each."""
        if load.kind == "dispatch":
            keyed_log(self._root, load.messages)

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """New stores for puts; for dispatch the same log, all that is derived of it removed."""
        if load.kind == "dispatch":
            return self._dispatch(load)
        alone = Workload(
            kind="store", batch=load.batch, body=str(load.body), queues=QUEUES, duration=seconds,
            warm_up=1.0, directory=str(self._root),
        )  # fmt: skip
        try:
            streams = run(alone).streams
        finally:
            self.close()
        return {
            "single_per_s": rate_of(streams, "put "),
            "batch_per_s": rate_of(streams, "batch "),
        }

    def _dispatch(self, load: Load) -> Figures:
        """A node's own workers at once, from the first one's begin until they have everything."""
        row = DispatchRow(
            load.messages, DISPATCH_TOPICS * QUEUES, keys=1, fill_rate=0.0, start_s=0.0
        )
        run_dispatch(self._root, row, SHARDS)
        return {
            "per_s": row.until_all,
            "messages": row.records,
            "failed": 0,
            "server_cpu_s_per_million": row.cpu_us_per_record,
            "client_cpu_s_per_million": 0.0,
            "cpu_s_per_million": row.cpu_us_per_record,
        }


class OurRestarts(Side):
    """A store with many queues, on which a node is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "restarts"
        self._node: Node | None = None
        self._prepared: list[EncodedRecords] = []

    def close(self) -> None:
        """Kills the node and removes its store."""
        if self._node is not None:
            self._node.kill()
            self._node = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def pids(self) -> list[int]:
        """The supervisor and its children."""
        assert self._node is not None, "not prepared"
        (_, child), *_ = self._node.children()
        return family(child.ppid())

    def wake(self) -> None:
        """A few messages."""
        assert self._node is not None, "not prepared"
        wake_node(self._node)

    def prepare(self, load: Load) -> None:
        """A log of the size asked for, its queues reached in turn; then a node on it."""
        self.close()
        self._folder.mkdir(parents=True)
        self._prepared = batches(RESTART_QUEUES, load.body)
        fill_with(self._folder / "store", int(load.gib * GIB), self._prepared)
        self._node = Node(self._folder / "store", ANY_DISK, readers=1).start()
        self._node.await_dispatched()

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """A second of sends, kill -9, and the time from the command to the first accepted send."""
        node = self._node
        assert node is not None, "not prepared"
        with under_load(node, self._prepared):
            time.sleep(KILL_AFTER_S)
            node.kill()
        began = time.monotonic()
        node.begin()
        with zmq.Context() as context:
            first_append(context, node.endpoint)
        took = time.monotonic() - began
        node.await_ready()
        node.await_dispatched()
        return {"seconds": took}


def rate_of(streams: Mapping[str, Stream], beginning: str) -> float:
    """Messages a second, without the warm-up, of the stream whose name begins so."""
    (rate,) = [
        stream.steady.messages_per_s for name, stream in streams.items()
        if name.startswith(beginning)
    ]  # fmt: skip
    return rate
