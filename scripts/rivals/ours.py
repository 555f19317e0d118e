"""Keelog's turns in a comparison, with the figures of RocketMQ's.

At a node run the workloads of `keelog.bench`. CPU seconds count from the first message until
queues and index hold the last one. A node whose store has grown beyond STORE_BYTES_MAX is replaced
by a fresh one between two turns. Without a node that serves run the store in process, dispatch of
a log, and restarts.
"""

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keelog
from keelog.bench.job import SECOND_NS, LoadJob
from keelog.bench.node_process import ANY_DISK, Node, await_workers
from keelog.bench.processes import Fleet
from keelog.bench.results import Result
from keelog.bench.running import run
from keelog.bench.workload import Callers, Workload
from protocol.record.encode import EncodedRecords
from scripts.bench.dispatch import rate_of_all
from scripts.bench.dispatch import run as run_dispatch
from scripts.bench.recovery import GIB, batches, fill_with, restart, under_load
from scripts.command_line import percentile
from scripts.rivals import theirs
from scripts.rivals.plan import CRC_OFF, OBJECTS, Figures, Load, Side
from scripts.rivals.proc import cpu_seconds, family, private_mib, read_once

STORE_BYTES_MAX = 6 << 30
NO_CRC = "store.enabled_append_prop_crc=false"
SYNC = "store.flush_disk_type=SYNC_FLUSH"
LIMIT_S = 600
WARM_UP_S = 1.0
PULL_MESSAGES, PULL_BYTES = 10_000, 1 << 20
"""The pulls of `consume` by default; RocketMQ's side is allowed pulls as large."""
FILL_BATCH = 500
RESTART_QUEUES = 1_000
SHARDS = 2
"""Queue workers, as many as a node has by itself."""


class NodeSide(Side):
    """A node on a store in a folder of its own."""

    def __init__(self, folder: Path, settings: Sequence[str] = ()) -> None:
        self._folder = folder
        self._settings = [*ANY_DISK, *settings]
        self._node: Node | None = None

    def close(self) -> None:
        """Kills the node and removes its store."""
        if self._node is not None:
            self._node.kill()
            self._node = None
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def store(self) -> Path:
        """Where the node's store is, or will be."""
        return self._folder / "store"

    @property
    def node(self) -> Node:
        assert self._node is not None, "not started"
        return self._node

    def start_node(self) -> Node:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._node = Node(self.store, self._settings, readers=1).start()
        return self._node

    def pids(self) -> list[int]:
        """The supervisor and its children."""
        return [] if self._node is None else family(self._node.pid)

    def wake(self) -> None:
        """A few messages to a topic of their own."""
        with keelog.connect(self.node.endpoint, timeout=60) as client:
            for _ in range(theirs.WAKE_MESSAGES):
                client.send("warm-up", b"up")


class Ours(NodeSide):
    """One node with its settings, and the turns that are run against it."""

    def __init__(self, folder: Path, side: str, *, sync: bool) -> None:
        settings = [NO_CRC] if side == CRC_OFF else []
        super().__init__(folder / side, [*settings, SYNC] if sync else settings)
        self._prepared: Load | None = None
        self._finds = 0

    def prepare(self, load: Load) -> None:
        """A new node and store, topics, what is stored before, and nothing that is timed."""
        self.close()
        self.start_node()
        self._prepared = load
        with keelog.connect(self.node.endpoint, timeout=60) as client:
            client.create_topic(theirs.topic_of(load), theirs.QUEUES, exist_ok=True)
            if load.kind == "consume":
                self._fill(load)
            elif load.kind == "find":
                fill_keyed(client, theirs.topic_of(load), load.messages)
            await_workers(client)

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        if self._store_bytes() > STORE_BYTES_MAX and self._prepared is not None:
            self.prepare(self._prepared)
        with read_once(
            WARM_UP_S + seconds * theirs.SAMPLE_AT, lambda: private_mib(self.pids(), self.node.root)
        ) as pss:
            if load.kind == "consume":
                figures = self._consume(load, side)
            elif load.kind == "find":
                figures = self._find(load)
            else:
                figures = figures_of_result(run(workload(load, self.node.endpoint, seconds)))
        if pss:
            figures["pss_mib"] = pss[0]
        return figures

    def _store_bytes(self) -> int:
        with keelog.connect(self.node.endpoint) as client:
            log = client.status().log
            return log.appended - log.min

    def _fill(self, load: Load) -> None:
        stored = Workload(
            kind="send", callers="batches", batch=FILL_BATCH, in_flight=8, body=str(load.body),
            count=load.messages, warm_up=0.0, queues=theirs.QUEUES,
        )  # fmt: skip
        self._fleet([LoadJob("send", 0, 1, self.node.endpoint, (theirs.topic_of(load),), stored)])

    def _consume(self, load: Load, side: str) -> Figures:
        """All queues from end to end, once."""
        read = Workload(
            kind="consume", read_as="objects" if side == OBJECTS else "raw", count=load.messages,
            queues=theirs.QUEUES, pull_messages=PULL_MESSAGES, pull_bytes=PULL_BYTES,
        )  # fmt: skip
        before = cpu_seconds(self.pids())
        job = LoadJob("consume", 0, 1, self.node.endpoint, (theirs.topic_of(load),), read)
        answer = self._fleet([job])
        return theirs.figures_of(answer, cpu_seconds(self.pids()) - before, answer["cpu_s"])

    def _fleet(self, jobs: Sequence[LoadJob]) -> dict[str, Any]:
        """Runs processes of a load to their end: messages, seconds, and their CPU seconds."""
        messages, ended = 0, 0
        with Fleet() as fleet:
            pids = [member.process.pid for member in fleet.start(jobs)]
            before = cpu_seconds(pids)
            start = fleet.go(fleet.members)
            for row in fleet.rows(time.monotonic_ns() + LIMIT_S * SECOND_NS):
                ended = max(ended, row.end)
                messages += sum(stream["messages"] for stream in row.streams.values())
            # A process that has ended still has its times: the fleet waits for it last.
            cpu_s = cpu_seconds(pids) - before
        return {"messages": messages, "seconds": (ended - start) / SECOND_NS, "cpu_s": cpu_s}

    def _find(self, load: Load) -> Figures:
        """Random keys, one after the other; each body is read, as RocketMQ's client does."""
        self._finds += 1
        topic, draw = theirs.topic_of(load), random.Random(self._finds)
        before, own = cpu_seconds(self.pids()), time.process_time()
        times, missing, began = [], 0, time.monotonic()
        with keelog.connect(self.node.endpoint) as client:
            for _ in range(theirs.LOOKUPS):
                key = f"key-{draw.randrange(load.messages)}"
                start = time.perf_counter_ns()
                found = [len(message.body) for message in client.find(topic, key, limit=32)]
                times.append(time.perf_counter_ns() - start)
                missing += not found
        answer = {
            "messages": theirs.LOOKUPS,
            "seconds": time.monotonic() - began,
            "failed": missing,
        }
        times.sort()
        answer |= {f"p{percent}_us": percentile(times, percent) / 1e3 for percent in (50, 99)}
        client_s = time.process_time() - own
        return theirs.figures_of(answer, cpu_seconds(self.pids()) - before, client_s)


