"""What a node says of the segment that goes next."""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.runtime.state_page import LogState
from node.supervisor.status import expiry_s, oldest_ms, retention
from node.writer.log.retention import SegmentFile
from node.writer.removal import deleted_at_ms
from protocol.names import COMMIT_LOG_DIR, offset_file_name

SEGMENT = 4096
EMPTY = LogState(*(0 for _ in LogState._fields))


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(
    ("delete_when", "written", "goes"),
    [
        ("04", "2026-11-20T03:30:10", "2026-11-23T04:00:00"),
        ("04", "2026-11-20T04:30:10", "2026-11-23T04:30:10"),
        ("04", "2026-11-20T05:00:00", "2026-11-24T04:00:00"),
        ("04;16", "2026-11-20T05:00:00", "2026-11-23T16:00:00"),
    ],
)
def test_a_segment_goes_in_the_first_hour_for_it_after_its_time(
    delete_when: str, written: str, goes: str
) -> None:
    settings = Settings(delete_when=delete_when, file_reserved_time=72)
    assert expiry_s(at(written), settings) == at(goes)


@pytest.fixture
def half_an_hour_off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local clock of a zone whose hours do not begin when those of UTC do."""
    with monkeypatch.context() as inner:
        inner.setenv("TZ", "IST-05:30")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("half_an_hour_off")
def test_the_hours_for_it_begin_by_the_local_clock() -> None:
    settings = Settings(delete_when="04", file_reserved_time=72)
    assert expiry_s(at("2026-11-20T03:10:10"), settings) == at("2026-11-23T04:00:00")
    full = [SegmentFile(0, SEGMENT, at("2026-11-20T03:40:10"))]
    goes_ms = deleted_at_ms(full, 0, settings.file_reserved_time, settings)
    assert goes_ms == 1000 * at("2026-11-23T04:00:00")


def segments(root: Path, *starts: int) -> None:
    folder = root / COMMIT_LOG_DIR
    folder.mkdir()
    for start in starts:
        (folder / offset_file_name(start)).write_bytes(bytes(SEGMENT))
    os.utime(folder / offset_file_name(starts[0]), (0, at("2026-11-20T03:30:10")))


def test_the_first_segment_is_named_with_all_that_makes_it_go(tmp_path: Path) -> None:
    segments(tmp_path, 2 * SEGMENT, 3 * SEGMENT, 4 * SEGMENT)
    settings = Settings(retention_bytes=4 * SEGMENT)
    found = retention(tmp_path, settings, EMPTY)
    first = found.next
    assert first is not None
    assert found.oldest_ms is None
    assert (first.start, first.end) == (2 * SEGMENT, 3 * SEGMENT)
    assert first.at_ms == 1000 * at("2026-11-23T04:00:00")
    assert first.growth_bytes == SEGMENT
    assert first.disk_bytes is not None
    assert first.disk_bytes >= 0


def test_what_can_not_happen_is_null(tmp_path: Path) -> None:
    segments(tmp_path, 0, SEGMENT)
    first = retention(tmp_path, Settings(clean_file_forcibly_enable=False), EMPTY).next
    assert first is not None
    assert (first.growth_bytes, first.disk_bytes) == (None, None)


def test_the_last_segment_stays(tmp_path: Path) -> None:
    segments(tmp_path, 0)
    assert retention(tmp_path, Settings(), EMPTY).next is None


def test_a_first_record_that_cannot_be_read_has_no_time(tmp_path: Path) -> None:
    log = EMPTY._replace(readable=100, segment_bytes=SEGMENT)
    (tmp_path / COMMIT_LOG_DIR).mkdir()
    assert oldest_ms(tmp_path, log) is None
    (tmp_path / COMMIT_LOG_DIR / offset_file_name(0)).write_bytes(b"\xff" * SEGMENT)
    assert oldest_ms(tmp_path, log) is None


def test_a_store_whose_directory_is_gone_has_nothing_to_go(tmp_path: Path) -> None:
    assert retention(tmp_path / "removed", Settings(), EMPTY) == (None, None)
