"""What sends while anything is killed, and what reads along: functions for processes of their own.

Every outcome is written down at once, as a row in a file: who checks may come at any moment. A
message says who sent it, and all of it follows from that: who checks needs no copy of it.
"""

import os
import random
import struct
import time
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from client.client import Client, connect
from client.messages import OutgoingMessage
from client.options import Acks
from client.results import Receipt
from client.transport.request import Retry
from keelog.bench.queue_checks import Ints
from protocol.errors import MqError, OutcomeUnknownError
from scripts.helper_process import obey_the_parent_alone

TOPICS = ("kill-orders", "kill-events", "kill-audit")
QUEUES = 4
ACKNOWLEDGED, REFUSED, UNKNOWN = 0, 1, 2
ROW = ("number", "outcome", "topic", "queue_id", "queue_offset", "physical_offset", "flushed", "ns")
"""What a sender writes down for each attempt; `ns` by the monotonic clock, when it knew."""
SEEN = ("topic", "queue_id", "queue_offset", "physical_offset", "producer", "number")
"""What a reader writes down for each message."""
_HEAD = struct.Struct(">qq")
_NOISE = random.Random(20240501).randbytes(1 << 20)
_MIX = 0x9E3779B97F4A7C15
_PAUSE_S = 0.02
_IN_FLIGHT = 64
_PACE_S = 0.0015
"""Between two messages of a pipelining producer: others want the processors too."""
_READ_AHEAD_BYTES = 1 << 20


class Pace(NamedTuple):
    """How fast a producer sends."""

    burst: int = 1
    """Messages of a pipelining producer between two pauses."""
    pause_s: float = _PACE_S
    single_pause_s: float = 0.0
    """After each message of a repeating producer."""
    timeout_s: float = 10.0
    """Until nobody can say any more what became of a message."""


_FULL_SPEED = Pace()


class Sent(NamedTuple):
    """One message as it must stand in the log."""

    topic: int
    body: bytes
    properties: bytes
    """What its properties must contain."""


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


def message(producer: int, number: int) -> Sent:
    """The message that follows from producer and number."""
    dice = _dice(producer, number)
    start = dice % 65_536
    body = _HEAD.pack(producer, number) + _NOISE[start : start + _body_bytes(dice) - _HEAD.size]
    keys = " ".join(keys_of(producer, number))
    tags = f"TAGS\x01t{number % 5}\x02" if number % 4 else ""
    return Sent(dice % len(TOPICS), body, f"{tags}KEYS\x01{keys}\x02".encode())


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
    """All rows so far. An empty table when there is no file yet."""
    data = path.read_bytes() if path.exists() else b""
    row = 8 * len(columns)
    whole = data[: len(data) // row * row]
    return np.frombuffer(whole, np.int64).reshape(-1, len(columns))


def _note(notes: Notes, number: int, topic: int, found: "Future[Receipt]") -> None:
    error = found.exception()
    if error is None:
        _note_receipt(notes, number, topic, found.result())
    else:
        outcome = UNKNOWN if isinstance(error, OutcomeUnknownError) else REFUSED
        notes.add(number, outcome, topic, -1, -1, -1, 0, time.monotonic_ns())


def _note_receipt(notes: Notes, number: int, topic: int, receipt: Receipt) -> None:
    place = (receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
    notes.add(number, ACKNOWLEDGED, topic, *place, int(receipt.flushed), time.monotonic_ns())


def _outgoing(producer: int, number: int, sent: Sent) -> OutgoingMessage:
    return OutgoingMessage(
        sent.body,
        keys=keys_of(producer, number),
        tags=f"t{number % 5}" if number % 4 else None,
        queue_id=number % QUEUES if number % 3 else None,
    )


def send(endpoint: str, producer: int, path: Path, stop: Event) -> None:
    """Sends until `stop` is set, whatever becomes of the node; then waits for what is under way."""
    obey_the_parent_alone()
    notes = Notes(path)
    send_until(endpoint, producer, notes, stop)
    notes.close()


def send_until(
    endpoint: str, producer: int, notes: Notes, stop: Flag, pace: Pace = _FULL_SPEED
) -> None:
    """The same in a thread of whoever asks."""
    way = _send_repeating if is_repeating(producer) else _send_pipelined
    with connect(endpoint, timeout=pace.timeout_s, retry=Retry(max_attempts=1)) as client:
        way(client, producer, notes, stop, pace)


def _send_pipelined(client: Client, producer: int, notes: Notes, stop: Flag, pace: Pace) -> None:
    acks: Acks = "flushed" if producer % 4 == 2 else "appended"
    timeout = pace.timeout_s
    with client.producer(timeout=timeout, max_in_flight=_IN_FLIGHT, acks=acks) as sender:
        number = failed = 0
        while not stop.is_set():
            sent = message(producer, number)
            outgoing = _outgoing(producer, number, sent)
            try:
                found = sender.send_nowait(TOPICS[sent.topic], outgoing)
            except MqError:
                notes.add(number, REFUSED, sent.topic, -1, -1, -1, 0, time.monotonic_ns())
            else:
                found.add_done_callback(partial(_note, notes, number, sent.topic))
            number += 1
            if sender.failed != failed:
                time.sleep(max(_PAUSE_S, pace.pause_s))
            elif number % pace.burst == 0:
                time.sleep(pace.pause_s)
            failed = sender.failed


def _send_repeating(client: Client, producer: int, notes: Notes, stop: Flag, pace: Pace) -> None:
    number = 0
    while not stop.is_set():
        sent = message(producer, number)
        outgoing = _outgoing(producer, number, sent)
        try:
            receipt = client.send(TOPICS[sent.topic], outgoing)
        except MqError as error:
            outcome = UNKNOWN if isinstance(error, OutcomeUnknownError) else REFUSED
            notes.add(number, outcome, sent.topic, -1, -1, -1, 0, time.monotonic_ns())
            time.sleep(_PAUSE_S)
        else:
            _note_receipt(notes, number, sent.topic, receipt)
            number += 1
            if pace.single_pause_s:
                time.sleep(pace.single_pause_s)


def read_along(endpoint: str, path: Path, stop: Event) -> None:
    """Pulls all queues in turn until `stop` is set, whatever becomes of the node."""
    obey_the_parent_alone()
    notes = Notes(path)
    positions = dict.fromkeys(((t, q) for t in range(len(TOPICS)) for q in range(QUEUES)), 0)
    with connect(endpoint, timeout=10.0, retry=Retry(max_attempts=1)) as client:
        while not stop.is_set():
            grown = False
            for (topic, queue_id), position in positions.items():
                moved = _read(client, topic, queue_id, position, notes.add)
                grown = grown or moved > position
                positions[topic, queue_id] = moved
            time.sleep(_PACE_S if grown else _PAUSE_S)
    notes.close()


def _read(
    client: Client, topic: int, queue_id: int, position: int, note: Callable[..., None]
) -> int:
    """Reads once from one queue; answers where to go on."""
    try:
        answer = client.pull(TOPICS[topic], queue_id, position, max_bytes=_READ_AHEAD_BYTES)
    except MqError:
        return position
    for one in answer.messages:
        producer, number = sender_of(one.body)
        note(topic, queue_id, one.queue_offset, one.physical_offset, producer, number)
    # A node that has lost its tail, or has not caught up, may name an earlier place.
    return answer.next_begin_offset
