"""Directories that are no store, or a broken one: a typed error says what, where, what to try."""

import os
import shutil
from pathlib import Path

import pytest

from node.runtime import store_paths
from node.store import file_cache
from node.store.file_cache import FileVanished, OpenFiles
from node.store.log.segments import list_folder
from node.store.opening import open_store
from protocol.errors import NotAStore, StoreDamaged, StorePermission
from tests.support.golden import GetStore

LOG = "commitlog"
SECOND = "00000000000000262144"
THIRD = "00000000000000524288"


def test_a_missing_path_a_file_and_an_empty_folder_are_no_stores(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    empty = tmp_path / "empty"
    empty.mkdir()
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / LOG).write_text("x")
    for path in (tmp_path / "nothing", file, empty, odd):
        with pytest.raises(NotAStore) as caught:
            open_store(path)
        assert str(path) in caught.value.reason
        assert caught.value.hint


def test_a_store_without_a_message_opens_empty(tmp_path: Path) -> None:
    (tmp_path / LOG).mkdir()
    with open_store(tmp_path) as store:
        assert (store.log.min_offset, store.log.end) == (0, 0)
        assert store.queues() == []
        assert list(store.log.columns(0)) == []
        assert store.index.query("t", "k") == []


def test_a_missing_segment_is_named(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean-533")
    (root / LOG / SECOND).unlink()
    with pytest.raises(StoreDamaged, match=f"{SECOND} is missing") as caught:
        open_store(root)
    assert caught.value.offset == 524_288
    assert THIRD in caught.value.where
    assert "verify" in caught.value.hint


def test_a_segment_of_a_wrong_length_is_named(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean-533")
    os.truncate(root / LOG / SECOND, 1000)
    with pytest.raises(StoreDamaged, match="has 1000 bytes, the others have 262144") as caught:
        open_store(root)
    assert SECOND in caught.value.where


def test_a_stray_file_beside_the_segments_is_named(golden_copy: GetStore) -> None:
    root = golden_copy("crc32-property")
    (root / LOG / "notes.txt").write_text("x")
    with pytest.raises(StoreDamaged, match="a broker would not load this folder"):
        open_store(root)


def test_an_empty_last_segment_does_not_count(golden_copy: GetStore) -> None:
    root = golden_copy("crc32-property")
    with open_store(root) as store:
        end = store.log.end
    (root / LOG / "00000000000002097152").touch()
    with open_store(root) as store:
        assert store.log.end == end


def test_a_segment_that_was_being_made_does_not_count(golden_copy: GetStore) -> None:
    root = golden_copy("crc32-property")
    with open_store(root) as store:
        end = store.log.end
    unfinished = root / LOG / "00000000000002097152"
    unfinished.write_bytes(bytes(4096))
    with open_store(root) as store:
        assert store.log.end == end
        assert store.unfinished == unfinished
        segments = store.log.segments
        os.truncate(unfinished, 1_048_576)
        segments.refresh()
        assert len(segments.segments) == 3
    unfinished.write_bytes(b"\1" * 4096)
    with pytest.raises(StoreDamaged, match="has 4096 bytes"):
        open_store(root)


def test_a_first_segment_that_was_being_made_gets_its_length(tmp_path: Path) -> None:
    segment = tmp_path / LOG / ("0" * 20)
    segment.parent.mkdir()
    segment.write_bytes(bytes(4096))
    with open_store(tmp_path) as store:
        assert store.log.end == 0
        os.truncate(segment, 1_048_576)
        store.log.segments.refresh()
        assert store.log.segment_bytes == 1_048_576


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_refused_folder_or_file_is_a_matter_of_permission(
    golden: GetStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    root = golden("crc32-property")

    def refuse(*_: object) -> object:
        raise PermissionError(13, "Permission denied")

    module, name = (store_paths, "scandir") if what == "folder" else (file_cache, "open")
    monkeypatch.setattr(module.os, name, refuse)
    with pytest.raises(StorePermission, match="Permission denied") as caught:
        open_store(root)
    assert "owner" in caught.value.hint


def test_a_file_that_shrank_or_vanished_is_an_error_and_not_the_end_of_the_process(
    golden_copy: GetStore,
) -> None:
    root = golden_copy("crc32-property")
    with open_store(root) as store:
        record = store.log.record_at(0)
        assert len(store.log.raw(0, record.size)) == record.size
        os.truncate(root / LOG / "00000000000000000000", 4096)
        with pytest.raises(StoreDamaged, match="has 4096 bytes, 1048576 are expected"):
            store.log.raw(0, record.size)
        with pytest.raises(StoreDamaged, match="has 4096 bytes"):
            store.log.record_at(500_000)
    shutil.rmtree(root / LOG)
    with pytest.raises(FileVanished):
        OpenFiles().get(root / LOG / "00000000000000000000", 1)


def test_the_segments_length_is_what_most_have_and_between_two_what_the_names_say(
    tmp_path: Path,
) -> None:
    for name, size in (("0" * 20, 100), (SECOND, 262_144)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    listing = list_folder(tmp_path)
    assert listing.file_bytes == 262_144
    assert [problem.kind for problem in listing.problems] == ["wrong_length"]


def test_only_so_many_files_are_open_at_once(tmp_path: Path) -> None:
    files = OpenFiles(limit=3)
    views = []
    for number in range(8):
        path = tmp_path / str(number)
        path.write_bytes(bytes([number]) * 10)
        views.append(files.get(path, 10).view())
    assert [bytes(view[:1]) for view in views] == [bytes([number]) for number in range(8)]
    assert len(files._files) == 3
    files.close()
