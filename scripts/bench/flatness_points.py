"""One point of scripts/bench/flatness.py: what a node does and holds at this moment.

Each point is measured by the same three loads of `keelog.bench`, so that points can be compared:
batches at full speed, one caller that waits, and 1,000 messages a second to a consumer.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

import keelog
from keelog.bench.node_process import ANY_DISK, Node
from keelog.bench.running import run
from keelog.bench.workload import Workload
from keelog.client.results import LogStatus
from protocol.wire.frames import VERSION, pack
from scripts.rivals.proc import cpu_seconds, open_handles, private_mib
from scripts.rivals.results import Figures

QUEUES = 8
HOLD_MS = 30_000
SOCKETS_EACH = 500
"""Sockets of one ZeroMQ context, which takes 1,023 by default."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement: `part` is what grows, `size` how far it has grown, in `unit`."""

    part: str
    size: float
    unit: str
    figures: Figures


class TookTooLong(Exception):
    """A point did not end in time."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TookTooLong, wherever the main thread is, when what is inside takes longer."""

    def is_over(*_: object) -> None:
        raise TookTooLong(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, is_over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def running(root: Path) -> Iterator[Node]:
    """A node on `root`, killed at the end."""
    node = Node(root, ANY_DISK, readers=1).start()
    try:
        yield node
    finally:
        node.kill()


def processes_of(node: Node) -> dict[str, int]:
    """Process ids by name: `supervisor`, `writer`, `queue`, `queue 2`, …"""
    found: dict[str, int] = {}
    for role, process in node.children():
        found.setdefault("supervisor", process.ppid())
        same = sum(name.split()[0] == role for name in found)
        found[role if not same else f"{role} {same + 1}"] = process.pid
    return found


def holdings(node: Node) -> Figures:
    """Memory without the store's pages, in MiB, and file handles, of each process."""
    pids = processes_of(node)
    memory = {name: round(private_mib([pid], node.root), 1) for name, pid in pids.items()}
    handles = {name: open_handles(pid) for name, pid in pids.items()}
    return {
        "pss_mib": round(sum(memory.values()), 1),
        "handles": sum(handles.values()),
        "pss_mib_of": memory,
        "handles_of": handles,
    }


def measure(node: Node, seconds: float) -> Figures:
    """Throughput, latencies, CPU and holdings of a node as it is.

    What was written before is on the disk when a load begins: a journal that still has a GiB to
    write holds up every new file, and would be what is measured.
    """
    common: dict[str, Any] = {"node": node.endpoint, "duration": seconds, "warm_up": 1.0}
    os.sync()
    batches = run(Workload(callers="batches", batch=100, in_flight=16, **common))
    os.sync()
    one = run(Workload(callers="threads", producers=1, **common)).steady
    followed = run(Workload(kind="e2e", producers=2, rate=1000.0, **common)).steady
    figures: Figures = {
        "batches_per_s": round(batches.steady.messages_per_s),
        "cpu_s_per_million": batches.cpu_s_per_million,
        "dispatched_after_s": batches.dispatched_after_s,
        "send_p50_ms": one.p50_ms,
        "send_p99_ms": one.p99_ms,
        "end_to_end_p50_ms": followed.p50_ms,
        "end_to_end_p99_ms": followed.p99_ms,
    }
    return figures | holdings(node)


def store(node: Node, messages: int, body_bytes: int, tell: Callable[[str], None]) -> None:
    """Stores messages as fast as it goes, and waits until they are dispatched."""
    tell(f"storing {messages:,} messages of {body_bytes} bytes")
    run(
        Workload(
            node=node.endpoint, callers="batches", batch=500, in_flight=8, body=str(body_bytes),
            count=messages, warm_up=0.0,
        )
    )  # fmt: skip


def log_of(node: Node) -> LogStatus:
    """Reads the state of the log."""
    with keelog.connect(node.endpoint, timeout=60) as client:
        return client.status().log


class IdleConsumers:
    """Connections that each hold a long poll at a queue where nothing comes."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
        self._askers: list[tuple[zmq.Socket[bytes], int]] = []
        with keelog.connect(endpoint, timeout=60) as client:
            client.create_topic("idle", QUEUES, exist_ok=True)
            self._reader = client.routes().readers[0]

    def grow_to(self, count: int) -> None:
        """Connects until there are `count`, and sends each one's poll."""
        while len(self._askers) < count:
            if len(self._askers) % SOCKETS_EACH == 0:
                self._contexts.append(zmq.Context())
            socket = self._contexts[-1].socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._reader)
            self._askers.append((socket, len(self._askers)))
            self._poll(socket, len(self._askers) - 1)

    def keep(self) -> None:
        """Polls anew where a poll's time is up, as a consumer does."""
        for socket, number in self._askers:
            if socket.poll(0):
                socket.recv_multipart()
                self._poll(socket, number)

    def _poll(self, socket: "zmq.Socket[bytes]", number: int) -> None:
        fields = {"topic": "idle", "queue": number % QUEUES, "offset": 0, "wait_ms": HOLD_MS}
        socket.send(pack({"v": VERSION, "op": "pull", "id": number, **fields}))

    def close(self) -> None:
        """Disconnects all."""
        for socket, _ in self._askers:
            socket.close()
        for context in self._contexts:
            context.term()


def idle_cores(node: Node, sleep: Callable[[float], None], seconds: float) -> float:
    """Cores that a node takes while nothing is sent."""
    pids = list(processes_of(node).values())
    before = cpu_seconds(pids)
    sleep(seconds)
    return round((cpu_seconds(pids) - before) / seconds, 3)
