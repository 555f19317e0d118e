"""Fills new stores to measure on, fast: the writer's own append path without its sockets."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from node.runtime.process import now_ms
from node.runtime.settings import Settings
from node.store.identity.places import create_store
from node.writer.appender import AppendRequest
from node.writer.store import WriterStore, open_writer_store
from protocol.ids import Host
from protocol.record.encode import NewMessage, encode_batch

BATCH_RECORDS = 4096
DIGITS = "0" * 12
"""The end of a text of `CountedRecords`."""
HOST = Host(b"\x7f\x00\x00\x01", 10911)
_FLUSH_EVERY_BYTES = 512 << 20


def fill(
    root: Path,
    requests: Iterable[AppendRequest],
    end: float = float("inf"),
    clock: Callable[[], int] = now_ms,
) -> float:
    """Appends to a store, a new one where there is none, and stops it in order.

    Goes on until the requests or the log's `end` are reached. `clock`: the store time of the
    request made last. Returns how many seconds the appends took.
    """
    create_store(root)
    store = open_writer_store(root, Settings(), HOST, alone=True)
    flushed, began = store.log.end, time.monotonic()
    for request in requests:
        if store.log.end >= end:
            break
        store.appender.append([request], clock())
        if request.error is not None:
            raise request.error
        store.snapshot_if_due()
        if store.log.end - flushed >= _FLUSH_EVERY_BYTES:
            flushed = _flush(store)
    seconds = time.monotonic() - began
    _flush(store)
    store.close_cleanly(workers_done=True)
    return seconds


def _flush(store: WriterStore) -> int:
    job = store.log.flush_job()
    job.run()
    store.after_flush(job.target)()
    store.flushed_to(job.target)
    return job.target


class CountedRecords:
    """A batch of records of one length, in which only digits change from use to use.

    `texts` are in each message, followed by `DIGITS`.
    """

    def __init__(self, messages: Sequence[NewMessage], texts: Sequence[str]) -> None:
        made = encode_batch(messages, crc=True)
        self.rows = np.frombuffer(bytearray(made.records), np.uint8).reshape(len(messages), -1)
        self._first = made.records[: made.sizes[0]]
        self._places = [self.place_after(text + DIGITS) - len(DIGITS) for text in texts]

    def place_after(self, text: str) -> int:
        """The end of the last such text of a record."""
        return self._first.rindex(text.encode()) + len(text)

    def request(self, numbers: NDArray[np.int64]) -> AppendRequest:
        """As many records as there are numbers, which become the digits."""
        for place in self._places:
            self.write(place, numbers, len(DIGITS))
        return AppendRequest(self.rows[: len(numbers)].tobytes(), len(numbers))

    def write(self, place: int, numbers: NDArray[np.int64], digits: int) -> None:
        """Writes a number into each record."""
        text = numbers[:, None] // 10 ** np.arange(digits - 1, -1, -1) % 10 + ord("0")
        self.rows[: len(numbers), place : place + digits] = text


def ranges(records: int) -> Iterable[NDArray[np.int64]]:
    """The numbers of all records, batch by batch."""
    for number in range(0, records, BATCH_RECORDS):
        yield np.arange(number, min(number + BATCH_RECORDS, records))
