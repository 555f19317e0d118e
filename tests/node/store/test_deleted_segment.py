"""A segment that retention unlinks while somebody reads it: the map stays, the list lets it go."""

from pathlib import Path

import pytest

from node.store.file_cache import OpenFiles
from node.store.log.segments import SegmentList, list_folder
from protocol.errors import StoreDamaged
from protocol.names import COMMIT_LOG_DIR, offset_file_name

SEGMENT_BYTES = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / COMMIT_LOG_DIR
    folder.mkdir()
    for number in range(4):
        path = folder / offset_file_name(number * SEGMENT_BYTES)
        path.write_bytes(bytes([number]) * SEGMENT_BYTES)
    return folder


def test_what_was_taken_from_a_segment_outlives_its_name(folder: Path) -> None:
    files = OpenFiles()
    segments = SegmentList(folder, list_folder(folder), files)
    first = segments.segments[0]
    view = first.view()[10:20]
    first.path.unlink()
    assert bytes(view) == bytes(10)
    segments.refresh(SEGMENT_BYTES)
    assert bytes(view) == bytes(10), "a map lives as long as somebody holds a part of it"
    assert segments.start == SEGMENT_BYTES
    files.close()


def test_a_list_made_while_segments_go_has_no_gap(folder: Path) -> None:
    """The begin is published before the first file goes, and files may go in any order to us."""
    files = OpenFiles()
    segments = SegmentList(folder, list_folder(folder), files)
    segments.segments[1].path.unlink()
    with pytest.raises(StoreDamaged, match="missing"):
        segments.refresh()
    segments.refresh(2 * SEGMENT_BYTES)
    assert (segments.start, segments.end) == (2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES)
    files.close()


def test_a_deleted_segments_space_is_given_back_at_the_next_look(folder: Path) -> None:
    files = OpenFiles()
    segments = SegmentList(folder, list_folder(folder), files)
    path = segments.segments[0].path
    segments.segments[0].view()
    path.unlink()
    segments.refresh(SEGMENT_BYTES)
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert f"{path} (deleted)" not in map(str, links)
    files.close()
