"""Compares what a node has after a load with the receipts of its producers.

The receipts of producers are in a file, a row a message, so that all can be checked.
"""

import itertools
import struct
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keelog.client.client import Client
from keelog.client.results import Receipt
from node.supervisor.child_process import command, environment
from protocol.record.columns import scan

Ints = NDArray[np.int64]
_WHO_BYTES = 16
COLUMNS = ("number", "queue_id", "queue_offset", "physical_offset")
_RECEIPT = struct.Struct("=4q").pack
_BUFFER_BYTES = 1 << 20


def pull_queue(client: Client, topic: str, queue_id: int, who_at: int = 0) -> dict[str, Ints]:
    """A whole queue, every record verified: queue offset, log offset, producer and number.

    Bodies say who sent them: two i8, big-endian, at byte `who_at`.
    """
    (ends,) = client.offsets(topic, queue_id)
    parts: list[tuple[Ints, Ints, Ints]] = []
    position = ends.min_offset
    while position < ends.max_offset:
        answer = client.pull(topic, queue_id, position, max_messages=4000, max_bytes=1 << 20)
        if answer.status != "FOUND":
            break
        found = scan(b"".join(message.raw for message in answer.messages), None)
        columns = found.columns
        bodies = columns.data[columns.body_start[:, None] + who_at + np.arange(_WHO_BYTES)]
        parts.append(
            (columns.queue_offset, columns.physical_offset, bodies.view(">i8").astype(np.int64))
        )
        position = answer.next_begin_offset
    if not parts:
        empty = np.zeros(0, np.int64)
        return {"queue_offset": empty, "physical_offset": empty, "producer": empty, "number": empty}
    offsets, places, who = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {
        "queue_offset": offsets,
        "physical_offset": places,
        "producer": who[:, 0],
        "number": who[:, 1],
    }


def check_queue(name: str, pulled: dict[str, Ints], receipts: Ints) -> list[str]:
    """Returns what is wrong with one queue.

    `receipts`: a row a message, with producer, topic, number, queue, queue offset and log offset.
    """
    faults = []
    count = len(pulled["queue_offset"])
    if not np.array_equal(pulled["queue_offset"], np.arange(count)):
        faults.append(f"{name}: queue offsets are not 0 to {count - 1}, each once")
        return faults
    if not (np.diff(pulled["physical_offset"]) > 0).all():
        faults.append(f"{name}: log order and queue order differ")
    for producer in np.unique(pulled["producer"]):
        numbers = pulled["number"][pulled["producer"] == producer]
        if not (np.diff(numbers) > 0).all():
            faults.append(f"{name}: messages of producer {producer} are out of order, or twice")
    rows = receipts[:, 4]
    lost = int((rows >= count).sum())
    if lost:
        faults.append(f"{name}: {lost} acknowledged messages are not there")
        receipts, rows = receipts[rows < count], rows[rows < count]
    same = (
        (pulled["producer"][rows] == receipts[:, 0])
        & (pulled["number"][rows] == receipts[:, 2])
        & (pulled["physical_offset"][rows] == receipts[:, 5])
    )
    if not same.all():
        faults.append(f"{name}: {int((~same).sum())} acknowledged messages are not where they were")
    return faults


def verify_deep(root: Path, settings: Sequence[str] = ()) -> tuple[int, str]:
    """`keelog store verify --deep` of a stopped store: its exit code, and how its output begins.

    `settings`: `name=value`, where the store was not written with the usual delay levels.
    """
    options = [word for pair in settings for word in ("-X", pair)]
    words = command("keelog", ["store", "verify", str(root), "--deep", "--json", *options])
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    return done.returncode, (done.stdout + done.stderr)[:2000]


def notes_path(folder: str, producer: int) -> Path:
    """The file of a producer's rows."""
    return Path(folder) / f"producer-{producer}.rows"


@contextmanager
def noting(
    path: Path, send: Callable[..., "Future[Receipt]"]
) -> Iterator[Callable[..., "Future[Receipt]"]]:
    """Yields `send` with a row for each message that is stored; numbers count the calls.

    Rows come on the client's I/O thread alone. Every message needs its reply inside.
    """
    numbers = itertools.count()
    with path.open("wb", buffering=_BUFFER_BYTES) as file:

        def note(number: int, future: "Future[Receipt]") -> None:
            if future.exception() is None:
                found = future.result()
                file.write(
                    _RECEIPT(number, found.queue_id, found.queue_offset, found.physical_offset)
                )

        def send_and_note(*arguments: Any, **options: Any) -> "Future[Receipt]":
            number = next(numbers)
            future = send(*arguments, **options)
            future.add_done_callback(partial(note, number))
            return future

        yield send_and_note


def read_notes(path: Path) -> Ints:
    """The rows, a column for each of COLUMNS."""
    return np.fromfile(path, np.int64).reshape(-1, len(COLUMNS))
