"""A writer without sockets and threads: the product's loop, moved turn by turn.

What its threads do is done when a test says so, and other turns may come in the middle of it.
"""

import itertools
import logging
import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import node.writer.log.commit_log
import node.writer.log.flush
import node.writer.loop
import node.writer.staging.publisher
import node.writer.store
from node.runtime.settings import ASYNC_FLUSH, SYNC_FLUSH, Settings
from node.serving.request_server import Received
from node.store.identity.places import create_store
from node.writer.loop import Writer
from node.writer.store import open_writer_store
from protocol.ids import Host
from protocol.record.encode import NewMessage, encode_message
from protocol.wire.frames import VERSION, pack
from tests.crash.sim_disk import SimDisk, Stopped
from tests.crash.truth import Truth

HOST = Host(bytes([127, 0, 0, 1]), 7850)
TAILS_EVERY_BYTES = 3_000
"""Tiny stores take snapshots too."""
FIRST_TIME_MS = 1_700_000_000_000
_BASE = Settings(
    clean_file_forcibly_enable=False,
    disk_space_warning_level_ratio=100,
    file_reserved_time=24 * 365 * 100,
)


class InlineThread:
    """Does its work when it is started."""

    def __init__(self, target: Callable[..., None], args: Any = (), name: str = "") -> None:
        self._target = target
        self._args = args
        self.name = name

    def start(self) -> None:
        """All of it."""
        self._target(*self._args)

    def join(self) -> None:
        """It is done."""

    def is_alive(self) -> bool:
        """Never after `start`."""
        return False


class InlineThreading:
    """In the place of the module `threading`."""

    Thread = InlineThread


class HandJob:
    """In the place of `node.writer.log.flush.JobThread`: a job runs when the test calls `run`."""

    made: "list[HandJob]" = []  # noqa: RUF012  (emptied for each writer)

    def __init__(self, name: str, note_end: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.fd = -1
        self._note_end = note_end
        self._job: Any = None
        self._after: Callable[[], None] | None = None
        self._done: Any = None
        self._error: OSError | None = None
        self.took_ns = 0
        HandJob.made.append(self)

    @property
    def is_busy(self) -> bool:
        """As JobThread's."""
        return self._job is not None or self._done is not None

    @property
    def has_work(self) -> bool:
        """Whether `run` would do something."""
        return self._job is not None

    def start(self, job: Any, after: Callable[[], None] | None = None) -> None:
        """Takes a job."""
        assert self._job is None
        self._job, self._after = job, after

    def run(self) -> None:
        """What the thread would do."""
        job, error = self._job, None
        try:
            job.run()
            if self._after is not None:
                self._after()
        except OSError as caught:
            error = caught
        self._job, self._done, self._error = None, job, error
        self._note_end()

    def collect(self) -> Any:
        """As JobThread's."""
        done, self._done = self._done, None
        if self._error is not None:
            raise self._error
        return done

    def wait(self) -> None:
        """As JobThread's."""
        if self._job is not None:
            self.run()

    close = wait


class FakeServer:
    """Requests in, answers out, in memory."""

    def __init__(self) -> None:
        self.requests: deque[Received] = deque()
        self.answers: list[dict[str, Any]] = []

    def turn(self) -> None:
        """Nobody connects."""

    def together(self) -> AbstractContextManager[None]:
        """Each is kept at once."""
        return nullcontext()

    def receive(self) -> Received | None:
        """The next request."""
        return self.requests.popleft() if self.requests else None

    def send(self, _peer: bytes, header: dict[str, Any], _payload: object = None) -> None:
        """Keeps an answer."""
        self.answers.append(header)


class NoHints:
    """Every hint is lost."""

    def wake(self, _epoch: int, _readable: int, _queues: object = None) -> None:
        """Nobody hears it."""

    def ring_all(self) -> None:
        """Nobody hears it."""

    def look(self) -> None:
        """Nobody is there."""


@contextmanager
def single_threaded() -> Iterator[None]:
    """Writers are moved by hand, and their clock ticks the same in each run."""
    ticks = itertools.count(FIRST_TIME_MS, 3)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.writer.log.commit_log, "threading", InlineThreading)
            patch.setattr(node.writer.log.flush, "JobThread", HandJob)
            patch.setattr(node.writer.staging.publisher, "JobThread", HandJob)
            patch.setattr(node.writer.staging.publisher, "now_ms", lambda: next(ticks))
            patch.setattr(node.writer.loop, "time_ns", lambda: next(ticks) * 1_000_000)
            patch.setattr(node.writer.store, "now_ms", lambda: next(ticks))
            patch.setattr(node.writer.store, "TAILS_EVERY_BYTES", TAILS_EVERY_BYTES)
            yield
    finally:
        logging.disable(disabled)


def tiny_settings(rnd: random.Random, mode: str) -> Settings:
    """Segments of 1 to 16 KiB. `mode`: sync, async, or pool."""
    return replace(
        _BASE,
        mapped_file_size_commit_log=rnd.choice([1024, 2048, 4096, 4096, 8192, 16384]),
        flush_disk_type=SYNC_FLUSH if mode == "sync" else ASYNC_FLUSH,
        transient_store_pool_enable=mode == "pool",
        flush_commit_log_least_pages=rnd.choice([0, 1, 4]),
        commit_commit_log_least_pages=rnd.choice([0, 1]),
    )


