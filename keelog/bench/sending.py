"""The load process that sends: callers that wait, or one producer with much under way.

Its stream is `send`, and `lateness` where there is a rate. The loops get the function that sends,
and no client. The same loop can run with a function that does nothing: that is the cost of the
generator itself.

The first bytes of a body that is followed hold the intended and the real send time, producer and
number. All times are of the monotonic clock, which all processes of a machine share.
"""

import asyncio
import contextlib
import itertools
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

import keelog
from keelog import aio
from keelog.bench.job import LoadJob, LoadPace, Prepared, Recorder, sleep_until
from keelog.bench.queue_checks import notes_path, noting
from keelog.bench.workload import STAMP_BYTES, Sizes, batches, make_bodies
from protocol.errors import MqError

SAMPLE_EVERY = 128
"""At full speed one message of this number is timed where a producer has many in flight."""
PAUSE_S = 0.01
"""After a failure: a node that refuses everything is not asked at full speed."""
_now = time.monotonic_ns
_STAMP = struct.Struct(">qqqq")
assert _STAMP.size == STAMP_BYTES
WHO_AT = 16
"""The place of producer and number."""
END = -1
"""The number of a message after all others of its queue."""
DRY_REQUESTS = 5_000
"""Requests that are sent to nobody, to learn what the generator costs."""


