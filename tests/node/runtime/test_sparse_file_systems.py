"""Space on a file system that cannot reserve it: no bytes are written, one warning is logged."""

import errno
import os
from pathlib import Path

import pytest

from node.runtime import disk

SIZE = 64 << 20


@pytest.fixture
def descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(disk, "_can_reserve", lambda _: False)
    monkeypatch.setattr(disk, "_said_of", set())
    return disk.open_file(tmp_path / "file", create=True)


def test_a_file_is_sparse_then_and_the_log_says_so_once(
    descriptor: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk.allocate(descriptor, SIZE)
    disk.write_all(descriptor, b"x", 5)
    disk.allocate(descriptor, SIZE)
    disk.allocate(descriptor, 10)
    status = os.fstat(descriptor)
    assert status.st_size == SIZE
    assert status.st_blocks * 512 < SIZE
    assert os.pread(descriptor, 1, 5) == b"x"
    (said,) = [record for record in caplog.records if "cannot reserve" in record.getMessage()]
    assert said.fields["file_system"]  # type: ignore[attr-defined]
    os.close(descriptor)


def test_without_room_it_is_refused_as_it_is_elsewhere(descriptor: int) -> None:
    with pytest.raises(OSError, match="No space left") as refused:
        disk.allocate(descriptor, 1 << 60)
    assert refused.value.errno == errno.ENOSPC
    assert refused.value.filename
    assert os.fstat(descriptor).st_size == 0
    os.close(descriptor)


def test_a_file_system_that_reserves_is_asked_first(tmp_path: Path) -> None:
    descriptor = disk.open_file(tmp_path / "file", create=True)
    assert disk._can_reserve(descriptor)
    os.close(descriptor)
