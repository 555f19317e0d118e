"""What is no regular file in the place of one of a node's own: named, never opened, never followed,
and moved aside by a repair. Also a file that is far too long."""

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from keelog.pipeline.stores.access import StoreAt
from keelog.pipeline.stores.planned_store import check_stores
from keelog.restore import repair
from node.runtime.locks import FileLock
from node.runtime.state_page import LogPage, PageAbsent, WorkerPage
from node.runtime.store_paths import IrregularFile, read_bounded
from node.store.checkpoints import own_dir
from node.store.condition import check_is_store, find_owner
from node.store.opening import open_store
from node.store.verify.verify import verify
from node.supervisor.before_start import open_directory
from node.writer.store import open_writer_store
from protocol.errors import StoreDamaged
from protocol.ids import Host
from tests.support.damaged_store import make_store, read_records
from tests.support.seldom import seldom
from tests.workers.living_log import SETTINGS

HOST = Host(b"\x7f\0\0\1", 9)
NAMED_S = 40.0
"""A second on a machine that does nothing else; for ever where it is waited for a FIFO's end."""
MEMORY_BYTES = 2 << 30
"""Of address space, for a whole process: a file that is read without end takes more."""
SPARSE_BYTES = 10 << 30
OPENERS: dict[str, Callable[[Path], object]] = {
    "supervisor": open_directory,
    "writer": lambda root: open_writer_store(root, SETTINGS, HOST, alone=True),
    "reader": check_is_store,
    "store": lambda root: open_store(root, SETTINGS),
}
FILES = (
    *("lock", "abort", "checkpoint", "config/topics.json", "config/topics.json.bak"),
    *("keelog/floor", "keelog/epochs", "keelog/tails", "keelog/tails.new", "keelog/clean"),
    *("keelog/progress/index", "keelog/run/log.page", "keelog/run/index.lock"),
    *("keelog/run/stats/writer-0", "keelog/run/queue-0-of-1.rebuilding", "keelog/run/following"),
    *("keelog/staging/q/published", "keelog/staging/q/owner", "keelog/staging/q/1/journal"),
)
ANY_LENGTH = ("keelog/staging/q/1/a.stage", "keelog/run/index.bell")
FOLDERS = (
    *("keelog/progress", "keelog/run", "keelog/run/stats", "keelog/staging"),
    *("keelog/quarantine", "keelog/staging/q", "keelog/staging/q/1"),
)
LINKED_FOLDERS = ("keelog", "config")
"""May be links to folders: on volumes of their own."""
OTHERS = ("verify", "repair", "dump")
NO_FILE = ("FIFO", "folder", "link to /dev/zero", "link to another store", "link to nothing")
NO_FOLDER = ("FIFO", "socket", "file", "link to /dev/zero")
CASES = [
    *product(FILES, (*NO_FILE, "socket", "10 GB")),
    *((ANY_LENGTH[0], kind) for kind in (*NO_FILE, "socket")),
    *((ANY_LENGTH[1], kind) for kind in NO_FILE),
    *product(FOLDERS, (*NO_FOLDER, "link to another store", "link to nothing")),
    *product(LINKED_FOLDERS, NO_FOLDER),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, from which each test copies two."""
    return make_store(tmp_path_factory.mktemp("whole") / "store").root


def put(kind: str, path: Path, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts it in the place of what is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "file":
            path.touch()
        case "socket":
            monkeypatch.chdir(path.parent)  # a socket's path is short
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(path.name)
        case "10 GB":
            path.touch()
            os.truncate(path, SPARSE_BYTES)
        case "link to /dev/zero":
            path.symlink_to("/dev/zero")
        case "link to nothing":
            path.symlink_to(other / "nothing")
        case _:
            path.symlink_to(other)


def tree(folder: Path) -> dict[str, object]:
    """What is in a folder; the content of what is short."""
    return {
        str(path.relative_to(folder)): (status.st_mode, status.st_size)
        if status.st_size > 1 << 20 or path.is_symlink() or not path.is_file()
        else path.read_bytes()
        for path in folder.rglob("*")
        for status in [path.lstat()]
    }


def place(
    tmp_path: Path, whole: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A store with something odd in it, and the other store that a link leads to."""
    root, other = tmp_path / "store", tmp_path / "other"
    for copy in (root, other):
        shutil.copytree(whole, copy)
    target = other / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if name in (*FILES, *ANY_LENGTH):
        if not target.exists():
            target.write_bytes(b"of the other store")
    else:
        target.mkdir(exist_ok=True)
    put(kind, root / name, target, monkeypatch)
    return root, other


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.timeout(60)
def test_what_is_no_own_file_is_named_by_all_and_moved_aside_and_no_link_is_followed(
    tmp_path: Path, whole: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other = place(tmp_path, whole, name, kind, monkeypatch)
    before, others = tree(root), tree(other)
    for opener in OPENERS.values():
        with pytest.raises(IrregularFile) as caught:
            opener(root)
        assert caught.value.where == str(root / name)
        assert caught.value.hint
        assert tree(root) == before
    with pytest.raises(StoreDamaged, match=re.escape(str(root / name))):
        check_stores([StoreAt("", str(root))])
    found = verify(root, settings=SETTINGS).findings
    assert ("error", "foreign_file", str(root / name)) in [
        (finding.severity, finding.kind, finding.file) for finding in found
    ]
    assert tree(root) == before
    if name == "lock":
        with pytest.raises(IrregularFile, match="lock"):
            repair(root, SETTINGS)
    else:
        assert repair(root, SETTINGS).report.ok
        names = {path.name for path in (own_dir(root) / "quarantine").glob("*/*")}
        assert names & {Path(name).name, f"{Path(name).name}.aside"}
        assert read_records(root) == read_records(whole)
        check_is_store(root)
    assert tree(other) == others


def limited() -> None:
    """In a child, before it begins."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


@pytest.mark.process
@pytest.mark.parametrize("kind", [*NO_FILE, "socket", "10 GB"])
@pytest.mark.parametrize(
    "command", ["serve", *seldom("store verify", "store repair", "store dump")]
)
def test_a_command_names_what_is_no_own_file_soon_and_with_little_memory(
    tmp_path: Path, whole: Path, command: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, other = place(tmp_path, whole, "keelog/floor", kind, monkeypatch)
    others = tree(other)
    monkeypatch.undo()
    words = [sys.executable, "-m", "keelog", *command.split(), str(root)]
    words += ["--bind", "tcp://127.0.0.1:0"] if command == "serve" else []
    ended = subprocess.run(
        words, capture_output=True, text=True, timeout=NAMED_S, check=False, preexec_fn=limited
    )
    assert ended.returncode == 5
    assert str(root / "keelog/floor") in (ended.stdout + ended.stderr).replace("\n", " ")
    assert tree(other) == others


@pytest.mark.parametrize("kind", [*NO_FILE, "socket"])
@pytest.mark.timeout(20)
def test_what_takes_a_files_place_while_a_node_runs_is_named_by_who_opens_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = tmp_path / "keelog/run", tmp_path / "other"
    run.mkdir(parents=True)
    other.write_bytes(b"other")
    for name in ("keelog/run/log.page", "keelog/run/index.page", "lock"):
        put(kind, tmp_path / name, other, monkeypatch)
    openers: tuple[Callable[[], object], ...] = (
        lambda: LogPage.create(tmp_path),
        lambda: WorkerPage.create(tmp_path, "index"),
        lambda: FileLock.take(tmp_path / "lock"),
        lambda: find_owner(tmp_path),
        lambda: read_bounded(tmp_path / "lock", 100),
    )
    for opener in openers:
        with pytest.raises(IrregularFile, match="is no file, but"):
            opener()
    for look in (lambda: LogPage.open(tmp_path), lambda: WorkerPage.open(tmp_path, "index")):
        with pytest.raises(PageAbsent, match="is no file, but"):
            look()
    assert other.read_bytes() == b"other"


def test_links_to_folders_on_other_volumes_are_served(tmp_path: Path, whole: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    for name in ("keelog", "commitlog"):
        (root / name).rename(tmp_path / name)
        (root / name).symlink_to(tmp_path / name)
    check_is_store(root)
    open_directory(root)
    assert verify(root, settings=SETTINGS).ok