def prepare_sends(job: LoadJob) -> Prepared:
    """Makes the messages, connects, and times the generator alone."""
    load = job.workload
    bodies = make_bodies(Sizes.parse(load.body), seed=job.number)
    make = requests_of(job, bodies)
    streams = Streams(
        job.stream("send", load.messages_at_once), job.stream("lateness") if load.rate else None
    )
    dry = dry_run_cpu_s_per_million(job, make)
    make = requests_of(job, bodies)  # numbers begin with 0 again
    mean = sum(map(len, bodies)) / len(bodies)
    client = None if load.callers == "tasks" else keelog.connect(job.endpoint, **load.connection)
    callers = max(1, job.share_of(load.producers))

    def work(start_ns: int) -> None:
        pace = job.pace(start_ns)
        if client is None:
            asyncio.run(_send_in_tasks(job, callers, make, pace, streams))
            return
        with client:
            if load.callers == "threads":
                each = (client.send, make, pace, streams)
                threads = [Thread(target=call_one_by_one, args=each) for _ in range(callers)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            else:
                _send_through_a_producer(job, client, make, pace, streams, mean)

    return work, dry


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One request: the arguments of the client's call, and the bytes of all bodies."""

    topic: str
    body: Any
    options: dict[str, Any]
    size: int


Make = Callable[[int], Outgoing]
"""Makes the next request; the argument is its intended time in ns."""


@dataclass(slots=True)
class Streams:
    """The recorders of the replies, and of the delay of requests."""

    sends: Recorder
    lateness: Recorder | None
    handed: int = 0
    """How many messages a producer got from `keep_in_flight`, with a reply or without."""


def requests_of(job: LoadJob, bodies: list[bytes]) -> Make:
    """Makes the requests: in advance, but where bodies carry a stamp."""
    load, topics = job.workload, job.topics
    options: dict[str, Any] = {"tags": load.tags} if load.tags else {}
    if load.callers in ("threads", "tasks") and load.acks != "appended":
        options["acks"] = load.acks
    if load.kind in ("e2e", "mixed"):
        return stamped(job, bodies[0][STAMP_BYTES:], options)
    dice = random.Random(job.number)
    is_batch = load.callers == "batches"
    requests = []
    sent: Sequence[Any] = batches(bodies, load.batch) if is_batch else bodies
    for number, body in enumerate(sent):
        said = options
        if load.keys:
            keys = [
                [f"key-{dice.getrandbits(48):012x}" for _ in range(load.keys)]
                for _ in (body if is_batch else (body,))
            ]
            said = {**options, "keys": keys if is_batch else keys[0]}
        size = sum(map(len, body)) if is_batch else len(body)
        requests.append(Outgoing(topics[number % len(topics)], body, said, size))
    turn = itertools.cycle(requests)
    return lambda _due_ns: next(turn)


def stamped(job: LoadJob, fill: bytes, options: dict[str, Any]) -> Make:
    """Requests of one message each, stamped, to the topics in turn.

    In a mixed load each message has a key that nobody else has.
    """
    size, is_keyed = STAMP_BYTES + len(fill), job.workload.kind == "mixed"
    numbers, topics, producer = itertools.count(), job.topics, job.number

    def make(due_ns: int) -> Outgoing:
        number = next(numbers)
        body = PayloadHeader(due_ns, time.monotonic_ns(), producer, number).body(fill)
        said = {**options, "keys": [f"p{producer}-{number}"]} if is_keyed else options
        return Outgoing(topics[number % len(topics)], body, said, size)

    return make


class PayloadHeader(NamedTuple):
    """The fields of the stamp; times in ns."""

    due_ns: int
    sent_ns: int
    producer: int
    number: int

    @classmethod
    def of(cls, body: bytes) -> "PayloadHeader":
        return cls(*_STAMP.unpack_from(body))

    def body(self, fill: bytes) -> bytes:
        return _STAMP.pack(*self) + fill


def _send_through_a_producer(
    job: LoadJob, client: keelog.Client, make: Make, pace: LoadPace, streams: Streams, mean: float
) -> None:
    load = job.workload
    timeout, acks, limit = load.timeout, load.acks, load.under_way
    if load.callers == "batches":
        with client.producer(max_batches=limit, timeout=timeout, acks=acks) as producer:
            keep_in_flight(producer.send_batch, make, pace, streams, load.batch)
        return
    with client.producer(max_in_flight=limit, timeout=timeout, acks=acks) as producer:

        def stored() -> tuple[int, int]:
            messages = streams.handed - producer.unanswered - producer.failed
            return messages, int(messages * mean)

        streams.sends.count_by(stored)
        with contextlib.ExitStack() as stack:
            send: Callable[..., Future[keelog.Receipt]] = producer.send_nowait
            if job.folder is not None:
                send = stack.enter_context(noting(notes_path(job.folder, job.number), send))
            keep_in_flight(send, make, pace, streams)
            producer.flush()


def dry_run_cpu_s_per_million(job: LoadJob, make: Make) -> float:
    """CPU seconds that the generator takes for a million messages, by sending to nobody."""
    each = job.workload.messages_at_once
    streams = Streams(Recorder(each), None)
    pace = LoadPace(0, 0.0, None, DRY_REQUESTS)
    before = time.thread_time()
    done: Future[None] = Future()
    done.set_result(None)
    match job.workload.callers:
        case "inflight":
            keep_in_flight(lambda *_, **__: done, make, pace, streams)
        case "batches":
            keep_in_flight(lambda *_, **__: done, make, pace, streams, each)
        case _:
            call_one_by_one(lambda *_, **__: None, make, pace, streams)
    return (time.thread_time() - before) / (DRY_REQUESTS * each) * 1e6


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


async def _send_in_tasks(
    job: LoadJob, callers: int, make: Make, pace: LoadPace, streams: Streams
) -> None:
    """Runs callers, each an asyncio task."""

    async def call() -> None:
        while (due := pace.next()) is not None:
            if streams.lateness is not None:
                await asyncio.sleep(max(0, due - _now()) / 1e9)
                streams.lateness.sample(_now() - due)
            request = make(due)
            try:
                await client.send(request.topic, request.body, **request.options)
            except MqError as error:
                streams.sends.fail(type(error).__name__)
                await asyncio.sleep(PAUSE_S)
            else:
                streams.sends.note(_now() - due, request.size)

    connection = aio.connect(job.endpoint, **job.workload.connection)
    async with connection as client, asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())


def keep_in_flight(
    send: Callable[..., "Future[Any]"], make: Make, pace: LoadPace, streams: Streams, each: int = 0
) -> None:
    """One producer that waits only for room.

    The caller counts the replies (`Recorder.count_by`). At a rate each message is timed, at full
    speed one of SAMPLE_EVERY. With `each` every request is a batch of that many, which is timed and
    counted here.
    """
    every = 1 if each or streams.lateness is not None else SAMPLE_EVERY
    for due, request in requests_when_due(make, pace, streams):
        try:
            future = send(request.topic, request.body, **request.options)
        except MqError as error:
            _failed(streams.sends, error, each or 1)
            continue
        if streams.handed % every == 0:
            size = request.size if each else None
            future.add_done_callback(partial(_answered, streams.sends, due, size, each or every))
        streams.handed += 1


def _answered(
    recorder: Recorder, due_ns: int, size: int | None, messages: int, future: "Future[Any]"
) -> None:
    """Notes an answer; without a `size` its latency alone."""
    error = future.exception()
    if error is not None:
        recorder.fail(type(error).__name__, messages)
    elif size is None:
        recorder.sample(_now() - due_ns)
    else:
        recorder.note(_now() - due_ns, size)
