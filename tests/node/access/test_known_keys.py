"""Whose key it is: the file of users as it was within a second, and what a broken one changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.access import known_keys
from node.access.curve import auth_dir, make_server_keys, new_pair
from node.access.known_keys import KnownKeys, gate_of
from protocol.access.key_files import BadKey

KEY, OTHER = new_pair().public, new_pair().public


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "LOOK_EVERY_S", 0.0)


def user(name: str, *keys: str, status: str = "enable") -> dict[str, Any]:
    return {"name": name, "status": status, "public_keys": list(keys)}


def write_users(root: Path, *users: dict[str, Any]) -> Path:
    """As the owner of the store does: a new file in the place of the old one."""
    path = auth_dir(root) / "users.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name("new")
    new.touch(0o600)
    new.write_text(json.dumps({"users": users}))
    new.rename(path)
    return path


def test_a_key_is_that_of_its_user_as_the_file_says_now(tmp_path: Path) -> None:
    known = KnownKeys(tmp_path)
    assert known(KEY) is None
    write_users(tmp_path, user("alice", KEY), user("bob"))
    assert (known(KEY), known(OTHER), known("")) == ("alice", None, None)
    write_users(tmp_path, user("alice"), user("bob", OTHER, KEY))
    assert (known(KEY), known(OTHER)) == ("bob", "bob")
    write_users(tmp_path, user("bob", KEY, status="disable"))
    assert known(KEY) is None


@pytest.mark.parametrize("broken", ["gone", "cut", "open", "link"])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_named_once(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_users(tmp_path, user("alice", KEY))
    known = KnownKeys(tmp_path)
    assert known(KEY) == "alice"
    write_users(tmp_path, user("mallory", KEY))
    match broken:
        case "gone":
            path.unlink()
        case "cut":
            path.write_text(path.read_text()[:-9])
        case "open":
            path.chmod(0o644)
        case "link":
            path.rename(path.with_name("real"))
            path.symlink_to("real")
    assert [known(KEY) for _ in range(3)] == ["alice"] * 3
    assert len(caplog.records) == 1
    path.unlink(missing_ok=True)
    write_users(tmp_path, user("carol", KEY))
    assert known(KEY) == "carol"


def test_a_process_that_is_to_ask_for_keys_never_does_without(tmp_path: Path) -> None:
    with pytest.raises(BadKey, match="no keys any more"):
        gate_of(tmp_path)
    keys = make_server_keys(tmp_path)
    assert gate_of(tmp_path).keys == keys
