"""How fast the log becomes queues and index: the node's own workers, side by side, on a full log.

A store is made (or taken), `consumequeue/` and `index/` are removed, and a node is started on it.
Timed is from the first worker's begin until the queues, and until queues and index, hold
everything. For each worker: CPU seconds per million records, memory and open files at the end.

    python -m scripts.bench.dispatch --records 5000000 --rounds 3
    python -m scripts.bench.dispatch --records 1000000 --topics 12500 --queues 8 --json
    python -m scripts.bench.dispatch STORE                    # the log of a store at rest

Messages go to all queues in turn; each has TAGS, UNIQ_KEY and `--keys` keys. `--numpy` leaves the
compiled kernel out. The folder that it makes is deleted afterwards.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil

from keelog.bench.node_process import ANY_DISK, Node
from node.runtime.state_page import RUNNING, LogPage, WorkerPage, queue_slot
from node.store.opening import open_store
from node.writer.appender import AppendRequest
from protocol.kernel.loader import SWITCH
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from protocol.record.encode import NewMessage
from scripts.bench.big_store import BATCH_RECORDS, DIGITS, HOST, CountedRecords, fill, ranges
from scripts.option_types import made_folder, old_folder, whole_number
from scripts.rivals.proc import cpu_seconds

POLL_S = 0.004
WAIT_S = 600
MIB = 1 << 20
_QUEUE_ID_AT = 12
_TOPIC, _KEY, _UNIQUE = "topic-", "order-", "C0A8000100002A9F"
_TOPIC_DIGITS = 6


@dataclass(slots=True)
class Worker:
    """One worker at the end: seconds until it had everything, CPU seconds of that per million."""

    seconds: float = 0.0
    cpu_s_per_million: float = 0.0
    uss_mib: float = 0.0
    open_files: int = 0


@dataclass(slots=True)
class DispatchRow:
    """One run; rates are records a second."""

    records: int
    queues: int
    keys: int
    fill_rate: float
    start_s: float
    """From the command's begin until the first worker began."""
    until_queues: float = 0.0
    until_all: float = 0.0
    cpu_us_per_record: float = 0.0
    workers: dict[str, Worker] = field(default_factory=dict)


