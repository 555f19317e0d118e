"""How soon a killed node takes appends again: over the log's size and the number of queues.

For each size a log is written, a node is started on it, loaded, and killed as a whole with
SIGKILL. Then it is started once more, and three things are timed from the start of the command:
the first acknowledged append, the node's own "ready", and when all workers have caught up.

    python -m scripts.bench.recovery --gib 1 4 10 --queues 10 10000

The folder (10 GiB for each number of queues) is deleted afterwards.
"""

import argparse
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import zmq

from keelog.bench.node_process import ANY_DISK, Node
from node.writer.appender import AppendRequest
from protocol.record.encode import EncodedRecords, NewMessage, encode_batch
from protocol.wire.frames import VERSION, pack, unpack_answer
from scripts.bench.big_store import fill
from scripts.command_line import print_rows
from scripts.rivals.proc import cpu_seconds

GIB = 1024**3
QUEUES_PER_TOPIC = 8
BODY_BYTES = 1024
BATCH_RECORDS = 500
BATCH_QUEUES_MAX = 100
LOAD_S = 3.0
HEAD = ("GiB", "queues", "first append, s", "CPU until then, s", "ready, s", "caught up, s", "log")


class Restart(NamedTuple):
    """One timed start; seconds since the command began."""

    first_append_s: float
    cpu_s: float
    """Of supervisor and writer until the first append: what is left on a machine that idles."""
    ready_s: float
    caught_up_s: float
    recovered: str


def batches(
    queues: int, body_bytes: int, queues_of_topic: int = QUEUES_PER_TOPIC
) -> list[EncodedRecords]:
    """Enough batches to reach every queue, `BATCH_RECORDS` records each.

    With 10,000 queues 64 MiB of log with 1 KiB bodies still reach all of them.
    """
    made, body = [], bytes(range(256)) * (body_bytes // 256 + 1)
    wide = min(queues, BATCH_QUEUES_MAX)
    for start in range(0, queues, wide):
        messages = []
        for number in range(BATCH_RECORDS):
            topic, queue_id = divmod((start + number % wide) % queues, queues_of_topic)
            messages.append(NewMessage(f"topic-{topic}", body[:body_bytes], queue_id))
        made.append(encode_batch(messages, crc=True))
    return made


def fill_with(root: Path, size: int, prepared: list[EncodedRecords]) -> None:
    """Appends batch after batch until the log is `size` bytes long."""
    requests = (AppendRequest(batch.records, len(batch.sizes)) for batch in cycle(prepared))
    fill(root, requests, end=size)


class Prober:
    """A socket that connects as soon as somebody listens."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5)
        self._socket.connect(endpoint)
        self._number = 0

    def ask(self, op: str, timeout_s: float, payload: bytes | None = None, **fields: Any) -> Any:
        """The answer's header; None when it does not come in time."""
        self._number += 1
        header = pack({"v": VERSION, "op": op, "id": self._number, **fields})
        self._socket.send_multipart([header] if payload is None else [header, payload])
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        return unpack_answer(self._socket.recv_multipart()[0])


@contextmanager
def asking_writer(control: str) -> Iterator[Prober]:
    """Asks for the writer until there is one; yields a socket to it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        supervisor, writer = Prober(context, control), None
        while writer is None:
            writer = supervisor.ask("routes", 60.0)["writer"]
            time.sleep(0.002)
        yield Prober(context, writer)
    finally:
        context.destroy(linger=0)


@contextmanager
def under_load(node: Node, prepared: list[EncodedRecords]) -> Iterator[None]:
    """Inside, batch after batch is sent, until the writer is gone."""
    stop = threading.Event()
    thread = threading.Thread(target=_send, args=(node.endpoint, prepared, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _send(control: str, prepared: list[EncodedRecords], stop: threading.Event) -> None:
    with asking_writer(control) as asker:
        while not stop.is_set():
            for batch in prepared:
                crc = zlib.crc32(batch.records)
                fields = {"count": len(batch.sizes), "bytes": len(batch.records), "crc": crc}
                if stop.is_set() or asker.ask("append", 1.0, batch.records, **fields) is None:
                    break


def restart(node: Node) -> Restart:
    """Starts a killed node again, and watches it come. Raises RuntimeError for a refusal."""
    begun = time.monotonic()
    node.begin()
    with asking_writer(node.endpoint) as asker:
        receipt = asker.ask("send", 60.0, topic="topic-0", queue=0, body=b"first")
    if not receipt["ok"]:
        raise RuntimeError(f"refused: {receipt}")
    first = time.monotonic() - begun
    pids = node.pids()
    cpu_s = cpu_seconds([pids["writer"], pids["supervisor"]])
    node.await_ready()
    ready = time.monotonic() - begun
    node.await_dispatched()
    done = time.monotonic() - begun
    said = [line.strip() for line in node.said().splitlines() if "log recovered" in line]
    return Restart(first, cpu_s, ready, done, " ".join(said))


def measure(root: Path, prepared: list[EncodedRecords]) -> Restart:
    """Loads a node, kills it, and times the next start."""
    with Node(root, ANY_DISK) as node:
        node.await_dispatched()
        with under_load(node, prepared):
            time.sleep(LOAD_S)
            node.kill()
        found = restart(node)
        node.stop()
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 4, 10])
    parser.add_argument("--queues", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--dir", type=Path, help="where to make the stores")
    options = parser.parse_args()

    def rows() -> Iterator[tuple[str, ...]]:
        for queues in options.queues:
            prepared = batches(queues, BODY_BYTES)
            with tempfile.TemporaryDirectory(dir=options.dir, prefix="recovery-") as folder:
                root = Path(folder) / "store"
                for gib in sorted(options.gib):
                    fill_with(root, int(gib * GIB), prepared)
                    *seconds, recovered = measure(root, prepared)
                    yield f"{gib:g}", f"{queues:,}", *(f"{one:.2f}" for one in seconds), recovered

    print_rows(HEAD, rows())


if __name__ == "__main__":
    main()
