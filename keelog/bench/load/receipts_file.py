"""The receipts of producers, a row a message in a file, so that all can be checked."""

import struct
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from client.results import Receipt
from keelog.bench.queue_checks import Ints

COLUMNS = ("number", "queue_id", "queue_offset", "physical_offset")
_ROW = struct.Struct("=4q").pack
_BUFFER_BYTES = 1 << 20


def notes_path(folder: str, producer: int) -> Path:
    """Where a producer's rows are."""
    return Path(folder) / f"producer-{producer}.rows"


class Notes:
    """The rows of one producer, as a context. Rows come on the client's I/O thread alone."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=_BUFFER_BYTES)

    def noting(self, send: Callable[..., "Future[Receipt]"]) -> Callable[..., "Future[Receipt]"]:
        """`send`, and a row for each message that is stored; numbers count the calls."""
        number = -1

        def send_and_note(*arguments: Any, **options: Any) -> "Future[Receipt]":
            nonlocal number
            number += 1
            future = send(*arguments, **options)
            future.add_done_callback(partial(self._note, number))
            return future

        return send_and_note

    def _note(self, number: int, future: "Future[Receipt]") -> None:
        if future.exception() is None:
            found = future.result()
            self._file.write(
                _ROW(number, found.queue_id, found.queue_offset, found.physical_offset)
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_notes(path: Path) -> Ints:
    """The rows, a column for each of COLUMNS."""
    return np.fromfile(path, np.int64).reshape(-1, len(COLUMNS))
