"""A backup restored elsewhere: the same messages, in a store of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

import keelog.store
from keelog.restore import BUILDING_DIR, restore
from node.runtime import disk
from node.store.backup.backup import backup
from node.store.backup.folder import load_manifest, save_manifest
from node.store.checkpoints import (
    is_clean,
    load_removed,
    load_sealed,
    load_store_id,
    load_tails,
    own_dir,
    save_removed,
)
from node.store.identity.store_id import check_guards, strangers
from node.store.opening import open_store
from node.store.staging_files import Published, load_published, save_published
from node.store.verify.verify import verify
from protocol.derived.removed import Removed, RemovedTopic
from protocol.errors import BackupRefused, BadRequest, StoreLocked
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR
from tests.support.golden import STORES, GetStore, facts
from tests.support.owned_store import SEGMENT_BYTES, Owner, overwrite, some

REMOVED = Removed(number=1, topics={"gone": RemovedTopic(7)})
"""No record in the log says so."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    owner = Owner(tmp_path / "store")
    owner.append(some(600))
    owner.stop()
    return owner.root


@pytest.fixture
def out(tmp_path: Path, root: Path) -> Path:
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{}}')
    (root / "keelog" / "staging" / "q1").mkdir(parents=True)
    save_published(root, "q1", Published(3, 4, final=False))
    save_removed(root, REMOVED)
    backup(root, tmp_path / "out")
    return tmp_path / "out"


def log_of(root: Path) -> bytes:
    paths = sorted((root / COMMIT_LOG_DIR).iterdir())
    return b"".join(path.read_bytes() for path in paths)


def test_a_restored_store_has_the_log_and_is_clean(tmp_path: Path, root: Path, out: Path) -> None:
    copy = tmp_path / "copy"
    report = restore(out, copy)
    assert (report.start, report.bytes, report.verified) == (0, report.end, True)
    assert log_of(copy)[: report.end] == log_of(root)[: report.end]
    found = verify(copy, deep=True)
    assert (found.ok, found.findings, found.records, found.clean_shutdown) == (True, [], 600, True)
    assert found.units == 600
    assert is_clean(copy)
    assert not (copy / BUILDING_DIR).exists()
    assert (copy / "config" / "consumerOffset.json").read_bytes() == b'{"offsetTable":{}}'
    assert {path.stat().st_mode & 0o077 for path in copy.rglob("*")} == {0}


def test_programs_back_up_and_restore_too(tmp_path: Path, root: Path) -> None:
    made = keelog.store.backup(str(root), str(tmp_path / "out"))
    done = keelog.store.restore(str(tmp_path / "out"), str(tmp_path / "copy"))
    assert (done.start, done.end, done.verified) == (made.start, made.end, True)
    with keelog.store.open_store(tmp_path / "copy") as store:
        assert len(list(store.scan("orders"))) == 600


def test_a_restored_store_is_not_the_one_that_was_backed_up(
    tmp_path: Path, root: Path, out: Path
) -> None:
    copy = tmp_path / "copy"
    restore(out, copy)
    ids = load_store_id(root), load_store_id(copy)
    assert ids[1].is_settled
    assert ids[0].value != ids[1].value
    check_guards(copy)
    assert strangers(copy) == ([], [])
    assert load_published(copy, "q1") == Published(3, 4, final=False)
    assert load_removed(copy) == REMOVED
    note = load_sealed(own_dir(copy) / "removed")
    assert note is not None and note.store_id == ids[1].value
    owner = Owner(copy)
    first = owner.append(some(1, first=600))
    owner.stop()
    assert first == [load_manifest_end(out)]
    assert verify(copy, deep=True).records == 601
    with pytest.raises(BackupRefused, match="is the backup of store"):
        backup(copy, out)


def load_manifest_end(out: Path) -> int:
    manifest = load_manifest(out)
    assert manifest is not None
    return manifest.end


