"""What sends while anything is killed, and what reads along: a run's traffic and its processes.

Each sender writes every outcome down at once, as a row in a file, so that a checker may look at
any moment. A body starts with its producer and number, and the whole message follows from those
two: the checker needs no copy of what was sent.
"""

import multiprocessing
import os
import random
import signal
import struct
import threading
import time
from array import array
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from itertools import product
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from keelog.bench.node_process import CATCH_UP_S, await_workers
from keelog.bench.queue_checks import Ints
from keelog.client.client import Client, connect
from keelog.client.messages import Message, OutgoingMessage
from keelog.client.options import Acks
from keelog.client.results import Receipt
from keelog.client.transport.exchange import Retry
from protocol.errors import MqError, OutcomeUnknownError

ACKNOWLEDGED, REFUSED, UNKNOWN = 0, 1, 2
ROW = ("number", "outcome", "topic", "queue_id", "queue_offset", "physical_offset", "flushed", "ns")
"""What a sender writes down for each attempt; `ns` by the monotonic clock, when it knew."""
SEEN = ("topic", "queue_id", "queue_offset", "physical_offset", "producer", "number")
"""What a reader writes down for each message."""
_HEAD = struct.Struct(">qq")
_NOISE = random.Random(20240501).randbytes(1 << 20)
_MIX = 0x9E3779B97F4A7C15
_PAUSE_S = 0.02
"""After a failure, and before a reader that found nothing looks again."""
_READ_PAUSE_S = 0.0015
_READ_AHEAD_BYTES = 1 << 20


class Sent(NamedTuple):
    """One message as it must be in the log."""

    topic: int
    body: bytes
    properties: bytes
    """What its properties must contain."""


class Traffic(NamedTuple):
    """What the producers of a run send, where to, and how fast."""

    topics: tuple[str, ...] = ("kill-orders", "kill-events", "kill-audit")
    queues: int = 4
    """Of each topic."""
    body_bytes_max: int = 180_000
    in_flight: int = 64
    burst: int = 1
    """Messages of a pipelining producer between two pauses."""
    pause_s: float = 0.0015
    """Others want the processors too."""
    single_pause_s: float = 0.0
    """After each message of a repeating producer."""
    timeout_s: float = 10.0
    """Until nobody can say any more what became of a message."""

    def message(self, producer: int, number: int) -> Sent:
        """The message that follows from producer and number."""
        dice = _dice(producer, number)
        start, size = dice % 65_536, min(_body_bytes(dice), self.body_bytes_max)
        body = _HEAD.pack(producer, number) + _NOISE[start : start + size - _HEAD.size]
        keys = " ".join(keys_of(producer, number))
        tags = f"TAGS\x01t{number % 5}\x02" if number % 4 else ""
        return Sent(dice % len(self.topics), body, f"{tags}KEYS\x01{keys}\x02".encode())


TRAFFIC = Traffic()
"""Mostly small messages, as fast as they come without starving the rest of the machine."""


def _dice(producer: int, number: int) -> int:
    """64 bits that follow from who sent what."""
    mixed = ((producer + 1) * 1_000_003 + number) * _MIX & 0xFFFF_FFFF_FFFF_FFFF
    return (mixed ^ (mixed >> 29)) * _MIX >> 7 & 0xFFFF_FFFF_FFFF


def _body_bytes(dice: int) -> int:
    """Mostly small; some fill pages, few fill a good part of a segment."""
    kind, roll = dice % 100, dice // 100
    if kind < 65:
        return 16 + roll % 500
    if kind < 95:
        return 500 + roll % 4_000
    if kind < 99:
        return 4_000 + roll % 30_000
    return 60_000 + roll % 120_000


def keys_of(producer: int, number: int) -> list[str]:
    """Its own key, and one that ten share."""
    return [f"p{producer}-{number}", f"g{number // 10}"]


def sender_of(body: bytes) -> tuple[int, int]:
    """Producer and number of a body; (-1, -1) for one that is too short for any."""
    return _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (-1, -1)


def is_repeating(producer: int) -> bool:
    """Odd producers send one message at a time, and each again until it is acknowledged.

    Even ones have many under way and repeat nothing, so that their order must be kept.
    """
    return producer % 2 == 1


class Flag(Protocol):
    """An event of this process or of several."""

    def is_set(self) -> bool:
        """Whether it is time to end."""


class Notes:
    """The rows of one process, each in the file as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def add(self, *row: int) -> None:
        """One write: rows of several threads do not mix."""
        os.write(self._descriptor, array("q", row).tobytes())

    def close(self) -> None:
        """No more rows."""
        os.close(self._descriptor)


def read_rows(path: Path, columns: tuple[str, ...]) -> Ints:
    """Returns all rows written by now: none while there is no file."""
    data = path.read_bytes() if path.exists() else b""
    row = 8 * len(columns)
    whole = data[: len(data) // row * row]
    return np.frombuffer(whole, np.int64).reshape(-1, len(columns))


def receipt_files(folder: Path, producers: int) -> dict[int, Path]:
    """Where the senders of a run write down what they were told, by producer."""
    return {number: folder / f"producer-{number}.rows" for number in range(producers)}


def told_in(files: Mapping[int, Path]) -> dict[int, Ints]:
    """What the senders know by now: rows of `ROW` by producer."""
    return {number: read_rows(path, ROW) for number, path in files.items()}


def obey_the_parent_alone() -> None:
    """Ctrl-C is for the parent, which ends this process in order; this one ends with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "not a process of multiprocessing"
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def send(endpoint: str, traffic: Traffic, producer: int, path: Path, stop: Event) -> None:
    """Sends until `stop` is set, whatever becomes of the node; then waits for what is under way."""
    obey_the_parent_alone()
    notes = Notes(path)
    send_until(endpoint, traffic, producer, notes, stop)
    notes.close()


