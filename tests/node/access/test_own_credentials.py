"""The node's own credentials, and the users that a start makes: files, modes, what is refused."""

import json
import os
import stat
from pathlib import Path

import pytest

from node.access.own_credentials import (
    CredentialsRefused,
    FirstUsers,
    OwnCredentials,
    OwnLogin,
)
from node.access.users_file import read_users, write_users
from node.runtime.settings import Settings, load_settings
from protocol.access.credentials import INNER_FORM, Credentials
from protocol.access.users import AccessTable, User, UserStatus, UserType
from protocol.errors import BadRequest

CANARY = "canary-secret"
NOW = 1_700_000_000_000


def inner_file(folder: Path, name: str = "inner", secret: str = CANARY, mode: int = 0o600) -> Path:
    path = folder / "inner.json"
    path.write_bytes(INNER_FORM.text(Credentials(name, secret)))
    path.chmod(mode)
    return path


def first_file(folder: Path, name: str = "admin", password: str = CANARY) -> Path:
    path = folder / "first.json"
    path.touch(0o600)
    path.write_text(json.dumps({"username": name, "password": password}))
    return path


def settings_of(*pairs: str, inner: Path | None = None, first: Path | None = None) -> Settings:
    words = [*pairs]
    if inner is not None:
        words.append(f"inner_client_authentication_credentials_file={inner}")
    if first is not None:
        words.append(f"init_authentication_user_file={first}")
    return load_settings(words)


def test_a_node_has_the_credentials_of_its_file_and_none_without(tmp_path: Path) -> None:
    own = OwnLogin.of(settings_of(inner=inner_file(tmp_path))).credentials
    assert own is not None
    assert own.now() == Credentials("inner", CANARY)
    assert OwnLogin.of(Settings()) == (None, None)


@pytest.mark.parametrize("mode", [0o660, 0o604, 0o602, 0o620, 0o666])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = inner_file(tmp_path, mode=mode)
    with pytest.raises(CredentialsRefused) as caught:
        OwnCredentials(str(path))
    assert f"its mode is {mode:04o}" in caught.value.reason
    assert f"chmod 600 {path}" in caught.value.hint
    assert CANARY not in caught.value.reason + caught.value.hint


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = inner_file(tmp_path)
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4_711)
    else:
        os.chown(path, 4_711, -1)
    with pytest.raises(CredentialsRefused, match="belongs to the user"):
        OwnCredentials(str(path))


@pytest.mark.parametrize("kind", ["none", "folder", "long", "text", "pipe"])
def test_what_is_no_such_file_is_refused_and_nobody_waits(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    match kind:
        case "folder":
            path.mkdir(0o700)
        case "long":
            path.write_bytes(b"x" * 5_000)
        case "text":
            path.write_text(f"inner:{CANARY}")
        case "pipe":
            os.mkfifo(path, 0o600)
    if path.exists():
        path.chmod(0o700 if kind == "folder" else 0o600)
    with pytest.raises(CredentialsRefused) as caught:
        OwnCredentials(str(path))
    assert "inner_client_authentication_credentials_file" in caught.value.reason
    assert CANARY not in caught.value.reason + caught.value.hint


def test_a_new_file_counts_from_the_next_connection_on_and_a_broken_one_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = OwnCredentials(str(inner_file(tmp_path)))
    later = inner_file(tmp_path, secret="another-secret")
    os.utime(later, ns=(1, 1))
    assert own.now().secret == "another-secret"
    later.chmod(0o644)
    for _ in range(5):
        assert own.now().secret == "another-secret"
    assert len(caplog.records) == 1
    assert "another-secret" not in caplog.text
    later.chmod(0o600)
    assert own.now().secret == "another-secret"


@pytest.mark.parametrize(
    "pair",
    [
        "init_authentication_user_file=first.json",
        "inner_client_authentication_credentials_file=./inner.json",
        "auth_follow_master=true",
    ],
)
def test_settings_that_cannot_be_meant_are_refused(pair: str) -> None:
    with pytest.raises(BadRequest):
        load_settings([pair])


def test_users_of_another_file_are_no_start(tmp_path: Path) -> None:
    """BadRequest: exit code 2, and the supervisor does not try again."""
    inner = inner_file(tmp_path, mode=0o644)
    with pytest.raises(BadRequest, match="its mode is 0644"):
        FirstUsers.of(settings_of(inner=inner))
    with pytest.raises(BadRequest, match="two secrets"):
        FirstUsers.of(
            settings_of(inner=inner_file(tmp_path), first=first_file(tmp_path, "inner", "12345678"))
        )


def test_a_start_makes_both_users_super_and_says_so_in_the_audit_log(tmp_path: Path) -> None:
    settings = settings_of(inner=inner_file(tmp_path), first=first_file(tmp_path))
    root = tmp_path / "store"
    FirstUsers.of(settings).make(root, settings, NOW)
    table, _ = read_users(root)
    assert {name: (one.type, one.status) for name, one in table.users.items()} == {
        "inner": (UserType.SUPER, UserStatus.ENABLE), "admin": (UserType.SUPER, UserStatus.ENABLE),
    }  # fmt: skip
    assert table.users["inner"].secret == table.users["admin"].secret == CANARY
    log = (root / "keelog/auth/audit.log").read_text()
    assert stat.S_IMODE((root / "keelog/auth/users.json").stat().st_mode) == 0o600
    assert log.count("create_user") == 2
    assert CANARY not in log


def test_users_that_are_there_stay_as_they_are_whatever_the_files_say(tmp_path: Path) -> None:
    root = tmp_path / "store"
    known = User("inner", "changed-since", status=UserStatus.DISABLE)
    write_users(root, AccessTable({"inner": known}, {}, 3))
    settings = settings_of(inner=inner_file(tmp_path))
    FirstUsers.of(settings).make(root, settings, NOW)
    assert read_users(root)[0] == AccessTable({"inner": known}, {}, 3)


def test_a_replica_with_users_of_its_master_gets_none_from_files_again(tmp_path: Path) -> None:
    root = tmp_path / "store"
    settings = settings_of(
        "follow=127.0.0.1:1", "auth_follow_master=true",
        inner=inner_file(tmp_path), first=first_file(tmp_path),
    )  # fmt: skip
    FirstUsers.of(settings).make(root, settings, NOW)
    assert set(read_users(root)[0].users) == {"inner", "admin"}, "at first it must be closed"
    inner = read_users(root)[0].users["inner"]
    write_users(root, AccessTable({"inner": inner}, {}, 9))
    FirstUsers.of(settings).make(root, settings, NOW)
    assert set(read_users(root)[0].users) == {"inner"}, "the master removed admin"
    promoted = settings_of(inner=inner_file(tmp_path), first=first_file(tmp_path))
    FirstUsers.of(promoted).make(root, promoted, NOW)
    assert set(read_users(root)[0].users) == {"inner", "admin"}
