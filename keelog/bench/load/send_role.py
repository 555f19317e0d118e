"""The load process that sends: its stream is `send`, and `lateness` where there is a rate."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import keelog
from keelog import aio
from keelog.bench.load.bodies import Sizes, batches, make_bodies
from keelog.bench.load.job import LoadJob, Prepared
from keelog.bench.load.pace import LoadPace
from keelog.bench.load.payload_header import key_of, stamped
from keelog.bench.load.receipts_file import notes_path, noting
from keelog.bench.load.recorder import Recorder
from keelog.bench.load.sending import (
    Handed,
    Make,
    Outgoing,
    Streams,
    call_in_tasks,
    call_in_threads,
    call_one_by_one,
    cycle,
    keep_batches_in_flight,
    keep_in_flight,
)
from keelog.bench.workload import STAMP_BYTES

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
    client = None if load.callers == "tasks" else keelog.connect(job.endpoint, load.timeout)

    def work(start_ns: int) -> None:
        pace = job.pace(start_ns)
        if client is None:
            asyncio.run(_send_in_tasks(job, make, pace, streams))
            return
        with client:
            if load.callers == "threads":
                callers = max(1, job.share_of(load.producers))
                call_in_threads(callers, client.send, make, pace, streams)
            else:
                _send_through_a_producer(job, client, make, pace, streams, mean)

    return Prepared(work, dry)


def requests_of(job: LoadJob, bodies: list[bytes]) -> Make:
    """Makes the requests: in advance, but where bodies carry a stamp."""
    load, topics = job.workload, job.topics
    options: dict[str, Any] = {"tags": load.tags} if load.tags else {}
    if load.callers in ("threads", "tasks") and load.acks != "appended":
        options["acks"] = load.acks
    if load.kind in ("e2e", "mixed"):
        make = stamped(topics, bodies[0][STAMP_BYTES:], job.number, options)
        return with_own_keys(make, job.number) if load.kind == "mixed" else make
    dice = random.Random(job.number)
    requests = []
    if load.callers == "batches":
        for number, part in enumerate(batches(bodies, load.batch)):
            said = options
            if load.keys:
                said = {**options, "keys": [_keys(load.keys, dice) for _ in part]}
            size = sum(map(len, part))
            requests.append(Outgoing(topics[number % len(topics)], part, said, size))
        return cycle(requests)
    for number, body in enumerate(bodies):
        said = {**options, "keys": _keys(load.keys, dice)} if load.keys else options
        requests.append(Outgoing(topics[number % len(topics)], body, said, len(body)))
    return cycle(requests)


def with_own_keys(make: Make, producer: int) -> Make:
    """Each message has a key that nobody else has."""
    numbers = itertools.count()

    def made(due_ns: int) -> Outgoing:
        request = make(due_ns)
        keys = [key_of(producer, next(numbers))]
        return Outgoing(
            request.topic, request.body, {**request.options, "keys": keys}, request.size
        )

    return made


def _keys(count: int, dice: random.Random) -> list[str]:
    return [f"key-{dice.getrandbits(48):012x}" for _ in range(count)]


def _send_through_a_producer(
    job: LoadJob, client: keelog.Client, make: Make, pace: LoadPace, streams: Streams, mean: float
) -> None:
    load = job.workload
    timeout, acks, limit = load.timeout, load.acks, load.under_way
    if load.callers == "batches":
        with client.producer(max_batches=limit, timeout=timeout, acks=acks) as producer:
            keep_batches_in_flight(producer.send_batch, make, pace, streams, load.batch)
        return
    with client.producer(max_in_flight=limit, timeout=timeout, acks=acks) as producer:
        handed = Handed()

        def stored() -> tuple[int, int]:
            messages = handed.messages - producer.unanswered - producer.failed
            return messages, int(messages * mean)

        streams.sends.count_by(stored)
        with contextlib.ExitStack() as stack:
            send: Callable[..., Future[keelog.Receipt]] = producer.send_nowait
            if job.folder is not None:
                send = stack.enter_context(noting(notes_path(job.folder, job.number), send))
            keep_in_flight(send, make, pace, streams, handed)
            producer.flush()


async def _send_in_tasks(job: LoadJob, make: Make, pace: LoadPace, streams: Streams) -> None:
    callers = max(1, job.share_of(job.workload.producers))
    async with aio.connect(job.endpoint, timeout=job.workload.timeout) as client:
        await call_in_tasks(callers, client.send, make, pace, streams)


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
            keep_in_flight(lambda *_, **__: done, make, pace, streams, Handed())
        case "batches":
            keep_batches_in_flight(lambda *_, **__: done, make, pace, streams, each)
        case _:
            call_one_by_one(lambda *_, **__: None, make, pace, streams)
    return (time.thread_time() - before) / (DRY_REQUESTS * each) * 1e6
