"""What a process of a node finds out about its store's directory, and what it then refuses."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.runtime import disk, store_paths
from node.runtime.locks import FileLock
from node.runtime.process import EXIT_MOVED, end_badly, exit_code
from node.runtime.state_page import WorkerPage
from node.runtime.store_paths import HeldStore, check_held, hold_store, is_in_place
from node.store.config.topics_file import TopicsFile
from node.store.file_cache import OpenFile
from node.store.identity.places import create_store
from node.store.queues import list_topics
from protocol.errors import NotAStore, StoreError, StoreMoved


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create_store(tmp_path / "above/store")
    return tmp_path / "above/store"


@pytest.fixture
def held(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldStore]:
    """As in a process of a node."""
    monkeypatch.setattr(store_paths, "_held", None)
    found = hold_store(root)
    yield found
    found.close()


def test_a_store_that_stays_is_in_place_whatever_its_files_do(held: HeldStore) -> None:
    (held.root / "keelog/epochs").write_text("x")
    held.root.chmod(0o700)
    held.check()
    assert is_in_place()


def moved(root: Path) -> None:
    root.rename(root.with_name("away"))


def replaced(root: Path) -> None:
    moved(root)
    shutil.copytree(root.with_name("away"), root)


def parent_moved(root: Path) -> None:
    root.parent.rename(root.parent.with_name(f"{root.parent.name}-away"))


def without_lock(root: Path) -> None:
    (root / "lock").unlink()


def with_another_lock(root: Path) -> None:
    (root / "lock").rename(root / "old")
    (root / "lock").write_text("lock")


def a_file_above(root: Path) -> None:
    parent_moved(root)
    root.parent.write_text("x")


@pytest.mark.parametrize(
    ("go", "says"),
    [
        (moved, ": the directory was moved to {parent}/away"),
        (replaced, ": the directory was moved to {parent}/away; another directory is there now"),
        (shutil.rmtree, ": the directory was removed"),
        (parent_moved, ": the directory was moved to {parent}-away/store"),
        (a_file_above, ": the directory was moved to {parent}-away/store"),
        (without_lock, "/lock: the file was removed or replaced"),
        (with_another_lock, "/lock: the file was removed or replaced"),
    ],
)
def test_the_error_says_what_became_of_the_directory(
    held: HeldStore, go: Callable[[Path], None], says: str
) -> None:
    go(held.root)
    with pytest.raises(StoreMoved) as caught:
        held.check()
    assert caught.value.reason == f"{held.root}{says.format(parent=held.root.parent)}"
    assert "stop the node" in caught.value.hint
    assert not is_in_place()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and unmount")
def test_the_error_knows_unmounting_and_mounting_over(root: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none"]
    if subprocess.run([*mount, str(volume)], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    create_store(volume / "below")
    on_volume, plain = HeldStore.open(volume / "below"), HeldStore.open(root)
    subprocess.run(["umount", "-l", str(volume)], check=True)
    subprocess.run([*mount, str(root)], check=True)
    try:
        with pytest.raises(StoreMoved, match=r"below: its file system was unmounted$"):
            on_volume.check()
        with pytest.raises(StoreMoved, match="another file system was mounted over it"):
            plain.check()
    finally:
        subprocess.run(["umount", str(root)], check=True)
        on_volume.close()
        plain.close()


def test_a_store_is_known_again_after_it_was_put_back(held: HeldStore) -> None:
    moved(held.root)
    held.root.with_name("away").rename(held.root)
    held.check()


def test_the_place_of_a_held_store_leads_to_it_after_a_move(held: HeldStore) -> None:
    (held.root / "keelog/floor").write_text("mine")
    replaced(held.root)
    assert (held.place / "keelog/floor").read_text() == "mine"
    assert os.statvfs(held.place).f_blocks == os.statvfs(held.root.parent).f_blocks


def test_only_a_directory_with_a_lock_can_be_held(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(NotAStore, match=r"is not a directory|lock is not there"):
            HeldStore.open(path)


def test_a_process_refuses_another_directory_than_its_supervisors(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_paths, "_held", None)
    supervisors = HeldStore.open(root)
    hold_store(root, supervisors.identity).close()
    monkeypatch.setattr(store_paths, "_held", None)
    moved(root)
    with pytest.raises(StoreMoved, match="the directory of this node is not there"):
        hold_store(root, supervisors.identity)
    create_store(root)
    with pytest.raises(StoreMoved, match="another directory is there now"):
        hold_store(root, supervisors.identity)
    supervisors.close()


USES: dict[str, Callable[[Path], object]] = {
    "open": lambda root: disk.open_file(root / "lock"),
    "create": lambda root: disk.open_file(root / "new", create=True),
    "write": lambda root: disk.write_atomically(root / "new", b"x"),
    "rename": lambda root: disk.rename(root / "lock", root / "new"),
    "link": lambda root: disk.link(root / "lock", root / "new"),
    "unlink": lambda root: disk.unlink(root / "lock"),
    "make a folder": lambda root: disk.make_dir(root / "consumequeue/t/0"),
    "make a durable folder": lambda root: disk.make_durable_dir(root / "keelog/progress"),
    "remove a folder": lambda root: disk.remove_dir(root / "keelog/run"),
    "remove a tree": lambda root: disk.remove_tree(root / "keelog"),
    "make a lock": lambda root: FileLock.take(root / "keelog/run/reader-0.lock"),
    "make a page": lambda root: WorkerPage.create(root, "reader-0"),
    "read a file": lambda root: OpenFile(root / "lock", 4),
    "list topics": list_topics,
    "read topics": TopicsFile,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("go", [moved, replaced])
def test_no_name_of_a_store_is_used_after_it_has_moved(
    held: HeldStore, go: Callable[[Path], None], use: Callable[[Path], object]
) -> None:
    go(held.root)
    before = sorted(held.root.parent.rglob("*"))
    with pytest.raises(StoreMoved):
        use(held.root)
    assert sorted(held.root.parent.rglob("*")) == before


def test_folders_are_made_below_a_held_store_and_never_above(
    held: HeldStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.make_dir(held.root / "consumequeue/t/0")
    disk.make_dir(held.root / "consumequeue/t/0")
    with pytest.raises(FileExistsError):
        disk.make_dir(held.root / "consumequeue/t/0", exist_ok=False)
    with pytest.raises(FileExistsError):
        disk.make_dir(held.root / "lock")
    # The directory goes between the look and the making.
    monkeypatch.setattr(HeldStore, "check", lambda self: None)
    shutil.rmtree(held.root)
    with pytest.raises(FileNotFoundError):
        disk.make_dir(held.root / "consumequeue/t/0")
    assert not held.root.exists()


def test_an_error_met_at_the_old_path_is_reported_as_the_move(
    held: HeldStore, capfd: pytest.CaptureFixture[str]
) -> None:
    moved(held.root)
    error = FileNotFoundError(2, "No such file or directory", str(held.root / "commitlog"))
    assert end_badly("the writer stops", error, str(held.root), None) == EXIT_MOVED
    assert "the directory was moved to" in capfd.readouterr().err


def test_a_move_has_an_exit_code_of_its_own_and_is_no_reason_to_try_again() -> None:
    assert exit_code(StoreMoved("/v: the directory was removed")) == EXIT_MOVED
    assert issubclass(StoreMoved, StoreError)
    assert not StoreMoved.retriable


def test_a_process_that_holds_nothing_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_paths, "_held", None)
    check_held()


CHILDREN = {
    "writer": ("node.writer.loop", "--bind", "tcp://127.0.0.1:0"),
    "queue worker": ("workers.consume_queue", "--shard", "0", "--shards", "1"),
    "index worker": ("workers.index_file",),
    "reader": ("node.reader.loop", "--bind", "tcp://127.0.0.1:0"),
}
LACKING = {
    "directory": "",
    "lock": "lock",
    "log": "commitlog",
    "own folder": "keelog",
    "run folder": "keelog/run",
}


@pytest.mark.process
@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN.keys())
@pytest.mark.parametrize("lacking", LACKING.values(), ids=LACKING.keys())
def test_no_child_makes_a_store_or_a_part_of_it(
    root: Path, child: tuple[str, ...], lacking: str
) -> None:
    part = root / lacking
    if part.is_dir():
        shutil.rmtree(part)
    else:
        part.unlink()
    before = sorted(root.parent.rglob("*"))
    module, *options = child
    ended = subprocess.run(
        [sys.executable, "-m", module, str(root), *options],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    assert str(part) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(root.parent.rglob("*")) == before


@pytest.mark.process
@pytest.mark.parametrize("child", CHILDREN.values(), ids=CHILDREN.keys())
def test_a_child_leaves_a_store_alone_that_is_not_its_supervisors(
    root: Path, tmp_path: Path, child: tuple[str, ...]
) -> None:
    create_store(tmp_path / "other")
    other = HeldStore.open(tmp_path / "other")
    before = sorted(root.parent.rglob("*"))
    module, *options = child
    ended = subprocess.run(
        [sys.executable, "-m", module, str(root), *options, "--held", other.identity],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    other.close()
    assert ended.returncode == EXIT_MOVED, ended.stderr
    assert "another directory is there now" in ended.stderr
    assert sorted(root.parent.rglob("*")) == before
