"""Segments of the log: their space is there beforehand, and a full disk leaves nothing behind."""

import errno
import os
import time
from pathlib import Path

import pytest

from node.writer.log.commit_log import CommitLog
from protocol.errors import ServiceNotAvailable
from protocol.record.codec import MAGIC_FILLER

SEGMENT_BYTES = 16 * 1024


def open_log(root: Path, end: int = 0) -> CommitLog:
    (root / "commitlog").mkdir(parents=True, exist_ok=True)
    (root / "keelog/run").mkdir(parents=True, exist_ok=True)
    log = CommitLog(root, SEGMENT_BYTES, end)
    log.open_tail()
    return log


def names(root: Path) -> list[int]:
    return sorted(int(path.name) for path in (root / "commitlog").iterdir())


def test_every_segment_has_all_its_blocks_before_it_is_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(b"x" * 100)
    log.close(unlink_next=False)
    for path in (tmp_path / "commitlog").iterdir():
        status = path.stat()
        assert status.st_size == SEGMENT_BYTES
        assert status.st_blocks * 512 >= SEGMENT_BYTES


def test_a_full_segment_ends_with_a_filler_that_says_what_is_left(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(b"x" * (SEGMENT_BYTES - 100))
    log.make_room(93)
    log.close(unlink_next=True)
    tail = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[-100:]
    assert tail == (100).to_bytes(4, "big") + MAGIC_FILLER.to_bytes(4, "big") + bytes(92)
    assert log.end == SEGMENT_BYTES


def test_a_request_that_leaves_exactly_eight_bytes_fits(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.make_room(SEGMENT_BYTES - 8)
    assert log.end == 0
    log.make_room(SEGMENT_BYTES - 7)
    assert log.end == SEGMENT_BYTES
    log.close(unlink_next=True)


def test_a_clean_stop_takes_the_unused_next_segment_away(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(b"x")
    log.close(unlink_next=True)
    assert names(tmp_path) == [0]


def test_a_full_disk_refuses_and_leaves_no_partial_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_descriptor: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    log = open_log(tmp_path)
    log.append(b"x" * (SEGMENT_BYTES - 100))
    log.make_room(500)
    log.append(b"y" * (SEGMENT_BYTES - 100))
    end = log.end
    while not log.retry_next():
        time.sleep(0.001)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", no_room)
        log.make_room(500)
        log.append(b"z" * (SEGMENT_BYTES - 100))
        end = log.end
        for _ in range(2):
            with pytest.raises(ServiceNotAvailable, match="disk_full"):
                log.make_room(500)
        assert log.end == end
        assert log.lacks_next
        assert not log.retry_next()
        assert names(tmp_path) == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    assert log.retry_next()
    log.make_room(500)
    assert log.end == 3 * SEGMENT_BYTES
    log.close(unlink_next=True)


def test_older_segments_are_flushed_before_the_newer_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(b"x" * (SEGMENT_BYTES - 100))
    log.make_room(500)
    log.append(b"y")
    job = log.flush_job()
    paths = [Path(f"/proc/self/fd/{fd}").readlink().name for fd in job.descriptors]
    assert paths == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    assert job.target == log.end
    log.flushed_to(job.target)
    assert len(log.flush_job().descriptors) == 1
    log.close(unlink_next=True)