def workload(load: Load, endpoint: str, seconds: float) -> Workload:
    """The workload of `keelog.bench` for a load."""
    common: dict[str, Any] = {
        "node": endpoint, "body": str(load.body), "queues": theirs.QUEUES, "duration": seconds,
        "warm_up": WARM_UP_S,
    }  # fmt: skip
    if load.kind == "end_to_end":
        return Workload(kind="e2e", producers=2, rate=float(load.rate), **common)
    if load.batch > 1:
        return Workload(callers="batches", batch=load.batch, in_flight=load.in_flight, **common)
    if load.in_flight:
        return Workload(callers="inflight", in_flight=load.in_flight, **common)
    # A lone caller is quickest in a thread of its own, many are as tasks of one.
    callers: Callers = "threads" if load.callers == 1 else "tasks"
    return Workload(callers=callers, producers=load.callers, **common)


def figures_of_result(result: Result) -> Figures:
    """Rates and latencies without the warm-up; CPU of everything, over everything."""
    steady, whole = result.steady, result.summary
    clients = ("send", "consume", "follow")
    client = sum(one.cpu_s for one in result.processes if one.name.split()[0] in clients)
    server = sum(one.cpu_s for one in result.processes if one.name.split()[0] not in clients)
    figures = theirs.figures_of(
        {"messages": whole.messages, "seconds": whole.seconds}, server, client
    )
    figures["per_s"] = steady.messages_per_s
    figures["failed"] = sum(whole.failures.values())
    figures["dispatched_after_s"] = result.dispatched_after_s
    named = {"p50_us": steady.p50_ms, "p99_us": steady.p99_ms, "p999_us": steady.p999_ms}
    return figures | {name: value * 1e3 for name, value in named.items() if value is not None}


def fill_keyed(client: keelog.Client, topic: str, messages: int) -> None:
    body = b"k" * 128
    with client.producer(timeout=60) as producer:
        for first in range(0, messages, 10_000):
            some = range(first, min(first + 10_000, messages))
            producer.send_many(
                topic, [keelog.OutgoingMessage(body, keys=(f"key-{one}",)) for one in some]
            )


class OurStore(Side):
    """Puts in process; dispatch by the workers of a node that starts on a log."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "alone"

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def prepare(self, load: Load) -> None:
        """For dispatch: a log whose records have one key each."""
        if load.kind == "dispatch":
            theirs.keyed_log(self._root, load.messages)

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """New stores for puts; for dispatch the same log, all that is derived of it removed."""
        if load.kind == "dispatch":
            return self._dispatch(load)
        alone = Workload(
            kind="store", parts=("put", "batch"), batch=load.batch, body=str(load.body),
            queues=theirs.QUEUES, duration=seconds, warm_up=1.0, directory=str(self._root),
        )  # fmt: skip
        try:
            streams = run(alone).streams
        finally:
            self.close()
        single, batch = (stream.steady.messages_per_s for stream in streams.values())
        return {"single_per_s": single, "batch_per_s": batch}

    def _dispatch(self, load: Load) -> Figures:
        """A node's own workers at once, from the first one's begin until they have everything."""
        done = run_dispatch(self._root, SHARDS)
        cpu_s = sum(one.cpu_s for one in done.values())
        seconds = load.messages / rate_of_all(load.messages, done)
        return theirs.figures_of({"messages": load.messages, "seconds": seconds}, cpu_s, 0.0)


class OurRestarts(NodeSide):
    """A store with many queues, on which a node is killed and started again."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "restarts")
        self._prepared: list[EncodedRecords] = []

    def prepare(self, load: Load) -> None:
        """A log of the size asked for, its queues reached in turn; then a node on it."""
        self.close()
        self._folder.mkdir(parents=True)
        self._prepared = batches(RESTART_QUEUES, load.body)
        fill_with(self.store, int(load.gib * GIB), self._prepared)
        self.start_node().await_dispatched()

    def turn(self, load: Load, side: str, seconds: float) -> Figures:
        """A second of sends, kill -9, and the time from the command to the first accepted send."""
        with under_load(self.node, self._prepared):
            time.sleep(theirs.KILL_AFTER_S)
            self.node.kill()
        return {"seconds": restart(self.node).first_append_s}