class Producer:
    """Makes requests. Half of all producers know one size of message only (swarm testing)."""

    def __init__(self, rnd: random.Random, settings: Settings) -> None:
        self._random = rnd
        self._crc = settings.enabled_append_prop_crc
        body_max = min(settings.mapped_file_size_commit_log // 4, 700)
        self._sizes = [rnd.randrange(body_max) for _ in range(rnd.choice([1, 6]))]
        self._notes = rnd.choice([[0], [0], [0, 0, body_max]])
        self._batches = [1] if rnd.random() < 0.5 else [1, 1, 2, 3]
        self._request_max = settings.mapped_file_size_commit_log - 8
        self._ids = itertools.count(1)
        self.asked: dict[int, tuple[int, str | None]] = {}
        """By request id: bytes of the records, and the field `wait`."""

    def request(self) -> Received:
        """An append of a few records."""
        rnd, count = self._random, self._random.choice(self._batches)
        number = next(self._ids)
        records = [self._record(number, i) for i in range(count)]
        while sum(map(len, records)) > self._request_max:
            records.pop()
        payload = b"".join(records)
        wait = rnd.choice([None, None, None, "flushed", "none"])
        header: dict[str, Any] = {
            "v": VERSION,
            "op": "append",
            "id": number,
            "count": len(records),
            "bytes": len(payload),
            "crc": zlib.crc32(payload),
        }
        if wait is not None:
            header["wait"] = wait
        self.asked[number] = len(payload), wait
        return Received(b"peer", pack(header), payload)

    def _record(self, number: int, place: int) -> bytes:
        rnd = self._random
        mark = f"{number:05d}.{place}"
        body = (mark.encode() * 200)[: rnd.choice(self._sizes)]
        message = NewMessage(
            topic=rnd.choice(["orders", "orders", "audit"]),
            queue_id=rnd.choice([0, 0, 1]),
            body=body,
            tags="paid",
            keys=(f"k{number:05d}",),
            unique_key=f"U{mark}",
            properties={"note": note} if (note := mark[0] * rnd.choice(self._notes)) else {},
        )
        return encode_message(message, self._crc)


class WriterLife:
    """One process of the writer, from its start to its end."""

    def __init__(self, sim: SimDisk, root: Path, settings: Settings, truth: Truth) -> None:
        """Starts it. Raises Stopped, OSError, MqError."""
        self.sim = sim
        self.settings = settings
        self.truth = truth
        HandJob.made.clear()
        create_store(root)
        self.store = open_writer_store(root, settings, HOST, alone=True)
        self.server = FakeServer()
        try:
            self.writer = Writer(self.store, self.server, NoHints())  # type: ignore[arg-type]
        except Stopped:
            self.store.lock.release()  # as the end of the process does
            raise
        self._jobs = list(HandJob.made)
        self.now = time.monotonic()
        self._answered = 0
        self._holds_lock = True

    def check_start(self) -> None:
        """What it recovered is right; from now on it is readable, so it stays."""
        end = self.store.log.end
        self.truth.check(self.store.root, end, self.store.placement.tails, self.truth.required)
        self.truth.cut(end)
        self.sim.on_write = self.truth.on_write

    def turn(self, producer: Producer, requests: int, seconds: float) -> None:
        """Requests come in, and the loop turns once. Raises OSError where the process would end."""
        for _ in range(requests):
            self.server.requests.append(producer.request())
        self.now += seconds
        self.writer.step(self.now)
        self.note_answers(producer)

    def run_jobs(self, meanwhile: Callable[[], None] | None = None) -> None:
        """The threads do what they were told; `meanwhile` the loop turns."""
        for job in self._jobs:
            if job.has_work:
                self.sim.on_sync = meanwhile
                job.run()
                self.sim.on_sync = None

    def note_answers(self, producer: Producer) -> None:
        """What an answer promises may not be lost from now on."""
        for answer in self.server.answers[self._answered :]:
            if answer["id"] not in producer.asked or not answer["ok"]:
                continue
            if answer["status"] != "PUT_OK":
                continue
            size, wait = producer.asked[answer["id"]]
            end = answer["physical_offset"] + size
            self.truth.stored = max(self.truth.stored, end)
            waits = wait == "flushed" or (wait is None and self.settings.is_sync_flush)
            if waits or answer["flushed"]:
                self.truth.required = max(self.truth.required, end)
        self._answered = len(self.server.answers)

    def stop_in_order(self, producer: Producer, workers_are_done: bool) -> None:
        """SIGTERM. Raises Stopped, OSError."""
        life = self

        class Poller:
            def poll(self, _ms: int) -> None:
                life.run_jobs()

        self.store.workers_are_done = lambda: workers_are_done  # type: ignore[method-assign]
        self.writer._stop(Poller())  # type: ignore[arg-type]
        self._holds_lock = False
        self.note_answers(producer)

    def end(self) -> None:
        """The process is gone."""
        self.sim.on_write = None
        if self._holds_lock:
            self.store.page.close()
            self.store.lock.release()
        self.sim.abandon()
