"""The file of users: its modes, what is refused of it, and how processes follow it."""

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keelog.cli.main import run
from node.access import users_file
from node.access.curve import gate_of, make_server_keys, new_pair
from node.access.user_table import LOOK_EVERY_S, OwnedUserTable, UserTable, replace_user_table
from node.access.users_file import UnsafeUsers, read_users, users_path, write_users
from node.store.identity.places import create_store
from protocol.access.changes import Change
from protocol.access.key_files import BadKey
from protocol.access.users import EMPTY, AccessTable, User, UserStatus, read_table
from protocol.errors import MqError, NotAllowed, StoreDamaged, StoreError
from tests.crash.images import images
from tests.crash.sim_disk import SimDisk, Stopped, in_place_of_os

NOW = 1_700_000_000_000
SECRET = "canary-secret"
IMAGES = 12
TABLE = AccessTable({"alice": User("alice", SECRET)}, {}, 3)


def create(name: str, **more: Any) -> Change:
    return Change("create_user", name, json.dumps({"password": SECRET, **more}).encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_users(tmp_path, TABLE)
    return tmp_path


def test_a_table_is_read_as_it_was_written_and_none_is_empty(root: Path, tmp_path: Path) -> None:
    assert read_users(root)[0] == TABLE
    assert read_users(tmp_path / "new") == (EMPTY, None)


def test_folder_and_file_are_their_owners_alone_whatever_was_there(tmp_path: Path) -> None:
    folder = users_path(tmp_path).parent
    folder.mkdir(0o700, parents=True)
    left = folder / "users.json.new"
    left.write_text("left by a crash")
    left.chmod(0o666)
    write_users(tmp_path, TABLE)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(users_path(tmp_path).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["users.json"]


def link_file(root: Path) -> None:
    path = users_path(root)
    path.rename(root / "elsewhere")
    path.symlink_to(root / "elsewhere")


def link_folder(root: Path) -> None:
    folder = users_path(root).parent
    folder.rename(root / "elsewhere")
    folder.symlink_to(root / "elsewhere")


def put_fifo(root: Path) -> None:
    users_path(root).unlink()
    os.mkfifo(users_path(root), 0o600)


UNSAFE: dict[str, Callable[[Path], object]] = {
    "a link": link_file,
    "a link to a folder": link_folder,
    "a FIFO": put_fifo,
    "others may read it": lambda root: users_path(root).chmod(0o644),
    "the group may write it": lambda root: users_path(root).chmod(0o620),
    "others may enter the folder": lambda root: users_path(root).parent.chmod(0o755),
}


@pytest.mark.attack(70)
@pytest.mark.parametrize("what", UNSAFE)
def test_a_file_that_others_could_have_touched_is_refused_and_nothing_is_read(
    root: Path, what: str
) -> None:
    UNSAFE[what](root)
    with pytest.raises(UnsafeUsers) as caught:
        read_users(root)
    assert str(users_path(root).parent) in caught.value.reason
    assert caught.value.hint
    assert SECRET not in caught.value.reason


@pytest.mark.attack(70)
def test_a_file_of_another_owner_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnsafeUsers, match="belongs to the user with the number"):
        read_users(root)


@pytest.mark.attack(70)
@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"{}"])
def test_broken_json_is_damage_that_names_the_file(root: Path, data: bytes) -> None:
    users_path(root).write_bytes(data)
    with pytest.raises(StoreDamaged) as caught:
        read_users(root)
    assert caught.value.where == str(users_path(root))
    assert "keelog user create" in caught.value.hint


def test_a_table_that_is_too_large_is_refused_before_anything_is_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_file, "USERS_FILE_BYTES_MAX", 100)
    before = users_path(root).read_bytes()
    with pytest.raises(NotAllowed, match="bytes, 100 are allowed"):
        write_users(root, TABLE)
    assert users_path(root).read_bytes() == before


@pytest.mark.attack(71)
def test_a_power_loss_leaves_the_old_table_or_the_new_one(tmp_path: Path) -> None:
    """Users and lists are one file: no crash leaves a user with the rights of another time."""
    old = replace_user_table_in(tmp_path / "made")
    new = replace_user_table_in(tmp_path / "made", Change("delete_user", "alice"), create("alice"))
    assert old.lists
    assert not new.lists
    call, is_over, found = 0, False, set()
    while not is_over:
        call += 1
        sim = SimDisk(tmp_path / f"disk-{call}", call)
        store = sim.root / "store"
        with in_place_of_os(sim):
            write_users(store, old)
            sim.stop_at = sim.calls + call
            try:
                write_users(store, new)
                is_over = True
            except Stopped:
                pass
        sim.abandon()
        for image in images(sim, str(call), IMAGES):
            data = image.tree["store/keelog/auth/users.json"]
            assert data is not None, image.name
            table = read_table(data)
            assert table in (old, new), image.name
            assert table == new or not is_over, image.name
            found.add(table.revision)
    assert found == {old.revision, new.revision}


def replace_user_table_in(root: Path, *more: Change) -> AccessTable:
    entry = {"resource": "*", "actions": ["All"], "decision": "Allow"}
    info = {"policies": [{"entries": [entry]}]}
    first = [create("alice"), Change("create_acl", "User:alice", json.dumps(info).encode())]
    return replace_user_table(root, list(more) or first, NOW)


# -- the table that processes hold ----------------------------------------------------------------


