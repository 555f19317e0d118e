"""What sends to a node under load, and what reads along: functions for processes of their own."""

import json
import struct
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

from client.client import Client, connect
from client.results import Receipt
from keelog.bench.queue_checks import Ints
from protocol.errors import MqError, OutcomeUnknownError
from protocol.record.codec import SHORT_HEAD
from scripts.helper_process import obey_the_parent_alone

BATCHED, SINGLE = "load-batched", "load-single"
"""Each way of sending has its own topic: the order of the one says nothing about the other's."""
TOPICS = (BATCHED, SINGLE)
QUEUES = 8
BURST = 200
"""Messages between two looks at the stop flag; one more is sent as a single request."""
BODY = struct.Struct(">qq")
"""A body starts with the producer and the number of its message."""
BODY_BYTES = 100
FILL = bytes(BODY_BYTES - BODY.size)
_ROW = struct.Struct("=6q").pack
_QUEUE_PLACE = struct.Struct(">iiq").unpack_from
"""QUEUEID, FLAG, QUEUEOFFSET."""


def key_of(producer: int, number: int) -> str:
    """The key of a message."""
    return f"p{producer}-{number}"


class Receipts:
    """What one producer was told, a row a message: topic, number, queue, offsets, moment in ns."""

    columns = ("topic", "number", "queue_id", "queue_offset", "physical_offset", "at_ns")

    def __init__(self) -> None:
        self._rows = array("q")
        self.errors: Counter[str] = Counter()
        self.unknown = 0

    def note(self, topic: int, number: int, outcome: "Future[Receipt]") -> None:
        """Takes the outcome of one message."""
        error = outcome.exception()
        if error is None:
            self.add(topic, number, outcome.result())
        else:
            self.fail(error)

    def add(self, topic: int, number: int, receipt: Receipt) -> None:
        """A message was stored."""
        row = (topic, number, receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
        # One call: two threads add rows, and an extend could be interrupted between two items.
        self._rows.frombytes(_ROW(*row, time.monotonic_ns()))

    def fail(self, error: BaseException) -> None:
        """A message was refused, or nobody knows."""
        self.errors[type(error).__name__] += 1
        self.unknown += isinstance(error, OutcomeUnknownError)

    def save(self, path: Path) -> None:
        """For the parent process."""
        np.savez(path, rows=self.rows, errors=json.dumps(self.errors), unknown=self.unknown)

    @property
    def rows(self) -> Ints:
        """As an array with a column for each of `columns`."""
        return np.frombuffer(self._rows, np.int64).reshape(-1, len(self.columns))


def produce(endpoint: str, producer: int, result: Path, stop: Event) -> None:
    """Sends at full speed until `stop` is set, then saves what it was told."""
    obey_the_parent_alone()
    receipts = Receipts()
    with (
        connect(endpoint, timeout=30.0) as client,
        client.producer(timeout=30.0, max_in_flight=4096) as sender,
    ):
        for number in _numbers(stop):
            body = BODY.pack(producer, number) + FILL
            key = key_of(producer, number)
            if number % (BURST + 1) == BURST:
                _send_single(client, body, key, partial(receipts.add, 1, number), receipts)
            else:
                outcome = sender.send_nowait(BATCHED, body, keys=[key], tags="load")
                outcome.add_done_callback(partial(receipts.note, 0, number))
    receipts.save(result)


def _numbers(stop: Event) -> Iterator[int]:
    number = 0
    while not stop.is_set():
        yield from range(number, number + BURST + 1)
        number += BURST + 1


def _send_single(
    client: Client, body: bytes, key: str, add: Callable[[Receipt], None], receipts: Receipts
) -> None:
    try:
        add(client.send(SINGLE, body, keys=[key], tags="load"))
    except MqError as error:
        receipts.fail(error)


def send_last(client: Client, producer: int) -> Ints:
    """Sends one message to each queue behind all others, as one more producer; its receipts."""
    receipts = Receipts()
    for queue_id in range(QUEUES):
        key, body = key_of(producer, queue_id), BODY.pack(producer, queue_id) + FILL
        receipts.add(0, queue_id, client.send(BATCHED, body, queue_id=queue_id, keys=[key]))
    return np.insert(receipts.rows, 0, producer, axis=1)


def follow(endpoint: str, last_producer: int, result: Path) -> None:
    """Reads along until it has seen the last message of each queue; saves what went wrong."""
    obey_the_parent_alone()
    ends = [0] * QUEUES
    faults: list[str] = []
    unfinished = set(range(QUEUES))
    with connect(endpoint, timeout=30.0) as client:
        for message in client.tail(BATCHED, "earliest", max_messages=1000, max_bytes=1 << 20):
            queue_id, queue_offset, producer = _place(message.raw)
            if queue_offset != ends[queue_id]:
                faults.append(f"queue {queue_id}: {queue_offset} came, not {ends[queue_id]}")
            ends[queue_id] = queue_offset + 1
            if producer == last_producer:
                unfinished.discard(queue_id)
                if not unfinished:
                    break
    result.write_text(json.dumps({"followed": sum(ends), "faults": faults[:10]}))


def _place(raw: bytes) -> tuple[int, int, int]:
    """Queue, queue offset and producer of a record, without decoding all of it."""
    queue_id, _, queue_offset = _QUEUE_PLACE(raw, SHORT_HEAD.offsets["queue_id"])
    return queue_id, queue_offset, BODY.unpack_from(raw, SHORT_HEAD.size)[0]


def find_some(endpoint: str, producer: int, numbers: list[tuple[int, int, int]]) -> list[str]:
    """Looks messages up by key: (topic, number, log offset) each. Answers what is wrong."""
    wrong = []
    with connect(endpoint, timeout=30.0) as client:
        for topic, number, offset in numbers:
            key = key_of(producer, number)
            found = [message.physical_offset for message in client.find(TOPICS[topic], key)]
            if found != [offset]:
                wrong.append(f"{key} stands at {offset}, found at {found}")
    return wrong
