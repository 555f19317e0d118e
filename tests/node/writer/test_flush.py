"""Committing and flushing: what is reached when, and what an error of the disk does."""

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.runtime import disk
from node.runtime.settings import SYNC_FLUSH, Settings
from node.writer.log.commit_log import CommitLog, FlushJob, make_pool
from node.writer.log.flush import FlushServices, JobThread

SEGMENT_BYTES = 256 * 1024
DEADLINE_S = 60


class SlowDisk:
    """`os` as node/runtime/disk.py sees it, with a gate before some of its calls."""

    def __init__(self, *gated: str) -> None:
        self.gate = threading.Event()
        self.calls: list[str] = []
        self._gated = gated

    def __getattr__(self, name: str) -> object:
        real: Callable[..., object] = getattr(os, name)
        if name not in self._gated:
            return real

        def call(*arguments: object) -> object:
            self.calls.append(name)
            assert self.gate.wait(DEADLINE_S)
            return real(*arguments)

        return call


class Bench:
    """A log with its services, and a clock of its own."""

    def __init__(self, root: Path, settings: Settings) -> None:
        for folder in ("commitlog", "keelog/run"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self.now = 1000.0
        self.root = root
        self.log = CommitLog(root, SEGMENT_BYTES, 0, make_pool(settings))
        self.log.open_tail()
        self.saved: list[int] = []
        self.services = FlushServices(self.log, settings, self.now, self._after_flush)

    def _after_flush(self, target: int) -> Callable[[], None]:
        return lambda: self.saved.append(target)

    def append(self, size: int, byte: bytes = b"x") -> None:
        self.log.make_room(size)
        self.log.append(byte * size)
        self.services.wake()

    def turn(self, later_s: float = 0.0, is_waited_for: bool = False) -> None:
        self.now += later_s
        self.services.collect(self.now)
        self.services.begin(self.now, is_waited_for)

    def until(self, condition: Callable[[], bool]) -> None:
        """Waits for the threads, at a clock that stands still."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            self.services.collect(self.now)
            time.sleep(0.001)

    def stored(self) -> bytes:
        return (self.root / "commitlog" / f"{0:020d}").read_bytes()

    def close(self) -> None:
        self.services.close()
        self.log.close(unlink_next=True)


def make(root: Path, **settings: object) -> Bench:
    return Bench(root, Settings(mapped_file_size_commit_log=SEGMENT_BYTES, **settings))  # type: ignore[arg-type]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    """fdatasync waits for the gate."""
    double = SlowDisk("fdatasync")
    monkeypatch.setattr(disk, "os", double)
    yield double
    double.gate.set()


def test_sync_flush_begins_at_once_and_what_comes_meanwhile_shares_the_next(
    tmp_path: Path, slow: SlowDisk
) -> None:
    bench = make(tmp_path, flush_disk_type=SYNC_FLUSH)
    bench.append(100)
    bench.turn()
    for _ in range(50):
        bench.append(10)
        bench.turn()
    slow.gate.set()
    bench.until(lambda: bench.services.flushed == 100)
    bench.turn()
    bench.until(lambda: bench.services.flushed == 600)
    assert bench.services.is_done
    assert bench.saved == [100, 600]
    bench.close()


def test_async_flush_waits_for_four_pages_and_the_interval(tmp_path: Path) -> None:
    bench = make(tmp_path)
    bench.append(4 * 4096 - 1)
    bench.turn(0.5)
    bench.append(1)
    bench.turn(0.4)
    assert bench.saved == []
    bench.turn(0.1)
    bench.until(lambda: bench.services.is_done)
    bench.append(1)
    for _ in range(18):
        bench.turn(0.5)
    assert not bench.services.is_done
    bench.turn(0.5)
    bench.until(lambda: bench.services.is_done)
    assert bench.saved == [4 * 4096, 4 * 4096 + 1]
    bench.close()


def test_one_who_waits_for_the_disk_gets_a_flush_in_every_mode(tmp_path: Path) -> None:
    for number, pool in enumerate((False, True)):
        bench = make(tmp_path / str(number), transient_store_pool_enable=pool)
        bench.append(1)
        bench.turn(is_waited_for=True)
        bench.until(lambda: bench.log.committed == 1)  # noqa: B023  (called at once)
        bench.turn(is_waited_for=True)
        bench.until(lambda: bench.services.flushed == 1)  # noqa: B023
        assert (bench.log.end, bench.log.committed, bench.services.is_done) == (1, 1, True)
        bench.close()


def test_with_a_pool_bytes_go_to_memory_then_the_segment_then_the_disk(tmp_path: Path) -> None:
    bench = make(tmp_path, transient_store_pool_enable=True)
    bench.append(100, b"a")
    bench.append(100, b"b")
    bench.turn()
    assert (bench.log.end, bench.log.committed, bench.services.flushed) == (200, 0, 0)
    assert not bench.stored().strip(b"\0")
    bench.turn(0.2)
    bench.until(lambda: bench.log.committed == 200)
    assert bench.stored().rstrip(b"\0") == b"a" * 100 + b"b" * 100
    assert bench.services.flushed == 0
    bench.append(50, b"c")
    bench.turn(9.8)
    bench.until(lambda: bench.services.flushed >= 200)
    assert bench.saved == [200], "only what was committed is flushed"
    bench.close()


def test_a_commit_wakes_the_flush_when_it_is_not_timed(tmp_path: Path) -> None:
    settings = {"flush_commit_log_timed": False, "flush_commit_log_least_pages": 0}
    bench = make(tmp_path, transient_store_pool_enable=True, **settings)
    bench.append(100)
    bench.turn(0.2)
    bench.until(lambda: bench.log.committed == 100)
    bench.turn()
    bench.until(lambda: bench.services.flushed == 100)
    assert bench.services.is_done, "no other turn was due"
    bench.close()


def test_a_slow_write_fills_the_pool_and_then_holds_up_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(tmp_path, transient_store_pool_enable=True, transient_store_pool_size=1)
    pool = bench.log.pool
    assert pool is not None and pool.limit_bytes == SEGMENT_BYTES
    double = SlowDisk("pwrite")
    monkeypatch.setattr(disk, "os", double)
    bench.append(100_000, b"a")
    bench.turn(0.2)
    bench.append(100_000, b"b")
    assert bench.log.committed == 0
    assert pool.used_bytes == 200_000
    assert not pool.fits(100_000)
    opener = threading.Timer(0.05, double.gate.set)
    opener.start()
    bench.services.wait_for_buffer(100_000, bench.now)
    opener.join()
    assert bench.log.committed >= 100_000
    assert pool.fits(100_000)
    bench.append(50_000, b"c")
    bench.services.wait_for_buffer(200_000, bench.now)
    assert bench.log.committed == 250_000
    assert pool.used_bytes == 0
    assert bench.stored()[:250_000] == b"a" * 100_000 + b"b" * 100_000 + b"c" * 50_000
    bench.close()


def test_the_pool_goes_over_the_end_of_a_segment(tmp_path: Path) -> None:
    bench = make(tmp_path, transient_store_pool_enable=True)
    for number in range(30):
        bench.append(20_000, bytes([65 + number]))
    bench.turn(0.2)
    bench.until(lambda: bench.log.committed == bench.log.end)
    bench.turn(is_waited_for=True)
    bench.until(lambda: bench.services.is_done)
    first = bench.stored()
    assert first[:260_000] == b"".join(bytes([65 + n]) * 20_000 for n in range(13))
    assert int.from_bytes(first[260_000:260_004], "big") == SEGMENT_BYTES - 260_000
    second = (tmp_path / "commitlog" / f"{SEGMENT_BYTES:020d}").read_bytes()
    assert second[:40_000] == b"N" * 20_000 + b"O" * 20_000
    bench.close()


def test_the_pool_counts_in_async_flush_only(tmp_path: Path) -> None:
    assert make_pool(Settings()) is None
    both = Settings(flush_disk_type=SYNC_FLUSH, transient_store_pool_enable=True)
    assert make_pool(both) is None
    pool = make_pool(Settings(transient_store_pool_enable=True))
    assert pool is not None and pool.limit_bytes == 5 * 8 * 1024 * 1024


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_the_first_error_of_a_commit_or_flush_is_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    class Broken(SlowDisk):
        def __getattr__(self, name: str) -> object:
            if name == call:
                return self.fail
            return getattr(os, name)

        def fail(self, *_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    bench = make(tmp_path, transient_store_pool_enable=True)
    monkeypatch.setattr(disk, "os", Broken())
    bench.append(100)
    with pytest.raises(OSError) as caught:
        for _ in range(1_000):
            bench.turn(is_waited_for=True)
            time.sleep(0.005)
    assert caught.value.errno == errno.EIO
    assert bench.saved == []
    monkeypatch.undo()
    bench.close()


def test_what_comes_after_a_flush_runs_only_when_it_succeeded() -> None:
    ran: list[str] = []
    thread: JobThread[FlushJob] = JobThread("flush")
    descriptor = os.memfd_create("log")
    thread.start(FlushJob(7, [descriptor]), lambda: ran.append("after"))
    thread.wait()
    done = thread.collect()
    assert done is not None and done.target == 7
    assert ran == ["after"]
    os.close(descriptor)
    thread.start(FlushJob(9, [descriptor]), lambda: ran.append("never"))
    thread.wait()
    with pytest.raises(OSError) as caught:
        thread.collect()
    assert caught.value.errno == errno.EBADF
    assert ran == ["after"]
    thread.close()


def test_a_job_is_collected_once_and_its_descriptor_is_quiet_afterwards() -> None:
    thread: JobThread[FlushJob] = JobThread("flush")
    ready = select.poll()
    ready.register(thread.fd, select.POLLIN)
    for number in range(500):
        assert not thread.is_busy
        thread.start(FlushJob(number, []))
        assert thread.is_busy
        while (done := thread.collect()) is None:
            # Half of them are collected as soon as they have ended, whoever is first.
            if number % 2:
                ready.poll(10_000)
        assert done.target == number
        assert thread.collect() is None
        assert ready.poll(0) == [], "it wakes nobody for a job that is collected"
    thread.close()
