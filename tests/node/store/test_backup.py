"""Backups of a store: where they end, what they copy, and what they refuse."""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.access.audit import DONE, AuditEvent, AuditLog
from node.access.users_file import write_users
from node.runtime.settings import Settings
from node.store.backup import backup as source_module
from node.store.backup.backup import BackupReport
from node.store.backup.backup import backup as back_up
from node.store.backup.folder import load_manifest, save_manifest, state_dir
from node.store.checkpoints import load_epochs, load_removed, load_tails, save_removed
from node.store.staging_files import Published, StagedBatch, load_published, save_published
from protocol.access.users import AccessTable, User
from protocol.derived.removed import Removed, RemovedTopic
from protocol.errors import BackupRefused, BadRequest, StoreLocked
from protocol.names import COMMIT_LOG_DIR
from tests.support.owned_store import SEGMENT_BYTES, Owner, overwrite, some

MESSAGES = 600
"""Of some 500 bytes: a log of several segments."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A stopped store of several segments."""
    owner = Owner(tmp_path / "store")
    owner.append(some(MESSAGES))
    owner.stop()
    return owner.root


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def log_bytes(root: Path, start: int, end: int) -> bytes:
    """The log of a store or a backup, from its files."""
    data = b"".join(path.read_bytes() for path in segments(root))
    first = int(segments(root)[0].name)
    return data[start - first : end - first]


def segments(root: Path) -> list[Path]:
    return sorted((root / COMMIT_LOG_DIR).glob("0*"))


def go_on(root: Path, count: int = 200, first: int = MESSAGES) -> None:
    owner = Owner(root)
    owner.append(some(count, first=first))
    owner.stop()


def test_a_backup_has_every_byte_below_its_end_and_nothing_above(root: Path, out: Path) -> None:
    report = back_up(root, out)
    assert (report.start, report.bytes, report.verified) == (0, report.end, True)
    assert log_bytes(out, 0, report.end) == log_bytes(root, 0, report.end)
    rest = b"".join(path.read_bytes() for path in segments(out))[report.end :]
    assert not rest.strip(b"\0")
    assert {path.stat().st_size for path in segments(out)} == {SEGMENT_BYTES}
    assert {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()} == {0o600}


def test_a_backup_that_cannot_ask_the_running_node_says_so(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path / "store")
    try:
        owner.append(some(50))
        owner.flush()
        # As from another container, where the page is of another boot.
        monkeypatch.setattr(source_module, "read_log", lambda _root: None)
        report = back_up(owner.root, out)
        assert "state page" in report.shortfall
        assert report.shape()["shortfall"] == report.shortfall
    finally:
        owner.kill()


def test_the_next_backup_copies_only_what_is_new(root: Path, out: Path) -> None:
    first = back_up(root, out)
    before = {path.name: path.stat() for path in segments(out)}
    go_on(root)
    second = back_up(root, out)
    assert second.bytes == second.end - first.end > 0
    assert log_bytes(out, 0, second.end) == log_bytes(root, 0, second.end)
    last = (first.end - 1) // SEGMENT_BYTES
    for path in segments(out)[:last]:
        assert path.stat().st_mtime_ns == before[path.name].st_mtime_ns
    third = back_up(root, out)
    assert (third.bytes, third.end, third.verified) == (0, second.end, True)
    assert [path.name for path in out.glob("state.*")] == ["state.3"]


def test_a_backup_of_a_running_store_ends_where_the_log_is_flushed(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "FLUSH_WAIT_S", 0.2)
    owner = Owner(tmp_path / "store")
    try:
        owner.append(some(50))
        owner.flush()
        flushed = owner.store.log.end
        owner.append(some(50, first=50))
        owner.store.page.publish(appended=owner.store.log.end)
        report = back_up(owner.root, out)
        assert report.end == flushed < owner.store.log.end
        assert "has not flushed" in report.shortfall
        assert not b"".join(p.read_bytes() for p in segments(out))[flushed:].strip(b"\0")
    finally:
        owner.kill()


def test_a_backup_waits_until_what_was_appended_before_it_is_flushed(
    tmp_path: Path, out: Path
) -> None:
    owner = Owner(tmp_path / "store")
    owner.append(some(50))
    owner.store.page.publish(appended=owner.store.log.end)
    late = threading.Timer(0.5, owner.flush)
    late.start()
    try:
        assert back_up(owner.root, out).end == owner.store.log.end
    finally:
        late.join()
        owner.kill()


def test_a_killed_store_is_backed_up_as_its_next_start_finds_it(tmp_path: Path, out: Path) -> None:
    owner = Owner(tmp_path / "store")
    owner.append(some(50))
    end = owner.store.log.end
    owner.kill()
    assert back_up(owner.root, out).end == end


