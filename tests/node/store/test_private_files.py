"""What a store's files and folders allow, and to whom."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime import disk
from node.runtime.locks import StoreLock
from node.supervisor.before_start import open_to_others


@pytest.fixture(autouse=True)
def mask() -> Iterator[None]:
    """A umask that forbids nothing: what is asked for is what there is."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_for_its_owner_alone_each_folder_above_too(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    disk.make_dir(folder)
    disk.make_durable_dir(folder / "d")
    disk.write_atomically(folder / "file", b"x")
    os.close(disk.open_file(folder / "other", create=True))
    made = sorted((tmp_path / "a").rglob("*"))
    assert len(made) == 5
    assert {path.name: mode(path) for path in [tmp_path / "a", *made]} == {
        **dict.fromkeys("abcd", 0o700),
        **dict.fromkeys(("file", "other"), 0o600),
    }


def test_what_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "file").touch(0o644)
    disk.make_dir(tmp_path / "a" / "b")
    os.close(disk.open_file(tmp_path / "a" / "file", create=True))
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "file")) == (0o755, 0o644)


@pytest.mark.parametrize(
    ("before", "after"),
    [(0o644, 0o600), (0o664, 0o660), (0o666, 0o666), (0o640, 0o600), (0o660, 0o660)],
)
def test_who_may_not_write_the_lock_may_not_open_it(
    tmp_path: Path, before: int, after: int
) -> None:
    (tmp_path / "lock").touch(before)
    StoreLock.acquire(tmp_path).release()
    assert mode(tmp_path / "lock") == after


def test_a_new_lock_is_for_its_owner_alone(tmp_path: Path) -> None:
    StoreLock.acquire(tmp_path).release()
    assert mode(tmp_path / "lock") == 0o600


def store(root: Path, *open_: str, root_mode: int = 0o755) -> Path:
    root.mkdir()
    for name in ("commitlog", "config", "keelog"):
        (root / name).mkdir(mode=0o755 if name in open_ else 0o700)
    (root / "checkpoint").touch(0o644 if "checkpoint" in open_ else 0o600)
    (root / "lost+found").mkdir(mode=0o755)
    root.chmod(root_mode)
    return root


def test_the_first_open_path_of_a_store_is_found(tmp_path: Path) -> None:
    assert open_to_others(store(tmp_path / "a", "config", "commitlog")) == tmp_path / "a/commitlog"
    assert open_to_others(store(tmp_path / "b", "checkpoint")) == tmp_path / "b/checkpoint"


def test_a_store_that_is_closed_or_in_a_closed_folder_is_not_open(tmp_path: Path) -> None:
    assert open_to_others(store(tmp_path / "a")) is None
    assert open_to_others(store(tmp_path / "b", "commitlog", root_mode=0o700)) is None


def test_an_open_folder_behind_a_link_is_found(tmp_path: Path) -> None:
    root = store(tmp_path / "a", root_mode=0o700)
    (tmp_path / "large").mkdir(mode=0o755)
    (root / "consumequeue").symlink_to(tmp_path / "large")
    assert open_to_others(root) == root / "consumequeue"