def send_until(endpoint: str, traffic: Traffic, producer: int, notes: Notes, stop: Flag) -> None:
    """Does the same in the caller's thread."""
    way = _send_repeating if is_repeating(producer) else _send_pipelined
    with connect(endpoint, timeout=traffic.timeout_s, retry=Retry(max_attempts=1)) as client:
        way(client, traffic, producer, notes, stop)


def _outgoing(traffic: Traffic, producer: int, number: int) -> tuple[int, OutgoingMessage]:
    sent = traffic.message(producer, number)
    return sent.topic, OutgoingMessage(
        sent.body,
        keys=keys_of(producer, number),
        tags=f"t{number % 5}" if number % 4 else None,
        queue_id=number % traffic.queues if number % 3 else None,
    )


def _send_pipelined(
    client: Client, traffic: Traffic, producer: int, notes: Notes, stop: Flag
) -> None:
    acks: Acks = "flushed" if producer % 4 == 2 else "appended"
    with client.producer(
        timeout=traffic.timeout_s, max_in_flight=traffic.in_flight, acks=acks
    ) as sender:
        number = failed = 0
        while not stop.is_set():
            topic, outgoing = _outgoing(traffic, producer, number)
            try:
                found = sender.send_nowait(traffic.topics[topic], outgoing)
            except MqError as error:
                _note_error(notes, number, topic, error)
            else:
                found.add_done_callback(partial(_note, notes, number, topic))
            number += 1
            if sender.failed != failed:
                time.sleep(max(_PAUSE_S, traffic.pause_s))
            elif number % traffic.burst == 0:
                time.sleep(traffic.pause_s)
            failed = sender.failed


def _send_repeating(
    client: Client, traffic: Traffic, producer: int, notes: Notes, stop: Flag
) -> None:
    number = 0
    while not stop.is_set():
        topic, outgoing = _outgoing(traffic, producer, number)
        try:
            receipt = client.send(traffic.topics[topic], outgoing)
        except MqError as error:
            _note_error(notes, number, topic, error)
            time.sleep(_PAUSE_S)
        else:
            _note_receipt(notes, number, topic, receipt)
            number += 1
            if traffic.single_pause_s:
                time.sleep(traffic.single_pause_s)


def _note(notes: Notes, number: int, topic: int, found: "Future[Receipt]") -> None:
    error = found.exception()
    if error is None:
        _note_receipt(notes, number, topic, found.result())
    else:
        _note_error(notes, number, topic, error)


def _note_receipt(notes: Notes, number: int, topic: int, receipt: Receipt) -> None:
    place = (receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
    notes.add(number, ACKNOWLEDGED, topic, *place, int(receipt.flushed), time.monotonic_ns())


def _note_error(notes: Notes, number: int, topic: int, error: BaseException) -> None:
    outcome = UNKNOWN if isinstance(error, OutcomeUnknownError) else REFUSED
    notes.add(number, outcome, topic, -1, -1, -1, 0, time.monotonic_ns())


def read_along(endpoint: str, traffic: Traffic, path: Path, stop: Event) -> None:
    """Pulls all queues in turn until `stop` is set, whatever becomes of the node."""
    obey_the_parent_alone()
    notes = Notes(path)
    positions = dict.fromkeys(product(range(len(traffic.topics)), range(traffic.queues)), 0)
    with connect(endpoint, timeout=10.0, retry=Retry(max_attempts=1)) as client:
        while not stop.is_set():
            grown = False
            for (topic, queue_id), position in positions.items():
                try:
                    answer = client.pull(
                        traffic.topics[topic], queue_id, position, max_bytes=_READ_AHEAD_BYTES
                    )
                except MqError:
                    continue
                for one in answer.messages:
                    notes.add(*_seen(topic, one))
                # A node that has lost its tail, or has not caught up, may name an earlier place.
                grown = grown or answer.next_begin_offset > position
                positions[topic, queue_id] = answer.next_begin_offset
            time.sleep(_READ_PAUSE_S if grown else _PAUSE_S)
    notes.close()


def follow(endpoint: str, traffic: Traffic, topic: int, path: Path, stop: Event) -> None:
    """Follows a topic from its first message on; once `stop` is set, to its last one."""
    obey_the_parent_alone()
    notes = Notes(path)
    name = traffic.topics[topic]
    with connect(endpoint, timeout=30.0) as client:
        threading.Thread(target=_end_at_the_end, args=(client, name, path, stop)).start()
        for one in client.tail(name, "earliest", max_bytes=_READ_AHEAD_BYTES):
            notes.add(*_seen(topic, one))


def _end_at_the_end(client: Client, topic: str, path: Path, stop: Event) -> None:
    """Ends the process once its file has as many rows as the topic has messages, or too late."""
    stop.wait()
    await_workers(client)
    count = sum(queue.max_offset for queue in client.offsets(topic))
    deadline = time.monotonic() + CATCH_UP_S
    while len(read_rows(path, SEEN)) < count:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.1)
    os._exit(0)


def _seen(topic: int, one: Message) -> tuple[int, ...]:
    """A row of `SEEN`."""
    return (topic, one.queue_id, one.queue_offset, one.physical_offset, *sender_of(one.body))
