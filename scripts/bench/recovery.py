"""How soon a killed node takes appends again: over the log's size and the number of queues.

For each size a log is written, a node is started on it, loaded, and killed as a whole with
SIGKILL. Then it is started once more, and three things are timed from the start of the command:
the first acknowledged append, the node's own "ready", and when all workers have caught up.

    python scripts/bench/recovery.py --gib 1 4 10 --queues 10 10000

`--foreign` removes what Keelog knows of the store before each timed start, as if a broker had been
killed there. The folder (10 GiB for each number of queues) is deleted afterwards.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import zmq

from keelog.bench.node_process import ANY_DISK, Node
from node.runtime.settings import Settings
from node.runtime.state_page import queue_slot
from node.store.checkpoints import (
    EpochLine,
    Tails,
    WorkerCheckpoint,
    own_dir,
    save_epochs,
    save_progress,
    save_tails,
)
from node.writer.appender import AppendRequest
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name
from protocol.record.encode import EncodedRecords, NewMessage, encode_batch
from protocol.wire.frames import VERSION, pack, unpack_answer
from scripts.bench.big_store import fill
from scripts.rivals.proc import cpu_seconds

GIB = 1024**3
QUEUES_PER_TOPIC = 8
BATCH_RECORDS = 500
BATCH_QUEUES_MAX = 100
LOAD_S = 3.0


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """One timed start; seconds since the command began."""

    gib: float
    queues: int
    first_append_s: float
    ready_s: float
    caught_up_s: float
    cpu_s: float
    """Of supervisor and writer until the first append: what is left on a machine that idles."""
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


def hollow(root: Path, size: int) -> None:
    """A store whose log is `size` bytes of holes: old segments that no start ever reads."""
    segment_bytes = Settings().mapped_file_size_commit_log
    for folder in (
        root / COMMIT_LOG_DIR,
        root / CONSUME_QUEUE_DIR,
        root / INDEX_DIR,
        own_dir(root),
    ):
        folder.mkdir(parents=True)
    for base in range(0, size, segment_bytes):
        with (root / COMMIT_LOG_DIR / offset_file_name(base)).open("wb") as file:
            file.truncate(segment_bytes)
    save_epochs(root, [EpochLine(1, size, crc=True)])
    save_tails(root, Tails(size, {}, last_record=size))
    for slot in ("index", queue_slot(0, 2), queue_slot(1, 2)):
        save_progress(root, slot, WorkerCheckpoint(1, size))


class Asker:
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

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()


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
    with zmq.Context() as context:
        supervisor = Asker(context, control)
        asker = Asker(context, supervisor.ask("routes", 60.0)["writer"])
        supervisor.close()
        while not stop.is_set():
            for batch in prepared:
                crc = zlib.crc32(batch.records)
                fields = {"count": len(batch.sizes), "bytes": len(batch.records), "crc": crc}
                if stop.is_set() or asker.ask("append", 1.0, batch.records, **fields) is None:
                    break
        asker.close()


def first_append(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> None:
    """Asks for the writer until there is one, and sends it one message."""
    control = Asker(context, endpoint)
    writer = None
    while writer is None:
        answer = control.ask("routes", 60.0)
        writer = answer["writer"]
        time.sleep(0.002)
    asker = Asker(context, writer)
    receipt = asker.ask("send", 60.0, topic="topic-0", queue=0, body=b"first")
    if not receipt["ok"]:
        raise RuntimeError(f"refused: {receipt}")
    asker.close()
    control.close()


def timed_start(
    root: Path, gib: float, queues: int, prepared: list[EncodedRecords], foreign: bool
) -> RecoveryRow:
    """Loads a node, kills it, and times the next start."""
    node = Node(root, ANY_DISK).start()
    node.await_dispatched()
    with under_load(node, prepared):
        time.sleep(LOAD_S)
        node.kill()
    if foreign:
        shutil.rmtree(root / "keelog")
        (root / "abort").write_text("4711")
    return measure(node, gib, queues)


def measure(node: Node, gib: float, queues: int) -> RecoveryRow:
    """Starts the node again and watches it come."""
    begun = time.monotonic()
    node.begin()
    with zmq.Context() as context:
        first_append(context, node.endpoint)
    first = time.monotonic() - begun
    (writer,) = (child for role, child in node.children() if role == "writer")
    cpu_s = cpu_seconds([writer.pid, writer.ppid()])
    node.await_ready()
    ready = time.monotonic() - begun
    node.await_dispatched()
    done = time.monotonic() - begun
    said = [line.strip() for line in node.said().splitlines() if "log recovered" in line]
    node.stop()
    times = (round(first, 2), round(ready, 2), round(done, 2))
    return RecoveryRow(gib, queues, *times, round(cpu_s, 2), " ".join(said))


def main(arguments: list[str] | None = None) -> int:
    """Prints a table; returns 0, or 1 when a first append took longer than asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 4, 10])
    parser.add_argument("--queues", type=int, nargs="+", default=[10, 10_000])
    parser.add_argument("--body", type=int, default=1024, help="bytes of a message")
    parser.add_argument("--foreign", action="store_true", help="as after a broker's kill")
    parser.add_argument(
        "--hollow", action="store_true", help="only the last GiB is real; quicker, and as good"
    )
    parser.add_argument("--dir", type=Path, help="where to make the stores")
    parser.add_argument("--limit", type=float, default=2.0, help="seconds to the first append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[RecoveryRow] = []
    for queues in options.queues:
        prepared = batches(queues, options.body)
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="recovery-") as folder:
            for gib in sorted(options.gib):
                root = Path(folder) / f"store-{gib}" if options.hollow else Path(folder) / "store"
                if options.hollow:
                    hollow(root, int(gib - 0.5) * GIB)
                fill_with(root, int(gib * GIB), prepared)
                rows.append(timed_start(root, gib, queues, prepared, options.foreign))
                show(rows[-1], options.json)
    return int(any(row.first_append_s > options.limit for row in rows))


def show(row: RecoveryRow, as_json: bool) -> None:
    """One line of the table."""
    if as_json:
        print(json.dumps(asdict(row)), flush=True)
        return
    print(
        f"{row.gib:6.1f} GiB {row.queues:7d} queues   first append {row.first_append_s:6.2f} s   "
        f"(cpu {row.cpu_s:5.2f} s)   ready {row.ready_s:6.2f} s   caught up "
        f"{row.caught_up_s:6.2f} s   {row.recovered}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
