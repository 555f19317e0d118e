"""Which directories a supervisor takes, and when it waits for an earlier node's processes."""

import fcntl
from pathlib import Path

import pytest

from node.store.condition import check_is_store
from node.supervisor.before_start import open_directory, remove_old_pages, wait_for_orphans
from protocol.errors import NotAStore, StoreLocked


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    open_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_store_and_an_empty_directory_are_taken(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    open_directory(tmp_path)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "other").write_text("x")
    open_directory(tmp_path)
    assert (tmp_path / "other").read_text() == "x"


def test_a_file_is_no_store(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for path in (file, file / "below"):
        with pytest.raises(NotAStore):
            open_directory(path)
    assert file.read_text() == "x"


def test_a_directory_with_other_things_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("x")
    with pytest.raises(NotAStore, match="letter"):
        open_directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("name", ["index", "config"])
def test_a_folder_that_is_merely_named_like_one_of_a_store_is_no_store(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "lock").write_text("")
    with pytest.raises(NotAStore, match="other things than a store"):
        open_directory(tmp_path)


def test_a_start_that_was_killed_behind_its_lock_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("lock")
    open_directory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_the_processes_of_an_earlier_node_are_waited_for(tmp_path: Path) -> None:
    wait_for_orphans(tmp_path, 0.0)
    lock = tmp_path / "keelog" / "run" / "index.lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked, match="index"):
            wait_for_orphans(tmp_path, 0.1)
    wait_for_orphans(tmp_path, 0.0)


def test_pages_of_workers_that_are_no_more_are_removed(tmp_path: Path) -> None:
    run = tmp_path / "keelog" / "run"
    run.mkdir(parents=True)
    names = ("log", "index", "queue-0-of-2", "queue-0-of-1", "reader-0", "reader-1")
    for name in names:
        (run / f"{name}.page").touch()
    remove_old_pages(tmp_path, {"log", "index", "queue-0-of-1", "reader-0"})
    left = {path.stem for path in run.iterdir()}
    assert left == {"log", "index", "queue-0-of-1", "reader-0"}


def test_a_checkout_of_the_project_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "keelog").mkdir()
    (tmp_path / "keelog/__init__.py").touch()
    with pytest.raises(NotAStore):
        open_directory(tmp_path)
    with pytest.raises(NotAStore):
        check_is_store(tmp_path)