def broken_off(root: Path, out: Path, after: int) -> None:
    """A backup that ends in the middle, after this many reports of progress."""
    left = [after]

    def tell(_stage: str, _done: int, _all: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(root, out, progress=tell)


@pytest.mark.parametrize("after", range(8))
def test_a_backup_that_broke_off_goes_on(root: Path, out: Path, after: int) -> None:
    broken_off(root, out, after)
    manifest = load_manifest(out)
    assert manifest is not None
    assert manifest.state == 0
    report = back_up(root, out)
    assert report.bytes == report.end - manifest.end
    assert after < 2 or manifest.end > 0
    assert log_bytes(out, 0, report.end) == log_bytes(root, 0, report.end)
    # What the next one broke off had copied already must not be taken for records.
    go_on(root)
    broken_off(root, out, after % 4)
    again = back_up(root, out)
    assert again.verified
    assert log_bytes(out, 0, again.end) == log_bytes(root, 0, again.end)


def test_a_folder_of_anything_else_is_refused_and_stays_as_it_is(root: Path, out: Path) -> None:
    out.mkdir()
    (out / "letters.txt").write_text("mine")
    with pytest.raises(BackupRefused, match=r"letters\.txt"):
        back_up(root, out)
    assert [path.name for path in out.iterdir()] == ["letters.txt"]
    with pytest.raises(BackupRefused, match="is a file"):
        back_up(root, out / "letters.txt")


@pytest.mark.parametrize("place", ["", "inside", ".."])
def test_a_backup_into_the_store_itself_is_refused(root: Path, place: str) -> None:
    with pytest.raises(BadRequest, match="lie in each other"):
        back_up(root, root / place)


def test_a_backup_of_another_store_is_refused(tmp_path: Path, root: Path, out: Path) -> None:
    back_up(root, out)
    other = Owner(tmp_path / "other")
    other.append(some(MESSAGES))
    other.stop()
    with pytest.raises(BackupRefused, match="is the backup of store"):
        back_up(other.root, out)


def test_a_store_that_was_rewound_is_refused(tmp_path: Path, out: Path) -> None:
    owner = Owner(tmp_path / "store")
    owner.append(some(100))
    owner.kill()
    end = back_up(owner.root, out).end
    overwrite(owner.root, end - 400, bytes(400))
    with pytest.raises(BackupRefused, match="was rewound"):
        back_up(owner.root, out)
    go_on(owner.root, count=50, first=500)
    with pytest.raises(BackupRefused, match="has other bytes at"):
        back_up(owner.root, out)


def test_a_repair_anywhere_in_the_log_is_found(root: Path, out: Path) -> None:
    back_up(root, out)
    overwrite(root, 1000, b"repaired")
    with pytest.raises(BackupRefused, match=r"has other bytes at 100[0-7]"):
        back_up(root, out)


def test_a_file_that_was_only_touched_is_not_taken_for_another(root: Path, out: Path) -> None:
    back_up(root, out)
    os.utime(segments(root)[0])
    assert back_up(root, out).bytes == 0


def test_a_backup_keeps_what_retention_deletes_unless_it_is_pruned(root: Path, out: Path) -> None:
    back_up(root, out)
    for path in segments(root)[:2]:
        path.unlink()
    go_on(root)
    kept = back_up(root, out)
    assert kept.start == 0
    assert len(segments(out)) == len(segments(root)) + 2
    pruned = back_up(root, out, prune=True)
    assert (pruned.start, pruned.end) == (2 * SEGMENT_BYTES, kept.end)
    assert int(segments(out)[0].name) == 2 * SEGMENT_BYTES


def test_a_hole_between_backup_and_store_is_refused_until_it_begins_anew(
    root: Path, out: Path
) -> None:
    first = back_up(root, out)
    go_on(root, count=400)
    begin = -(-first.end // SEGMENT_BYTES) * SEGMENT_BYTES + SEGMENT_BYTES
    for path in segments(root):
        if int(path.name) < begin:
            path.unlink()
    with pytest.raises(BackupRefused, match="deleted what was between"):
        back_up(root, out)
    manifest = load_manifest(out)
    assert manifest is not None
    assert manifest.end == first.end
    anew = back_up(root, out, prune=True)
    assert (anew.start, int(segments(out)[0].name)) == (begin, begin)


def test_segments_that_vanish_before_they_are_opened_move_the_begin(
    root: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = source_module.read_source

    def slow(root: Path, settings: Settings) -> source_module.BackupSource:
        found = read(root, settings)
        for path in segments(root)[:2]:
            path.unlink()
        return found

    monkeypatch.setattr("node.store.backup.backup.read_source", slow)
    report = back_up(root, out)
    assert report.start == 2 * SEGMENT_BYTES
    assert report.verified


def test_segments_that_retention_deletes_during_the_copy_are_copied(root: Path, out: Path) -> None:
    expected = log_bytes(root, 0, load_end(root))

    def tell(_stage: str, _done: int, _all: int) -> None:
        for path in segments(root)[:3]:
            path.unlink()

    report = back_up(root, out, progress=tell)
    assert (report.start, log_bytes(out, 0, report.end)) == (0, expected)


def load_end(root: Path) -> int:
    tails = load_tails(root)
    assert tails is not None
    return tails.at


def test_damage_is_copied_and_named_and_the_backup_is_not_verified(root: Path, out: Path) -> None:
    overwrite(root, 1000, b"\xee" * 50)
    report = back_up(root, out)
    assert not report.verified
    ((start, end),) = report.damaged
    assert start <= 1000 < end
    assert log_bytes(out, 0, report.end) == log_bytes(root, 0, report.end)
    assert not back_up(root, out).verified, "the damage is still in it"


def test_links_are_made_for_full_segments_alone_and_never_written_into(
    root: Path, out: Path
) -> None:
    back_up(root, out, link=True)
    store, copies = segments(root), segments(out)
    same = [store[n].samefile(copies[n]) for n in range(len(copies))]
    assert same == [True] * (len(copies) - 1) + [False]
    before = [path.read_bytes() for path in store[: len(copies) - 1]]
    manifest = load_manifest(out)
    assert manifest is not None
    save_manifest(out, replace(manifest, end=SEGMENT_BYTES))  # as if it had broken off there
    back_up(root, out)
    assert [path.read_bytes() for path in store[: len(copies) - 1]] == before
    assert not store[1].samefile(segments(out)[1])


def test_all_of_config_is_copied_and_the_notes_that_the_log_lacks(root: Path, out: Path) -> None:
    (root / "config" / "rocksdb").mkdir(parents=True)
    wanted = {
        "config/consumerOffset.json": b'{"offsetTable":{}}',
        "config/unknown.json": b"?",
        "config/rocksdb/CURRENT": b"x",
    }
    removed = Removed(number=1, topics={"gone": RemovedTopic(7)})
    save_removed(root, removed)
    for name, data in wanted.items():
        (root / name).write_bytes(data)
    (root / "keelog" / "staging" / "q1").mkdir(parents=True)
    save_published(root, "q1", Published(3, 4, final=False))
    (root / "keelog" / "staging" / "q1" / "4").mkdir()
    (root / "keelog" / "staging" / "q1" / "4" / "a.stage").write_bytes(b"not published")
    back_up(root, out)
    state = state_dir(out, 1)
    for name, data in wanted.items():
        assert (state / name).read_bytes() == data
    names = {str(path.relative_to(state)) for path in state.rglob("*") if path.is_file()}
    own = {"keelog/epochs", "keelog/tails", "keelog/removed", "keelog/staging/q1/published"}
    assert names - own - wanted.keys() <= {"config/topics.json", "config/topics.json.bak"}
    assert own <= names
    assert load_published(state, "q1") == Published(3, 4, final=False)
    assert load_removed(state) == removed
    assert (load_epochs(state), load_tails(state)) == (load_epochs(root), load_tails(root))
    (root / "config" / "unknown.json").unlink()
    back_up(root, out)
    assert not (state_dir(out, 2) / "config" / "unknown.json").exists()
    assert StagedBatch("q1", 4).number == 4


def test_two_backups_into_one_folder_exclude_each_other(root: Path, out: Path) -> None:
    refused: list[BaseException] = []

    def tell(_stage: str, _done: int, _all: int) -> None:
        if not refused:
            with pytest.raises(StoreLocked) as error:
                back_up(root, out)
            refused.append(error.value)

    assert back_up(root, out, progress=tell).verified
    assert refused


def test_a_manifest_of_a_newer_version_is_refused(root: Path, out: Path) -> None:
    back_up(root, out)
    path = out / "backup.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(BackupRefused, match="format 2"):
        back_up(root, out)


def test_a_new_store_without_a_message_can_be_backed_up(tmp_path: Path, out: Path) -> None:
    owner = Owner(tmp_path / "store")
    owner.stop()
    assert back_up(owner.root, out)[:4] == (0, 0, 0, 2)
    go_on(owner.root)
    report = back_up(owner.root, out)
    assert report.verified
    assert report.bytes == report.end > 0


def test_the_length_of_segments_is_that_of_the_first_one_that_is_made(
    tmp_path: Path, out: Path
) -> None:
    Owner(tmp_path / "store").stop()
    for path in segments(tmp_path / "store"):
        path.unlink()
    back_up(tmp_path / "store", out)
    go_on(tmp_path / "store", count=400)
    report = back_up(tmp_path / "store", out)
    assert report.end > 2 * SEGMENT_BYTES
    assert {path.stat().st_size for path in segments(out)} == {SEGMENT_BYTES}


def test_a_backup_takes_no_lock_of_the_store_and_changes_nothing(root: Path, out: Path) -> None:
    def states() -> Iterator[tuple[str, int, int]]:
        for path in sorted(root.rglob("*")):
            yield str(path), path.stat().st_mtime_ns, path.stat().st_size

    before = list(states())
    time.sleep(0.01)
    report: BackupReport = back_up(root, out)
    assert report.end > 0
    assert list(states()) == before


def test_users_and_their_audit_log_are_in_no_backup(root: Path, out: Path) -> None:
    secret = "canary-secret"
    write_users(root, AccessTable({"alice": User("alice", secret)}))
    AuditLog(root).write(AuditEvent("command", "canary", "", "create_user", "alice", DONE), 0)
    back_up(root, out)
    copied = [path for path in out.rglob("*") if path.is_file()]
    assert len(copied) > 3
    assert not [path for path in copied if "auth" in path.parts or b"canary" in path.read_bytes()]