def fill_log(root: Path, records: int, topics: int, queues: int, keys: int, body: int) -> float:
    """Fills a new store; topic, queue and keys of a record follow from its number.

    Returns the records a second.
    """
    names = [f"{_KEY}{letter}" for letter in "abcdefgh"[:keys]]
    message = NewMessage(
        _TOPIC + "0" * _TOPIC_DIGITS,
        bytes(range(256)) * (body // 256) + bytes(range(body % 256)),
        0,
        tags="tag",
        keys=tuple(name + DIGITS for name in names),
        unique_key=_UNIQUE + DIGITS,
        born_host=HOST,
    )
    batch = CountedRecords([message] * BATCH_RECORDS, (*names, _UNIQUE))
    topic_place = batch.place_after(_TOPIC)

    def requests() -> Iterator[AppendRequest]:
        for numbers in ranges(records):
            topic, queue = np.divmod(numbers % (topics * queues), queues)
            batch.write(topic_place, topic, _TOPIC_DIGITS)
            ids = queue.astype(">i4").view(np.uint8).reshape(-1, 4)
            batch.rows[: len(numbers), _QUEUE_ID_AT : _QUEUE_ID_AT + 4] = ids
            yield batch.request(numbers)

    return records / fill(root, requests())


def forget(root: Path) -> None:
    """Removes queues and index, and lets the disk come to rest."""
    for folder in (CONSUME_QUEUE_DIR, INDEX_DIR):
        shutil.rmtree(root / folder, ignore_errors=True)
    shutil.rmtree(root / "keelog" / "run", ignore_errors=True)
    os.sync()


class WorkerWatch:
    """The state pages of a starting node's workers, and their processes."""

    def __init__(self, root: Path, node: Node, shards: int) -> None:
        self._root, self._node = root, node
        self._slots = [*(queue_slot(shard, shards) for shard in range(shards)), "index"]
        self._pages: dict[str, WorkerPage] = {}
        self._log: LogPage | None = None
        self._cpu_before: dict[str, float] = {}

    def until_begun(self) -> None:
        """Returns when one of them dispatches. Raises SystemExit when none does."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self._open()
            if any(page.read().state == RUNNING for page in self._pages.values()):
                return
            time.sleep(POLL_S)
        raise SystemExit(f"no worker began:\n{self._node.said()}")

    def until_done(self, row: DispatchRow) -> None:
        """Fills in when each worker had everything, and what that took."""
        began, done = time.monotonic(), dict[str, float]()
        while len(done) < len(self._slots):
            self._open()
            now = time.monotonic() - began
            if now > WAIT_S:
                raise SystemExit(f"not done in {WAIT_S} s:\n{self._node.said()}")
            for slot in self._pages.keys() - done.keys():
                state = self._pages[slot].read()
                if self._log is not None and state.dispatched >= self._log.read().readable > 0:
                    done[slot] = now
                    cpu = cpu_seconds([state.pid]) - self._cpu_before.get(slot, 0.0)
                    row.workers[slot] = _look_at(state.pid, now, cpu / row.records * 1e6)
            time.sleep(POLL_S)
        queues = max(seconds for slot, seconds in done.items() if slot != "index")
        row.until_queues = row.records / queues
        row.until_all = row.records / max(done.values())
        row.cpu_us_per_record = sum(one.cpu_s_per_million for one in row.workers.values())

    def _open(self) -> None:
        for slot in self._slots:
            with suppress(FileNotFoundError):
                if slot not in self._pages:
                    self._pages[slot] = WorkerPage.open(self._root, slot)
                state = self._pages[slot].read()
                if not state.dispatched or slot not in self._cpu_before:
                    self._cpu_before[slot] = cpu_seconds([state.pid])
        if self._log is None:
            with suppress(FileNotFoundError):
                self._log = LogPage.open(self._root)


def _look_at(pid: int, seconds: float, cpu: float) -> Worker:
    process = psutil.Process(pid)
    uss = process.memory_full_info().uss / MIB
    return Worker(round(seconds, 3), round(cpu, 3), round(uss, 1), process.num_fds())


def run(root: Path, row: DispatchRow, queue_workers: int) -> None:
    """One timed start on a store without queues and index; the node is stopped at the end."""
    forget(root)
    node = Node(root, ANY_DISK, queue_workers=queue_workers, readers=1)
    begun = time.monotonic()
    node.begin()
    try:
        watch = WorkerWatch(root, node, queue_workers)
        watch.until_begun()
        row.start_s = time.monotonic() - begun
        watch.until_done(row)
    finally:
        node.kill()


def show(row: DispatchRow, as_json: bool) -> None:
    """A block of text, or one line of JSON."""
    if as_json:
        print(json.dumps(asdict(row)), flush=True)
        return
    print(
        f"{row.records:,} records, {row.queues:,} queues, {row.keys} keys: until queues "
        f"{row.until_queues:,.0f}/s, until queues and index {row.until_all:,.0f}/s, all workers "
        f"{row.cpu_us_per_record:.2f} us CPU a record (start {row.start_s:.2f} s"
        + (f", filled at {row.fill_rate:,.0f}/s)" if row.fill_rate else ")"),
        flush=True,
    )
    for slot, one in row.workers.items():
        print(
            f"    {slot:14} {one.seconds:7.2f} s   {one.cpu_s_per_million:6.3f} CPU s per million"
            f"   {one.uss_mib:6.1f} MiB   {one.open_files} open files",
            flush=True,
        )


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "store", nargs="?", type=old_folder, metavar="STORE", help="instead of a new one"
    )
    parser.add_argument("--records", type=whole_number, default=5_000_000)
    parser.add_argument("--topics", type=whole_number, default=16)
    parser.add_argument("--queues", type=whole_number, default=8, help="of each topic")
    parser.add_argument("--keys", type=int, default=1, choices=range(9), metavar="0-8")
    parser.add_argument("--body", type=whole_number, default=128, help="bytes of a message")
    parser.add_argument("--queue-workers", type=whole_number, nargs="+", default=[1])
    parser.add_argument("--rounds", type=whole_number, default=1)
    parser.add_argument("--numpy", action="store_true", help="without the compiled kernel")
    parser.add_argument("--dir", type=made_folder, help="where to make the store")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="dispatch-") as folder:
        root, rate = options.store, 0.0
        records, queues = options.records, options.topics * options.queues
        if root is None:
            root = Path(folder) / "store"
            rate = fill_log(
                root, records, options.topics, options.queues, options.keys, options.body
            )
        else:
            with open_store(root) as store:
                records = sum(len(columns) for columns in store.log.columns(store.log.min_offset))
        if options.numpy:
            os.environ[SWITCH] = "off"
        for _ in range(options.rounds):
            for workers in options.queue_workers:
                row = DispatchRow(records, queues, options.keys, round(rate), 0.0)
                run(root.resolve(), row, workers)
                show(row, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
