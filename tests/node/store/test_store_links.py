"""What is no file or folder of a store: refused by name, and nothing is changed. A link that leads
nowhere is a volume that is not mounted."""

import os
import socket
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from keelog.restore import repair
from node.store.checkpoints import own_dir
from node.store.condition import check_is_store
from node.store.repair.plan import plan_repair
from node.store.verify.verify import verify
from node.supervisor.before_start import open_directory
from node.writer.recovery import examine
from node.writer.store import open_writer_store
from protocol.errors import NotAStore, StoreDamaged
from protocol.ids import Host
from tests.support.damaged_store import make_store, read_records
from tests.workers.living_log import SETTINGS
from workers.rebuild import rebuild

HOST = Host(b"\x7f\0\0\1", 9)
OPENERS: dict[str, Callable[[Path], object]] = {
    "supervisor": open_directory,
    "writer": lambda root: open_writer_store(root, SETTINGS, HOST, alone=True),
    "reader": check_is_store,
    "verify": lambda root: verify(root, settings=SETTINGS),
    "plan": lambda root: plan_repair(root, SETTINGS),
    "repair": lambda root: repair(root, SETTINGS),
    "rebuild": lambda root: rebuild(root, settings=SETTINGS),
}


def tree(folder: Path) -> dict[str, object]:
    """Everything in a folder: links as they are, files with their content."""
    return {
        str(path.relative_to(folder)): path.readlink()
        if path.is_symlink()
        else path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "keelog"])
def test_a_folder_that_is_a_link_to_nothing_is_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, name: str, opener: str
) -> None:
    root = make_store(tmp_path / "store").root
    if (root / name).exists():
        (root / name).rename(tmp_path / name)
    (root / name).symlink_to(tmp_path / "volume" / name)
    before = tree(root)
    with pytest.raises(NotAStore, match=f"{root / name} is a link to .*volume/{name}") as caught:
        OPENERS[opener](root)
    assert "mount" in caught.value.hint
    assert tree(root) == before


@pytest.mark.parametrize("opener", OPENERS)
def test_a_segment_that_is_a_link_to_nothing_is_no_missing_one(tmp_path: Path, opener: str) -> None:
    root = make_store(tmp_path / "store").root
    first = root / "commitlog" / f"{0:020}"
    first.rename(tmp_path / "elsewhere")
    first.symlink_to(tmp_path / "volume" / first.name)
    before = tree(root)
    with pytest.raises(NotAStore, match=f"{first} is a link"):
        OPENERS[opener](root)
    assert tree(root) == before


@pytest.mark.parametrize("opener", OPENERS)
def test_a_store_that_is_a_link_to_nothing_is_not_made(tmp_path: Path, opener: str) -> None:
    root = tmp_path / "store"
    root.symlink_to(tmp_path / "volume")
    with pytest.raises(NotAStore, match="is a link to"):
        OPENERS[opener](root)
    assert not (tmp_path / "volume").exists()


def put(kind: str, name: str) -> None:
    """Puts what is no file in the place of one, in the current folder: a socket's path is short."""
    Path(name).unlink(missing_ok=True)
    if kind == "FIFO":
        os.mkfifo(name)
    elif kind == "folder":
        Path(name).mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *product(("FIFO", "socket"), ("pipe", f"{0:020}", f"{2**40:020}")),
        *product(("folder",), (f"{0:020}", f"{2**40:020}")),
    ],
)
@pytest.mark.timeout(60)
def test_what_is_no_file_among_the_segments_is_named_and_never_opened(
    tmp_path: Path, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "store")
    root = store.root
    monkeypatch.chdir(root / "commitlog")
    put(kind, name)
    with pytest.raises(StoreDamaged, match=f"commitlog/{name}.*is (no file|a folder)") as caught:
        examine(root, SETTINGS)
    assert "keelog store repair" in caught.value.hint
    found = verify(root, settings=SETTINGS)
    assert not found.ok
    assert ("foreign_file", str(root / "commitlog" / name)) in [
        (finding.kind, finding.file) for finding in found.findings
    ]
    assert repair(root, SETTINGS).report.ok
    (moved,) = (own_dir(root) / "quarantine").glob(f"*/{name}")
    assert not moved.is_file()
    left = read_records(root)
    assert left == [record for record in store.records if record in left]
    assert left == list(store.records) or name == f"{0:020}"


@pytest.mark.parametrize("place", ["first index file", "newest index file", "queue file"])
@pytest.mark.parametrize("kind", ["FIFO", "socket", "folder"])
@pytest.mark.timeout(60)
def test_what_is_no_file_among_derived_files_is_named_moved_aside_and_never_opened(
    tmp_path: Path, kind: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path / "store")
    root = store.root
    path = {
        "first index file": min((root / "index").iterdir()),
        "newest index file": root / "index" / "20991231235959000",
        "queue file": min((root / "consumequeue").glob("*/*/*")),
    }[place]
    monkeypatch.chdir(path.parent)
    put(kind, path.name)
    found = verify(root, settings=SETTINGS)
    assert ("error", "foreign_file", str(path)) in [
        (finding.severity, finding.kind, finding.file) for finding in found.findings
    ]
    assert repair(root, SETTINGS).report.ok
    (moved,) = (own_dir(root) / "quarantine").glob(f"*/{path.name}")
    assert not moved.is_file()
    assert read_records(root) == list(store.records)


@pytest.mark.parametrize("kind", ["FIFO", "socket", "folder"])
@pytest.mark.timeout(60)
def test_a_table_of_topics_that_is_no_file_is_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_store(tmp_path / "store").root
    (root / "config").mkdir()
    monkeypatch.chdir(root / "config")
    put(kind, "topics.json")
    (root / "lock").touch()
    before = tree(root)
    with pytest.raises(StoreDamaged, match=r"config/topics.json.*is no file") as caught:
        OPENERS["writer"](root)
    assert "keelog store repair" in caught.value.hint
    assert tree(root) == before
    assert [finding.kind for finding in verify(root, settings=SETTINGS).findings] == [
        "foreign_file"
    ]
    assert repair(root, SETTINGS).report.ok
    assert not (root / "config" / "topics.json").exists()