def test_a_queue_without_messages_in_the_log_keeps_its_end(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "store")
    owner.append(some(5))
    owner.flush()
    messages = [replace(message, topic="other") for message in some(600)]
    owner.append(messages)
    owner.stop()
    sorted((owner.root / COMMIT_LOG_DIR).iterdir())[0].unlink()
    backup(owner.root, tmp_path / "out")
    report = restore(tmp_path / "out", tmp_path / "copy")
    assert report.start == SEGMENT_BYTES
    tails = load_tails(tmp_path / "copy")
    assert tails is not None
    ends = {queue: n for queue, n in tails.next_offset.items() if queue.topic == "orders"}
    assert ends == {Queue("orders", 0): 2, **{Queue("orders", n): 1 for n in (1, 2, 3)}}
    again = Owner(tmp_path / "copy")
    try:
        assert again.store.placement.snapshot().next_offset[Queue("orders", 0)] == 2
    finally:
        again.kill()


@pytest.mark.parametrize("name", STORES)
def test_a_brokers_store_is_restored_with_every_message(
    name: str, golden: GetStore, tmp_path: Path
) -> None:
    found = facts(name)
    report = backup(golden(name), tmp_path / "out")
    assert report.verified
    restore(tmp_path / "out", tmp_path / "copy")
    with open_store(tmp_path / "copy") as store, open_store(golden(name)) as original:
        assert (store.log.min_offset, store.log.end) == (report.start, report.end)
        places = [
            int(offset)
            for columns in store.log.columns(report.start)
            for offset in columns.physical_offset
        ]
        ours = {
            queue: reader.max_offset
            for queue in original.queues()
            if (reader := original.queue(*queue)) is not None
        }
        tails = load_tails(tmp_path / "copy")
        assert tails is not None
        assert {queue: end for queue, end in tails.next_offset.items() if end} == {
            queue: end for queue, end in ours.items() if end
        }
    assert places == [message["physicalOffset"] for message in found.messages]
    assert verify(tmp_path / "copy", deep=True).findings == []


def test_a_directory_with_anything_in_it_is_refused(tmp_path: Path, out: Path, root: Path) -> None:
    before = sorted(root.rglob("*"))
    with pytest.raises(BadRequest, match="is not empty"):
        restore(out, root)
    assert sorted(root.rglob("*")) == before
    with pytest.raises(BadRequest, match="lie in each other"):
        restore(out, out / "copy")
    (tmp_path / "file").touch()
    with pytest.raises(BadRequest, match="is a file"):
        restore(out, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert restore(out, tmp_path / "empty").verified


def test_a_restore_that_broke_off_is_not_a_store_and_is_run_again(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    for after in (0, 3, 12):
        left = [after]

        def tell(_stage: str, _done: int, _all: int, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            restore(out, copy, tell)
        assert not (copy / COMMIT_LOG_DIR).exists()

    rename = disk.rename
    moved: list[Path] = []

    def once(old: Path, new: Path) -> None:
        if new.parent == copy and len(moved) == 2:
            raise KeyboardInterrupt
        rename(old, new)
        moved.extend([new] if new.parent == copy else [])

    with monkeypatch.context() as patched:
        patched.setattr(disk, "rename", once)
        with pytest.raises(KeyboardInterrupt):
            restore(out, copy)
    assert moved
    assert not (copy / COMMIT_LOG_DIR).exists()
    assert restore(out, copy).verified
    assert verify(copy, deep=True).findings == []


def test_two_restores_into_one_directory_exclude_each_other(tmp_path: Path, out: Path) -> None:
    refused: list[BaseException] = []

    def tell(_stage: str, _done: int, _all: int) -> None:
        if not refused:
            with pytest.raises(StoreLocked) as error:
                restore(out, tmp_path / "copy")
            refused.append(error.value)

    assert restore(out, tmp_path / "copy", tell).verified
    assert refused
    assert verify(tmp_path / "copy", deep=True).findings == []


def test_a_backup_that_never_came_to_its_end_is_not_restored(tmp_path: Path, out: Path) -> None:
    manifest = load_manifest(out)
    assert manifest is not None
    save_manifest(out, replace(manifest, state=0))
    with pytest.raises(BackupRefused, match="was not finished"):
        restore(out, tmp_path / "copy")
    with pytest.raises(BackupRefused, match="holds no backup"):
        restore(tmp_path / "nothing", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_backup_whose_bytes_changed_is_restored_as_damaged(tmp_path: Path, out: Path) -> None:
    overwrite(out, 1000, b"\xee" * 50)
    report = restore(out, tmp_path / "copy")
    assert not report.verified
    ((start, end),) = report.damaged
    assert start <= 1000 < end
    found = verify(tmp_path / "copy", deep=True)
    assert not found.ok
