"""How fast the log becomes queues and index: the node's own workers, side by side, on a full log.

A store is made (or taken), `consumequeue/` and `index/` are removed, and a node is started on it.
Timed is from the first worker's begin until the queues, and until queues and index, hold
everything. For each worker: CPU seconds per million records, memory and open files at the end.

    python -m scripts.bench.dispatch --records 5000000 --rounds 3
    python -m scripts.bench.dispatch --records 1000000 --topics 12500 --queues 8
    python -m scripts.bench.dispatch STORE                    # the log of a store at rest

Messages go to all queues in turn; each has TAGS, UNIQ_KEY and `--keys` keys. The folder that it
makes is deleted afterwards.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from keelog.bench.node_process import ANY_DISK, Node
from node.runtime.state_page import RUNNING, LogPage, WorkerPage, queue_slot
from node.store.opening import open_store
from node.writer.appender import AppendRequest
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from protocol.record.encode import NewMessage
from scripts.bench.big_store import BATCH_RECORDS, DIGITS, HOST, CountedRecords, fill, ranges
from scripts.command_line import made_folder, number, old_folder, print_rows, whole_number
from scripts.rivals.proc import MIB, cpu_seconds, open_handles

POLL_S = 0.004
WAIT_S = 600
_QUEUE_ID_AT = 12
_TOPIC, _KEY, _UNIQUE = "topic-", "order-", "C0A8000100002A9F"
_TOPIC_DIGITS = 6
HEAD = ("workers", "until they have all, s", "records/s", "CPU s per million", "MiB", "open files")


class Dispatched(NamedTuple):
    """One worker that has everything: seconds since the first one began, CPU seconds of that."""

    seconds: float
    cpu_s: float
    uss_mib: float
    open_files: int


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


def run(root: Path, queue_workers: int) -> dict[str, Dispatched]:
    """One timed start on a store whose queues and index are removed before: each worker's slot.

    The node is killed at the end. Raises SystemExit when the workers do not get it done.
    """
    for folder in (CONSUME_QUEUE_DIR, INDEX_DIR, "keelog/run"):
        shutil.rmtree(root / folder, ignore_errors=True)
    os.sync()
    slots = [*(queue_slot(shard, queue_workers) for shard in range(queue_workers)), "index"]
    cpu_before: dict[str, float] = {}
    done: dict[str, Dispatched] = {}
    node = Node(root, ANY_DISK, queue_workers=queue_workers, readers=1)
    node.begin()
    try:
        began, deadline = 0.0, time.monotonic() + WAIT_S
        while len(done) < len(slots):
            time.sleep(POLL_S)
            if time.monotonic() > deadline:
                raise SystemExit(f"not done in {WAIT_S} s:\n{node.said()}")
            for slot in [one for one in slots if one not in done]:
                with suppress(FileNotFoundError), WorkerPage.open(root, slot) as page:
                    state = page.read()
                    if not state.dispatched or slot not in cpu_before:
                        cpu_before[slot] = cpu_seconds([state.pid])
                    if state.state == RUNNING:
                        began = began or time.monotonic()
                    if began and state.dispatched >= _readable(root):
                        done[slot] = _look_at(state.pid, began, cpu_before[slot])
    finally:
        node.kill()
    return done


def _readable(root: Path) -> float:
    """The end of the log for its workers; infinite while there is none."""
    with suppress(FileNotFoundError), LogPage.open(root) as page:
        return page.read().readable or float("inf")
    return float("inf")


def _look_at(pid: int, began: float, cpu_before: float) -> Dispatched:
    seconds, cpu_s = time.monotonic() - began, cpu_seconds([pid]) - cpu_before
    uss = psutil.Process(pid).memory_full_info().uss / MIB
    return Dispatched(round(seconds, 3), round(cpu_s, 3), round(uss, 1), open_handles(pid))


def rate_of_all(records: int, done: dict[str, Dispatched]) -> float:
    """Records a second until queues and index have them."""
    return records / max(one.seconds for one in done.values())


def rows_of(records: int, done: dict[str, Dispatched]) -> Iterator[tuple[str, ...]]:
    """A row for each worker, and one for all."""

    def row(name: str, seconds: float, cpu_s: float, *more: str) -> tuple[str, ...]:
        rate, per_million = number(records / seconds, "/s"), f"{cpu_s / records * 1e6:.3f}"
        return name, f"{seconds:.2f}", rate, per_million, *more

    for slot, one in done.items():
        yield row(slot, one.seconds, one.cpu_s, f"{one.uss_mib:.1f}", str(one.open_files))
    cpu_s = sum(one.cpu_s for one in done.values())
    yield row("all", records / rate_of_all(records, done), cpu_s, "", "")


def main(arguments: list[str] | None = None) -> int:
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
    parser.add_argument("--dir", type=made_folder, help="where to make the store")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="dispatch-") as folder:
        root, records = options.store, options.records
        if root is None:
            root = Path(folder) / "store"
            fill_log(root, records, options.topics, options.queues, options.keys, options.body)
        else:
            with open_store(root) as store:
                records = sum(len(columns) for columns in store.log.columns(store.log.min_offset))
        times = options.queue_workers * options.rounds
        found = (rows_of(records, run(root.resolve(), workers)) for workers in times)
        print_rows(HEAD, chain.from_iterable(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
