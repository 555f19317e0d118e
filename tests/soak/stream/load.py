"""What sends while a streaming query is killed: functions for processes of their own.

A body says who sent it as which message; receipts are written down as `kill_load` has them.
"""

import random
import struct
import time
from concurrent.futures import Future
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

from client.client import Client, connect
from client.messages import OutgoingMessage
from client.results import Receipt
from client.transport.request import Retry
from protocol.errors import MqError, OutcomeUnknownError
from scripts.helper_process import obey_the_parent_alone
from tests.soak.kill.load import ACKNOWLEDGED, REFUSED, UNKNOWN, Notes

SOURCE_TOPIC = "stream-in"
SINK_TOPIC = "stream-out"
QUEUES = 8
_HEAD = struct.Struct(">qq")
_NOISE = random.Random(20240501).randbytes(4096)
_IN_FLIGHT = 64
_REST_S = 0.05
"""After a failure, before the next message."""


def body_of(producer: int, number: int) -> bytes:
    """The body that follows from who sends what; mostly small."""
    size = 16 + (producer * 7919 + number * 104_729) % (2000 if number % 50 == 0 else 300)
    return _HEAD.pack(producer, number) + _NOISE[:size]


def sender_of(body: bytes) -> tuple[int, int]:
    """Producer and number of a body; (-1, -1) for one that is too short for any."""
    return _HEAD.unpack_from(body) if len(body) >= _HEAD.size else (-1, -1)


def is_repeating(producer: int) -> bool:
    """Odd producers send one message at a time, again until it is acknowledged; even ones never
    repeat and have many under way."""
    return producer % 2 == 1


def send(endpoint: str, producer: int, path: Path, pace_s: float, stop: Event) -> None:
    """Sends one message each `pace_s` until `stop` is set, whatever becomes of the node."""
    obey_the_parent_alone()
    notes = Notes(path)
    way = _send_repeating if is_repeating(producer) else _send_pipelined
    with connect(endpoint, timeout=10.0, retry=Retry(max_attempts=1)) as client:
        way(client, producer, notes, pace_s, stop)
    notes.close()


def _outgoing(producer: int, number: int) -> OutgoingMessage:
    return OutgoingMessage(
        body_of(producer, number),
        keys=[f"p{producer}-{number}"],
        tags=f"t{number % 5}" if number % 4 else None,
        queue_id=(number + producer) % QUEUES,
    )


def _send_pipelined(
    client: Client, producer: int, notes: Notes, pace_s: float, stop: Event
) -> None:
    with client.producer(timeout=10.0, max_in_flight=_IN_FLIGHT) as sender:
        number = failed = 0
        while not stop.is_set():
            try:
                found = sender.send_nowait(SOURCE_TOPIC, _outgoing(producer, number))
            except MqError as error:
                _note_error(notes, number, error)
            else:
                found.add_done_callback(partial(_note, notes, number))
            number += 1
            time.sleep(pace_s if sender.failed == failed else max(pace_s, _REST_S))
            failed = sender.failed


def _send_repeating(
    client: Client, producer: int, notes: Notes, pace_s: float, stop: Event
) -> None:
    number = 0
    while not stop.is_set():
        try:
            receipt = client.send(SOURCE_TOPIC, _outgoing(producer, number))
        except MqError as error:
            _note_error(notes, number, error)
            time.sleep(max(pace_s, _REST_S))
        else:
            _note_receipt(notes, number, receipt)
            number += 1
            time.sleep(pace_s)


def _note(notes: Notes, number: int, found: "Future[Receipt]") -> None:
    error = found.exception()
    if error is None:
        _note_receipt(notes, number, found.result())
    else:
        _note_error(notes, number, error)


def _note_receipt(notes: Notes, number: int, receipt: Receipt) -> None:
    place = (receipt.queue_id, receipt.queue_offset, receipt.physical_offset)
    notes.add(number, ACKNOWLEDGED, 0, *place, int(receipt.flushed), time.monotonic_ns())


def _note_error(notes: Notes, number: int, error: BaseException) -> None:
    outcome = UNKNOWN if isinstance(error, OutcomeUnknownError) else REFUSED
    notes.add(number, outcome, 0, -1, -1, -1, 0, time.monotonic_ns())
