"""How a load process sends: callers that wait, or one producer with much under way.

The loops get the function that sends, and no client. The same loop can run with a function that
does nothing: that is the cost of the generator itself.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from keelog.bench.load.pace import LoadPace, sleep_until
from keelog.bench.load.recorder import Recorder
from protocol.errors import MqError

SAMPLE_EVERY = 128
"""At full speed one message of this number is timed where a producer has many in flight."""
PAUSE_S = 0.01
"""After a failure: a node that refuses everything is not asked at full speed."""
_now = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request: the arguments of the client's call, and the bytes of all bodies."""

    topic: str
    body: Any
    options: dict[str, Any]
    size: int


Make = Callable[[int], Outgoing]
"""Makes the next request; the argument is its intended time in ns."""


@dataclass(frozen=True, slots=True)
class Streams:
    """The recorders of the replies, and of the delay of requests."""

    sends: Recorder
    lateness: Recorder | None


def cycle(requests: list[Outgoing]) -> Make:
    """Requests that were made before, in turn."""

    turn = itertools.cycle(requests)
    return lambda _due_ns: next(turn)


def requests_when_due(
    make: Make, pace: LoadPace, streams: Streams
) -> Iterator[tuple[int, Outgoing]]:
    """Each request with its intended time in ns, at that time; several may share `pace`."""
    late = streams.lateness
    while (due := pace.next()) is not None:
        if late is not None:
            sleep_until(due)
            late.sample(_now() - due)
        yield due, make(due)


def call_one_by_one(send: Callable[..., Any], make: Make, pace: LoadPace, streams: Streams) -> None:
    """One caller that waits for each answer; several of them share `pace`."""
    note = streams.sends.note
    for due, request in requests_when_due(make, pace, streams):
        try:
            send(request.topic, request.body, **request.options)
        except MqError as error:
            _failed(streams.sends, error)
        else:
            note(_now() - due, request.size)


def _failed(recorder: Recorder, error: MqError, messages: int = 1) -> None:
    recorder.fail(type(error).__name__, messages)
    time.sleep(PAUSE_S)


def call_in_threads(
    callers: int, send: Callable[..., Any], make: Make, pace: LoadPace, streams: Streams
) -> None:
    """Runs callers, each a thread; returns when all are done."""
    threads = [
        threading.Thread(target=call_one_by_one, args=(send, make, pace, streams))
        for _ in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def call_in_tasks(
    callers: int, send: Callable[..., Awaitable[Any]], make: Make, pace: LoadPace, streams: Streams
) -> None:
    """Runs callers, each an asyncio task."""

    async def call() -> None:
        while (due := pace.next()) is not None:
            if streams.lateness is not None:
                await asyncio.sleep(max(0, due - _now()) / 1e9)
                streams.lateness.sample(_now() - due)
            request = make(due)
            try:
                await send(request.topic, request.body, **request.options)
            except MqError as error:
                streams.sends.fail(type(error).__name__)
                await asyncio.sleep(PAUSE_S)
            else:
                streams.sends.note(_now() - due, request.size)

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())


@dataclass(slots=True)
class Handed:
    """How many messages a producer got, with a reply or without."""

    messages: int = 0


def keep_in_flight(
    send: Callable[..., "Future[Any]"], make: Make, pace: LoadPace, streams: Streams, handed: Handed
) -> None:
    """One producer that waits only for room.

    The caller counts the replies (`Recorder.count_by`). At a rate each message is timed, at full
    speed one of SAMPLE_EVERY.
    """
    every = 1 if streams.lateness is not None else SAMPLE_EVERY
    for due, request in requests_when_due(make, pace, streams):
        try:
            future = send(request.topic, request.body, **request.options)
        except MqError as error:
            _failed(streams.sends, error)
            continue
        if handed.messages % every == 0:
            future.add_done_callback(partial(_timed, streams.sends, due, every))
        handed.messages += 1


def keep_batches_in_flight(
    send: Callable[..., "Future[Any]"], make: Make, pace: LoadPace, streams: Streams, each: int
) -> None:
    """One producer whose `send` waits for room; every batch is timed, as `each` messages."""
    for due, request in requests_when_due(make, pace, streams):
        try:
            future = send(request.topic, request.body, **request.options)
        except MqError as error:
            _failed(streams.sends, error, each)
        else:
            future.add_done_callback(partial(_answered, streams.sends, due, request.size, each))


def _answered(
    recorder: Recorder, due_ns: int, size: int, messages: int, future: "Future[Any]"
) -> None:
    error = future.exception()
    if error is None:
        recorder.note(_now() - due_ns, size)
    else:
        recorder.fail(type(error).__name__, messages)


def _timed(recorder: Recorder, due_ns: int, stands_for: int, future: "Future[Any]") -> None:
    error = future.exception()
    if error is None:
        recorder.sample(_now() - due_ns)
    else:
        recorder.fail(type(error).__name__, stands_for)
