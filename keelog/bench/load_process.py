"""One process of a load: `python -m keelog.bench.load_process`, started by processes.py.

It talks in lines of JSON: reads its job, says that it is ready, reads the moment to begin, says a
row of figures each second, and that it is done. Its stdin ends with the bench; then it ends, too.

Some send (`sending.py`). The others, which are here, read: what is stored, at full speed; what
arrives, as it arrives.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TextIO

import msgspec

import keelog
from keelog.bench.job import (
    SECOND_NS,
    LoadJob,
    LoadPace,
    Prepared,
    Recorder,
    sleep_until,
    wake_up_in_time,
)
from keelog.bench.sending import END, PayloadHeader, prepare_sends
from protocol.errors import MqError

FIND_S_MAX = 60.0
PAUSE_S = 0.005


Say = Callable[..., None]
"""Writes one line: what it says, and its fields."""


def talking(out: TextIO) -> Say:
    """For several threads. A closed pipe does not matter: `_hear` then ends the process."""
    lock = threading.Lock()

    def say(what: str, **fields: Any) -> None:
        with lock, suppress(BrokenPipeError):
            out.write(json.dumps({"say": what, **fields}) + "\n")
            out.flush()

    return say


def report_seconds(job: LoadJob, say: Say, start_ns: int, over: threading.Event) -> None:
    """A row at each full second since the start, and a last one when it is over."""
    before = start_ns
    while not over.is_set():
        second = (time.monotonic_ns() - start_ns) // SECOND_NS + 1
        over.wait((start_ns + second * SECOND_NS - time.monotonic_ns()) / 1e9)
        streams = {name: stream.take() for name, stream in job.streams.items()}
        now = time.monotonic_ns()
        say("row", start=before, end=now, streams=streams)
        before = now


def _hear(stdin: TextIO, lines: "SimpleQueue[str]") -> None:
    for line in stdin:
        lines.put(line)
    # Nobody waits for the figures, and a follower waits for messages that nobody will send.
    os._exit(1)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_up_in_time()
    say = talking(sys.stdout)
    heard: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_hear, args=(sys.stdin, heard), daemon=True).start()
    job = msgspec.json.decode(heard.get(), type=LoadJob)
    try:
        work, generator = ROLES[job.role](job)
        say("ready", generator=generator)
        run(job, work, say, int(json.loads(heard.get())["go"]))
    except MqError as error:
        say("failed", error=type(error).__name__, reason=error.reason, hint=error.hint)
        return 1
    say("done")
    return 0


def run(job: LoadJob, work: Callable[[int], None], say: Say, start_ns: int) -> None:
    """The work, with a row of figures each second."""
    over = threading.Event()
    reporter = threading.Thread(target=report_seconds, args=(job, say, start_ns, over))
    sleep_until(start_ns)
    reporter.start()
    try:
        work(start_ns)
    finally:
        over.set()
        reporter.join()


def prepare_reads(job: LoadJob) -> Prepared:
    """Reads its queues from end to end, again and again until the time is over; with a count, once.

    Its stream is `consume`; nothing is timed in it.
    """
    load = job.workload
    messages = size = 0
    job.stream("consume").count_by(lambda: (messages, size))
    client = keelog.connect(job.endpoint, **load.connection)
    mine: dict[str, list[int]] = defaultdict(list)
    for topic, queue_id in job.queues():
        mine[topic].append(queue_id)

    def results() -> Iterator[keelog.PullResult]:
        for topic, queues in mine.items():
            yield from client.consume(
                topic,
                "earliest",
                queues=queues,
                until_end=True,
                max_messages=load.pull_messages,
                max_bytes=load.pull_bytes,
            )

    def work(start_ns: int) -> None:
        nonlocal messages, size
        end_ns = job.end_ns(start_ns)

        def goes_on() -> bool:
            return load.count is not None or time.monotonic_ns() < end_ns

        with client:
            while goes_on():
                for result in results():
                    messages += result.count
                    # Whole records where these are read, else of the bodies of message objects.
                    is_raw = load.read_as == "raw"
                    size += (
                        len(result.payload)
                        if is_raw
                        else sum(len(message.body) for message in result.messages)
                    )
                    if not goes_on():
                        return
                if load.count is not None:
                    return

    return work, None


def prepare_follow(job: LoadJob) -> Prepared:
    """Follows its queues until the last message of each has come.

    Streams: `end_to_end` from the intended send time, `from_send` from the real one; what a queue
    lacks, repeats or confuses is a failure of `end_to_end`. Both end with the last message that is
    measured; the bench sends the one that marks the end later.
    """
    load = job.workload
    end_to_end, from_send = job.stream("end_to_end"), job.stream("from_send")
    client = keelog.connect(job.endpoint, **load.connection)
    mine = [queue_id for _, queue_id in job.queues()]
    (topic,) = job.topics
    is_ordered = load.callers == "inflight" or load.producers <= load.processes

    def work(_start_ns: int) -> None:
        with client:
            follow(client, topic, mine, end_to_end, from_send, is_ordered)

    return work, None


def follow(
    client: keelog.Client,
    topic: str,
    queues: list[int],
    end_to_end: Recorder,
    from_send: Recorder,
    is_ordered: bool,
) -> None:
    """Reads until each queue has shown its last message. `is_ordered`: each producer sends one
    message after the other, so that its numbers must rise."""
    note, sample, fail = end_to_end.note, from_send.sample, end_to_end.fail
    expected = dict.fromkeys(queues, 0)
    last: dict[tuple[int, int], int] = {}
    unfinished = set(queues)
    for message in client.tail(topic, "earliest", queues=queues):
        body, queue_id, offset = message.body, message.queue_id, message.queue_offset
        now = time.monotonic_ns()
        stamp = PayloadHeader.of(body)
        if offset != expected[queue_id]:
            fail("lost" if offset > expected[queue_id] else "twice")
        expected[queue_id] = offset + 1
        if stamp.number == END:
            unfinished.discard(queue_id)
            if not unfinished:
                return
            continue
        who = (queue_id, stamp.producer)
        if is_ordered and stamp.number <= last.get(who, END):
            fail("out_of_order")
        last[who] = stamp.number
        note(now - stamp.due_ns, len(body))
        sample(now - stamp.sent_ns)
        end_to_end.last_ns = from_send.last_ns = now


def prepare_finds(job: LoadJob) -> Prepared:
    """Looks messages up by their keys at the rate `finds`, as an open loop; its stream is `find`.

    A look-up ends when it has found the message, which the index may not have yet. It looks for any
    stored message; drawing one counts in the loop, not in the latency.
    """
    load = job.workload
    finds = job.stream("find")
    client = keelog.connect(job.endpoint, **load.connection)
    dice = random.Random(job.number)
    (topic,) = job.topics

    def work(start_ns: int) -> None:
        pace = LoadPace(start_ns, SECOND_NS / load.finds, job.end_ns(start_ns), None)
        with client:
            while (due := pace.next()) is not None:
                sleep_until(due)
                asked = _any_message(client, topic, dice)
                if asked is not None:
                    began = time.monotonic_ns()
                    _look_up(client, topic, asked, finds, began)

    return work, None


def _any_message(client: keelog.Client, topic: str, dice: random.Random) -> keelog.Message | None:
    """A stored message with a key; None where the queue has none there, or a reader was killed."""
    try:
        queue = dice.choice(client.offsets(topic))
        if queue.max_offset == queue.min_offset:
            return None
        offset = dice.randrange(queue.min_offset, queue.max_offset)
        found = client.pull(topic, queue.queue_id, offset, max_messages=1)
    except MqError:
        return None
    return next((one for one in found.messages if one.keys), None)


def _look_up(
    client: keelog.Client, topic: str, asked: keelog.Message, finds: Recorder, began: int
) -> None:
    """Asks until it is found; after FIND_S_MAX that is a failure."""
    while True:
        try:
            found = list(client.find(topic, asked.keys[0]))
        except MqError as error:
            finds.fail(type(error).__name__)
            return
        now = time.monotonic_ns()
        if any(one.physical_offset == asked.physical_offset for one in found):
            finds.note(now - began, len(asked.body))
            return
        if now - began > FIND_S_MAX * SECOND_NS:
            finds.fail("not_found")
            return
        time.sleep(PAUSE_S)


ROLES: dict[str, Callable[[LoadJob], Prepared]] = {
    "send": prepare_sends,
    "consume": prepare_reads,
    "follow": prepare_follow,
    "find": prepare_finds,
}

if __name__ == "__main__":
    sys.exit(main())
