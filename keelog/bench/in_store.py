"""The store alone: the writer's own way from bodies to the log, in this process, without sockets.

This does what the writer does for a request, in its order: encode, check, stamp, one pwrite, the
state page; commits and flushes beside it. Hints, replies and the workers are left out.
"""

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keelog.bench import machine
from keelog.bench.job import SECOND_NS, Recorder
from keelog.bench.machine import memory_of, process_use
from keelog.bench.processes import SecondFigures, Tally
from keelog.bench.results import Result
from keelog.bench.running import LoadListener
from keelog.bench.workload import Sizes, Workload, batches, make_bodies
from node.runtime.process import now_ms
from node.runtime.settings import load_settings
from node.store.identity.places import create_store
from node.store.opening import open_store
from node.writer.appender import AppendRequest
from node.writer.log.flush import FlushServices, Moved
from node.writer.store import WriterStore, open_writer_store
from protocol.human_text import size_text
from protocol.ids import Host
from protocol.kernel import loader
from protocol.record.append import Put
from protocol.record.encode import ANY_QUEUE, BatchDraft, encode_columns
from protocol.wire.frames import PAYLOAD_BYTES_MAX

TURN_NS = 1_000_000
"""Time between two looks at commits and flushes; the writer's loop looks at each turn."""
LOG_BYTES_MAX = 4 << 30
"""A measurement ends when its log is this long."""
WINDOW_BYTES = 8 << 20
TOPIC = "bench-store"
UNTIMED = 15
"""Single puts between two that are timed: the clock would cost more than the sample is worth."""
Append = Callable[[], int]
"""Makes a request from bodies and appends it; returns their bytes."""
_STEM = "7F0000010001000000010000FFFF"
_HOST = Host(b"\x7f\x00\x00\x01", 10911)


def run_in_store(load: Workload, listener: LoadListener) -> Result:
    """For each body size single puts, batches, and a walk of the log, each on a new store.

    Streams are `put 128 B`, `batch 128 B`, `walk 128 B`, …; the main one is the first. Each has an
    entry of its own among the processes, for its CPU.
    """
    found = machine.describe(
        Path(load.directory or tempfile.gettempdir()), load.settings, loader.describe()
    )
    result = Result("store", "", load.as_dict(), found)
    for body in load.body.split(","):
        sizes = Sizes.parse(body)
        bodies, name = make_bodies(sizes, seed=0), size_text(sizes.low)
        if "put" in load.parts:
            with _folder(load) as root:
                _append(root, bodies, 1, Course(f"put {name}", load, result, listener))
        if "batch" in load.parts:
            with _folder(load) as root:
                _append(root, bodies, load.batch, Course(f"batch {name}", load, result, listener))
                if "walk" in load.parts:
                    _walk(root, Course(f"walk {name}", load, result, listener))
    result.main = next(iter(result.streams))
    return result


class Course:
    """One measurement: what it counts, the rows of its seconds, when it is over."""

    def __init__(self, stream: str, load: Workload, result: Result, listener: LoadListener) -> None:
        self._stream, self._load, self._result, self._listener = stream, load, result, listener
        listener.phase(stream)
        self.settings = load_settings(load.settings)
        self.recorder = Recorder()
        self.recorder.count_by(lambda: (self.messages, self.bytes))
        self.messages = self.bytes = 0
        self.begin()

    def begin(self) -> None:
        self._start = self._row_start = time.monotonic_ns()
        self._end = self._start + int((self._load.warm_up + self._load.duration) * SECOND_NS)
        self._cpu = time.process_time()
        self._tally = Tally(self._start, self._load.warm_up)

    def goes_on(self, latency_ns: int, now_ns: int) -> bool:
        """Notes how long one call took; returns whether there is to be another."""
        self.recorder.sample(latency_ns)
        if now_ns - self._row_start >= SECOND_NS:
            second = round((now_ns - self._start) / SECOND_NS) - 1
            self._row(now_ns)
            self._listener.second(second + 1.0, self._tally.close(second), {})
        if self._load.count is not None:
            return self.messages < self._load.count
        return now_ns < self._end

    def _row(self, now_ns: int) -> None:
        row = SecondFigures("store", self._row_start, now_ns, {self._stream: self.recorder.take()})
        self._tally.add(row)
        self._row_start = now_ns

    def finish(self) -> None:
        cpu_s = time.process_time() - self._cpu
        self._row(time.monotonic_ns())
        self._result.streams |= self._tally.streams()
        memory = memory_of(os.getpid())
        use = process_use(self._stream, cpu_s, max(self.messages, 1), memory)
        self._result.processes.append(use)


