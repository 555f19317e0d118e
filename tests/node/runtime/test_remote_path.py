"""A path of a listing answers as the path of the folder would."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from node.runtime.store_paths import RemotePath, Snapshot, path_in, remote_path, scan
from node.store.log.segments import list_folder

ROOT = "s3://bucket/a store"
FILES = {"commitlog/00": 3, "commitlog/20": 0, "config/x/y.json": 5, "abort": 0}
BELOW = ("commitlog", "abort", "config/x", "none", "config/x/y.json", "index")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Any]:
    """A folder, and the same as a listing."""
    for below, size in (
        ("commitlog/00", 3),
        ("commitlog/20", 0),
        ("config/x/y.json", 5),
        ("abort", 0),
    ):
        path = tmp_path / below
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    (tmp_path / "index").mkdir()
    snapshot = Snapshot(lambda below: (tmp_path / below).open("rb"))
    for path in tmp_path.rglob("*"):
        below = str(path.relative_to(tmp_path))
        if path.is_dir():
            snapshot.add_folder(below)
        else:
            snapshot.add(below, path.stat().st_size)
    return tmp_path, remote_path(ROOT, snapshot)


@pytest.mark.parametrize(
    "below", ["commitlog", "abort", "config/x", "none", "config/x/y.json", "index"]
)
def test_what_is_there_is_there(pair: tuple[Path, Any], below: str) -> None:
    near, far = (root / below for root in pair)
    for ask in ("exists", "is_dir", "is_file"):
        assert getattr(far, ask)() == getattr(near, ask)(), ask
    assert (far.name, str(far)) == (near.name, f"{ROOT}/{below}")
    if near.is_file():
        assert far.stat().st_size == near.stat().st_size
        assert far.read_bytes() == near.read_bytes()
    if near.is_dir():
        entries = [(entry.name, entry.is_file, entry.size) for entry in scan(near)]
        assert [(entry.name, entry.is_file, entry.size) for entry in scan(far)] == entries
        assert sorted(path.name for path in far.iterdir()) == sorted(os_names(near))


def os_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_what_is_not_there_says_so_as_a_folder_does(pair: tuple[Path, Any]) -> None:
    for root in pair:
        with pytest.raises(FileNotFoundError):
            (root / "none").read_bytes()
        with pytest.raises(FileNotFoundError):
            scan(root / "none")
        assert list_folder(root / "none").files == []


def test_paths_are_equal_by_address(pair: tuple[Path, Any]) -> None:
    _, far = pair
    text = str(far / "commitlog" / "00")
    assert path_in(ROOT, text) == far / "commitlog" / "00"
    assert hash(path_in(ROOT, text)) == hash(far / "commitlog" / "00")
    assert path_in(ROOT, ROOT) == far
    assert cast(RemotePath, path_in(ROOT, text)).parent == far / "commitlog"
    assert path_in("/a", "/a/b") == Path("/a/b")


def test_a_listing_misses_the_file_that_is_deleted_meanwhile_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes while readers list: for an empty folder a look-up would find no message,
    and would not say that it looked nowhere."""
    for name in ("00", "20", "40"):
        (tmp_path / name).write_bytes(b"log")
    really = os.scandir

    @contextmanager
    def listed_then_deleted(folder: Path) -> Iterator[list["os.DirEntry[str]"]]:
        with really(folder) as entries:
            found = list(entries)
        (tmp_path / "20").unlink(missing_ok=True)
        yield found

    monkeypatch.setattr(os, "scandir", listed_then_deleted)
    assert [entry.name for entry in scan(tmp_path)] == ["00", "40"]
