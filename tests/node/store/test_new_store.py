"""How a store is made, and what is left alone."""

from pathlib import Path

import pytest

from node.runtime.locks import StoreLock
from node.runtime.process import check_created
from node.store.identity.places import create_store
from protocol.errors import NotAStore, StoreLocked


def test_a_new_store_has_its_folders_and_its_lock(tmp_path: Path) -> None:
    root = tmp_path / "a/b"
    create_store(root)
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
    assert names == ["commitlog", "keelog", "keelog/run", "lock"]
    assert (root / "keelog/run").stat().st_mode & 0o777 == 0o700
    check_created(root)


def test_a_store_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    create_store(tmp_path)
    (tmp_path / "keelog/run").chmod(0o755)
    numbers = {path: path.stat().st_ino for path in tmp_path.rglob("*")}
    create_store(tmp_path)
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*")} == numbers
    assert (tmp_path / "keelog/run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("steps", range(4))
def test_a_making_that_was_killed_can_be_repeated(tmp_path: Path, steps: int) -> None:
    root = tmp_path / "store"
    for part in ("", "commitlog", "keelog", "keelog/run")[: steps + 1]:
        (root / part).mkdir()
    with pytest.raises(NotAStore, match="only keelog serve makes it"):
        check_created(root)
    create_store(root)
    check_created(root)


def test_nothing_is_made_in_a_store_that_somebody_else_runs(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    lock = StoreLock.acquire(tmp_path, flock=False)  # as a broker does
    with pytest.raises(StoreLocked):
        create_store(tmp_path)
    lock.release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commitlog", "lock"]


def test_a_lock_is_not_made_where_nobody_asked_for_it(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="only keelog serve makes it"):
        StoreLock.acquire(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []
