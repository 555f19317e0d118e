"""Zeros ahead of the log's end: they come where nothing stands, and nowhere else."""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.runtime import disk
from node.runtime.settings import SYNC_FLUSH, Settings
from node.writer.log.ahead import (
    PAGE_BYTES,
    SEGMENT_BYTES_MIN,
    ZEROS_AHEAD_BYTES,
    ZEROS_SYNC_BYTES,
    ZeroPrefill,
    make_ahead,
)
from tests.support.rolling_log import check_that_it_rolls, claim

SEGMENT_BYTES = 16 << 20
DIRT = b"\xee"
WAIT_S = 60.0


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.001)


def make_file(path: Path) -> int:
    """A segment that is dirt all over, so that zeros show."""
    path.write_bytes(DIRT * SEGMENT_BYTES)
    return os.open(path, os.O_RDWR)


@pytest.fixture
def ahead() -> Iterator[ZeroPrefill]:
    made = ZeroPrefill()
    yield made
    made.close()


def zeroed_to(path: Path, start: int) -> int:
    """Where the zeros end that begin at `start`."""
    rest = path.read_bytes()[start:]
    return start + len(rest) - len(rest.lstrip(b"\0"))


def test_zeros_reach_so_far_ahead_and_leave_the_logs_last_page(
    ahead: ZeroPrefill, tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    os.close(make_file(path))
    ahead.begin(path, SEGMENT_BYTES, 100)
    least = 100 + ZEROS_AHEAD_BYTES - ZEROS_SYNC_BYTES
    until(lambda: zeroed_to(path, PAGE_BYTES) >= least)
    ahead.close()
    data = path.read_bytes()
    assert data[:PAGE_BYTES] == DIRT * PAGE_BYTES
    assert data[100 + ZEROS_AHEAD_BYTES :] == DIRT * (SEGMENT_BYTES - 100 - ZEROS_AHEAD_BYTES)


def test_what_is_appended_is_never_overwritten(ahead: ZeroPrefill, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    descriptor = make_file(path)
    dice = random.Random(4)
    ahead.begin(path, SEGMENT_BYTES, 0)
    written = bytearray()
    while len(written) < SEGMENT_BYTES - (1 << 20):
        part = dice.randbytes(dice.choice([1, 300, 5000, 200_000, 900_000]))
        claim(ahead, len(written) + len(part))
        disk.write_all(descriptor, part, len(written))
        written += part
    ahead.close()
    os.close(descriptor)
    assert path.read_bytes()[: len(written)] == written


def test_an_append_waits_for_zeros_on_their_way_to_its_place(
    ahead: ZeroPrefill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(descriptor: int, data: bytes, position: int) -> None:
        begun.set()
        assert may_end.wait(WAIT_S)

    monkeypatch.setattr(disk, "write_all", slow)
    path = tmp_path / "segment"
    os.close(make_file(path))
    ahead.begin(path, SEGMENT_BYTES, 0)
    assert begun.wait(WAIT_S)
    claimed = threading.Event()

    def append() -> None:
        claim(ahead, 1)
        claimed.set()

    claiming = threading.Thread(target=append)
    claiming.start()
    assert not claimed.wait(0.05)
    may_end.set()
    assert claimed.wait(WAIT_S)
    claiming.join()


def test_after_a_roll_zeros_go_to_the_new_segment_alone(ahead: ZeroPrefill, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        os.close(make_file(path))
    ahead.begin(old, SEGMENT_BYTES, SEGMENT_BYTES - PAGE_BYTES)
    ahead.begin(new, SEGMENT_BYTES, 0)
    until(lambda: zeroed_to(new, 0) >= ZEROS_AHEAD_BYTES - ZEROS_SYNC_BYTES)
    assert old.read_bytes()[:-PAGE_BYTES] == DIRT * (SEGMENT_BYTES - PAGE_BYTES)


def test_a_disk_that_takes_no_zeros_stops_them_and_no_append(
    ahead: ZeroPrefill, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead.begin(tmp_path / "missing", SEGMENT_BYTES, 0)
    until(lambda: "no zeros ahead" in caplog.text)
    claim(ahead, SEGMENT_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_log_rolls_and_closes_with_zeros_ahead(tmp_path: Path) -> None:
    check_that_it_rolls(tmp_path, SEGMENT_BYTES, ZeroPrefill(), 3)


def test_small_segments_get_no_zeros(tmp_path: Path) -> None:
    settings = Settings(flush_disk_type=SYNC_FLUSH)
    assert make_ahead(tmp_path, SEGMENT_BYTES_MIN - 1, settings) is None