@contextlib.contextmanager
def _folder(load: Workload) -> Iterator[Path]:
    """A new folder for one store, removed afterwards."""
    parent = Path(load.directory).resolve() if load.directory else None
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix="keelog-bench-store-", dir=parent, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder) / "store"


def _append(root: Path, bodies: list[bytes], each: int, course: Course) -> None:
    create_store(root)
    store = open_writer_store(root, course.settings, _HOST, alone=True)
    services = FlushServices(store.log, course.settings, time.monotonic(), store.after_flush)
    try:
        append = _singles(store, bodies) if each == 1 else _batches(store, bodies, each)
        course.begin()
        _puts(store, services, append, each, course)
        course.finish()
    finally:
        _publish(store, services.flush_all(time.monotonic()))
        services.close()
        store.close_cleanly(workers_done=True)


def _puts(
    store: WriterStore, services: FlushServices, append: Append, each: int, course: Course
) -> None:
    """Request after request, each appended as the writer's loop appends a group of one."""
    log, page, placement = store.log, store.page, store.placement
    untimed = UNTIMED if each == 1 else 0
    turn_at, going = 0, True

    def put() -> None:
        if log.pool is not None:
            _publish(store, services.wait_for_buffer(PAYLOAD_BYTES_MAX, time.monotonic()))
        size = append()
        if services.is_hasty:
            services.wake()
        if log.pool is None:
            page.show_append(placement.records, log.end)
        else:
            page.publish(records=placement.records, appended=log.end)
        store.snapshot_if_due()
        course.messages += each
        course.bytes += size

    while going and log.end < LOG_BYTES_MAX:
        for _ in range(untimed):
            put()
        before = time.monotonic_ns()
        put()
        now = time.monotonic_ns()
        if now >= turn_at:
            _publish(store, services.collect(now / 1e9))
            services.begin(now / 1e9, is_waited_for=False)
            turn_at = now + TURN_NS
        going = course.goes_on(now - before, now)


def _publish(store: WriterStore, moved: Moved) -> None:
    if moved.committed is not None:
        store.page.publish(committed=moved.committed, readable=moved.committed)
    if moved.flushed is not None:
        store.flushed_to(moved.flushed)


def _append_request(store: WriterStore, request: AppendRequest) -> None:
    store.appender.append([request], now_ms())
    if request.error is not None:
        raise request.error


def _singles(store: WriterStore, bodies: list[bytes]) -> Append:
    """The operation `send`, once its fields are read: the writer encodes, and chooses the queue."""
    turn, appender = itertools.cycle(bodies), store.appender

    def append() -> int:
        body, now = next(turn), now_ms()
        put = Put(TOPIC, body, ANY_QUEUE, b"", now, _HOST)
        if appender.put(put, now) is None:
            _append_request(store, AppendRequest(b"", 1, any_queue=True, draft=put))
        return len(body)

    return append


def _batches(store: WriterStore, bodies: list[bytes], each: int) -> Append:
    """The operation `append`: encoded as a client does, to a queue of the writer's choice."""
    turn = itertools.cycle(
        [(part, list(map(len, part)), sum(map(len, part))) for part in batches(bodies, each)]
    )

    def append() -> int:
        part, lengths, size = next(turn)
        draft = BatchDraft(
            TOPIC, b"".join(part), lengths, _STEM, born_timestamp=now_ms(), born_host=_HOST
        )
        made = encode_columns(draft, store.rules.crc, store.rules.max_message_bytes)
        sizes = made.sizes.tobytes()
        _append_request(store, AppendRequest(made.records.data, each, sizes, any_queue=True))
        return size

    return append


def _walk(root: Path, course: Course) -> None:
    """The whole log as verified columns, again and again."""
    with open_store(root) as store:
        course.begin()
        going = True
        while going:
            before = time.monotonic_ns()
            for columns in store.log.columns(store.log.min_offset, None, WINDOW_BYTES):
                course.messages += len(columns)
                course.bytes += int(columns.body_length.sum())
                now = time.monotonic_ns()
                going = course.goes_on(now - before, now)
                before = now
                if not going:
                    break
    course.finish()