def test_a_process_takes_a_changed_table_over_within_a_second(root: Path) -> None:
    held = UserTable(root)
    assert held.look(0.0) is False
    write_users(root, EMPTY)
    assert held.look(LOOK_EVERY_S / 2) is False
    assert held.table == TABLE
    assert held.look(LOOK_EVERY_S) is True
    assert (held.table, held.revision) == (EMPTY, 1)
    assert held.look(3 * LOOK_EVERY_S) is False


@pytest.mark.attack(70)
@pytest.mark.parametrize("what", [*UNSAFE, "broken", "gone"])
def test_a_file_that_cannot_be_used_keeps_the_old_table_and_says_so_once(
    root: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = UserTable(root)
    if what == "gone":
        users_path(root).unlink()
    elif what == "broken":
        users_path(root).write_text('{"secret": "canary-secret"')
    else:
        UNSAFE[what](root)
    for turn in range(3):
        assert held.look(10.0 + turn * LOOK_EVERY_S) is False
    assert held.table == TABLE
    assert held.problem
    assert [record.message for record in caplog.records] == ["the users stay as they were"]
    assert "canary" not in caplog.text


def test_a_mended_file_counts_again(root: Path) -> None:
    held = UserTable(root)
    users_path(root).write_text("{")
    held.look(0.0)
    assert held.problem
    write_users(root, EMPTY)
    assert held.look(LOOK_EVERY_S) is True
    assert (held.problem, held.table) == ("", EMPTY)


def test_a_process_does_not_start_with_a_file_that_cannot_be_used(root: Path) -> None:
    users_path(root).chmod(0o640)
    with pytest.raises(UnsafeUsers):
        UserTable(root)


@pytest.mark.attack(70)
@pytest.mark.parametrize("what", [*UNSAFE, "cut off"])
def test_a_node_does_not_start_with_it_and_names_it(
    tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    create_store(root)
    write_users(root, TABLE)
    if what == "cut off":
        os.truncate(users_path(root), users_path(root).stat().st_size - 9)
    else:
        UNSAFE[what](root)
    assert run(["serve", str(root), "--bind", "tcp://127.0.0.1:0"]) not in (0, None)
    said = capfd.readouterr().err
    assert "keelog/auth" in said
    assert SECRET not in said


def test_the_owner_saves_each_change_before_it_counts(root: Path) -> None:
    owned = OwnedUserTable(root)
    other = UserTable(root)
    owned.change(create("bob"), None, NOW)
    assert set(owned.table.users) == {"alice", "bob"}
    assert other.look(0.0)
    assert other.table == owned.table
    with pytest.raises(NotAllowed, match="existed"):
        owned.change(create("bob"), None, NOW)
    assert owned.revision == 1


def test_a_change_goes_on_from_what_somebody_wrote_into_the_file(root: Path) -> None:
    owned = OwnedUserTable(root)
    write_users(root, EMPTY)
    owned.change(create("bob"), None, NOW)
    assert set(owned.table.users) == {"bob"}


def test_the_owner_overwrites_no_file_that_it_cannot_read(root: Path) -> None:
    owned = OwnedUserTable(root)
    users_path(root).write_text("{")
    with pytest.raises(MqError):
        owned.change(create("bob"), None, NOW)
    assert users_path(root).read_text() == "{"
    users_path(root).unlink()
    with pytest.raises(StoreError, match="is gone"):
        owned.change(create("bob"), None, NOW)


def test_a_change_of_somebody_has_that_users_rights(root: Path) -> None:
    owned = OwnedUserTable(root)
    owned.change(create("root", userType="Super"), None, NOW)
    with pytest.raises(MqError) as caught:
        owned.change(create("eve", userType="Super"), "alice", NOW)
    assert caught.value.code == 1
    owned.change(create("eve", userType="Super"), "root", NOW)
    for stranger in ("nobody", ""):
        with pytest.raises(NotAllowed):
            owned.change(create("more"), stranger, NOW)


@pytest.mark.attack(71)
def test_several_changes_of_a_store_at_rest_are_one_write_or_none(root: Path) -> None:
    before = users_path(root).read_bytes()
    with pytest.raises(NotAllowed):
        replace_user_table(root, [create("bob"), create("alice")], NOW)
    assert users_path(root).read_bytes() == before


def test_a_key_is_that_of_its_user_as_the_table_says_now(root: Path) -> None:
    key, other = new_pair().public, new_pair().public
    table = UserTable(root)

    def keys_of(**users: User) -> tuple[str | None, str | None]:
        write_users(root, AccessTable(users, {}, table.table.revision + 1))
        table.current()
        return table.user_of_key(key), table.user_of_key(other)

    assert table.user_of_key(key) is None
    bob = User("bob", SECRET)
    assert keys_of(alice=User("alice", "", public_keys=(key,)), bob=bob) == ("alice", None)
    assert keys_of(bob=replace(bob, public_keys=(other, key))) == ("bob", "bob")
    disabled = replace(bob, public_keys=(other, key), status=UserStatus.DISABLE)
    assert keys_of(bob=disabled) == (None, None)


def test_a_process_that_is_to_ask_for_keys_never_does_without(tmp_path: Path) -> None:
    with pytest.raises(BadKey, match="no keys any more"):
        gate_of(tmp_path, lambda _: None)
    keys = make_server_keys(tmp_path)
    assert gate_of(tmp_path, lambda _: None).keys == keys
