"""When the log is flushed, and what an error of the disk does."""

import errno
import os
import time

import pytest

from node.commit_log import FlushJob
from node.flush import PAGE_BYTES, Flusher, FlushState, due
from node.store.settings import SYNC_FLUSH, Settings

ASYNC = Settings()
SYNC = Settings(flush_disk_type=SYNC_FLUSH)


def state(dirty_bytes: int, waiting: bool = False) -> FlushState:
    return FlushState(dirty_bytes, 0, last_flush_at=100.0, last_thorough_at=100.0, waiting=waiting)


def test_nothing_new_is_never_flushed() -> None:
    assert not due(state(0, waiting=True), 1_000.0, SYNC)


def test_sync_flush_is_due_at_once() -> None:
    assert due(state(1), 100.0, SYNC)


def test_async_flush_waits_for_the_interval_and_for_four_pages() -> None:
    assert not due(state(4 * PAGE_BYTES), 100.4, ASYNC)
    assert due(state(4 * PAGE_BYTES), 100.5, ASYNC)
    assert not due(state(4 * PAGE_BYTES - 1), 100.5, ASYNC)


def test_async_flush_takes_everything_every_ten_seconds() -> None:
    assert not due(state(1), 109.9, ASYNC)
    assert due(state(1), 110.0, ASYNC)


def test_one_who_waits_for_the_disk_gets_a_flush_in_async_mode_too() -> None:
    assert due(state(1, waiting=True), 100.0, ASYNC)


def collect(flusher: Flusher) -> FlushJob:
    for _ in range(1_000):
        done = flusher.collect()
        if done is not None:
            return done
        time.sleep(0.005)
    raise AssertionError("no flush came back")


def test_what_comes_after_a_flush_runs_only_when_it_succeeded(tmp_path: object) -> None:
    ran: list[str] = []
    flusher = Flusher()
    descriptor = os.memfd_create("log")
    flusher.start(FlushJob(7, [descriptor]), lambda: ran.append("after"))
    assert collect(flusher).target == 7
    assert ran == ["after"]
    os.close(descriptor)
    flusher.start(FlushJob(9, [descriptor]), lambda: ran.append("never"))
    with pytest.raises(OSError) as caught:
        collect(flusher)
    assert caught.value.errno == errno.EBADF
    assert ran == ["after"]
    flusher.close()
