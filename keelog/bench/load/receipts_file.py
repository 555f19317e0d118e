"""The receipts of producers, a row a message in a file, so that all can be checked."""

import itertools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keelog.bench.queue_checks import Ints
from keelog.client.results import Receipt

COLUMNS = ("number", "queue_id", "queue_offset", "physical_offset")
_ROW = struct.Struct("=4q").pack
_BUFFER_BYTES = 1 << 20


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
                file.write(_ROW(number, found.queue_id, found.queue_offset, found.physical_offset))

        def send_and_note(*arguments: Any, **options: Any) -> "Future[Receipt]":
            number = next(numbers)
            future = send(*arguments, **options)
            future.add_done_callback(partial(note, number))
            return future

        yield send_and_note


def read_notes(path: Path) -> Ints:
    """The rows, a column for each of COLUMNS."""
    return np.fromfile(path, np.int64).reshape(-1, len(COLUMNS))
