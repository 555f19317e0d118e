"""The operations `users` and `change_users` of the process that owns the store."""

import json
from pathlib import Path
from typing import Any

import pytest

from node.access import answers
from node.access.answers import UserDesk, users_page
from node.access.audit import AuditLog
from node.access.user_table import OwnedUserTable
from node.access.users_file import read_users, users_path
from protocol.errors import BadRequest, MqError, NotAllowed

NOW = 1_700_000_000_000
SECRET = "canary-secret"


@pytest.fixture
def desk(tmp_path: Path) -> UserDesk:
    return UserDesk(OwnedUserTable(tmp_path), AuditLog(tmp_path))


def create(desk: UserDesk, name: str, **more: Any) -> dict[str, Any]:
    info = json.dumps({"password": SECRET}).encode()
    header = {"change": "create_user", "name": name, "info": info, **more}
    return desk.answer("change_users", header, 5, NOW, None)


def audited(root: Path) -> list[dict[str, str]]:
    text = (users_path(root).parent / "audit.log").read_text()
    assert SECRET not in text
    return [json.loads(line) for line in text.splitlines()]


def test_a_change_is_in_the_file_when_the_answer_comes(desk: UserDesk, tmp_path: Path) -> None:
    assert create(desk, "alice") == {"v": 1, "id": 5, "ok": True, "changed": True, "revision": 1}
    assert read_users(tmp_path)[0].users["alice"].secret == SECRET
    gone = desk.answer("change_users", {"change": "delete_user", "name": "bob"}, 6, NOW, None)
    assert (gone["changed"], gone["revision"]) == (False, 1)


def test_changes_and_refusals_are_audited_with_who_asked(desk: UserDesk, tmp_path: Path) -> None:
    create(desk, "alice")
    with pytest.raises(NotAllowed):
        create(desk, "alice", by="alice", address="10.0.0.1")
    acl = {"change": "delete_acl", "name": "User:alice", "resource": "Topic:t"}
    with pytest.raises(NotAllowed):
        desk.answer("change_users", acl, 6, NOW, None)
    desk.close()
    first, second, third = audited(tmp_path)
    assert (first["end"], first["operation"], first["resource"]) == (
        "command", "create_user", "alice",
    )  # fmt: skip
    assert (second["end"], second["user"], second["address"]) == ("remoting", "alice", "10.0.0.1")
    assert (second["outcome"], second["reason"]) == ("refused", "The user is existed")
    assert third["resource"] == "User:alice Topic:t"


def test_users_are_answered_in_pages_without_secrets(
    desk: UserDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "PAGE_USERS_MAX", 2)
    for number in range(5):
        create(desk, f"user-{number}")
    found, after = [], ""
    while True:
        page = desk.answer("users", {"after": after}, 7, NOW, None)
        assert SECRET not in str(page)
        found += [row["name"] for row in page["users"]]
        if "next" not in page:
            break
        assert len(page["users"]) == 2
        after = page["next"]
    assert found == [f"user-{number}" for number in range(5)]
    (row,) = desk.answer("users", {"name": "user-3"}, 8, NOW, None)["users"]
    assert (row["name"], row["has_secret"], row["entries"]) == ("user-3", True, [])
    assert desk.answer("users", {"name": "nobody"}, 9, NOW, None)["users"] == []


def test_a_long_list_ends_a_page(desk: UserDesk, tmp_path: Path) -> None:
    create(desk, "alice")
    create(desk, "bob")
    entries = [
        {"resource": f"Topic:t{n}", "actions": ["Pub"], "decision": "Allow"} for n in range(3)
    ]
    info = json.dumps({"policies": [{"entries": entries}]}).encode()
    desk.answer(
        "change_users", {"change": "create_acl", "name": "User:alice", "info": info}, 5, NOW, None
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "PAGE_ENTRIES_MAX", 3)
        page = users_page(read_users(tmp_path)[0], None, "")
    assert [row["name"] for row in page["users"]] == ["alice"]
    assert page["next"] == "alice"


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"change": "grant", "name": "alice"},
        {"change": "create_user", "name": 7},
        {"change": "create_user", "name": "bob", "info": SECRET},
        {"change": "create_user", "name": "bob", "info": SECRET.encode()},
        {"change": "create_user", "name": "bob", "info": b'{"password":["canary-secret"]}'},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_without_its_secret(
    desk: UserDesk, header: dict[str, Any]
) -> None:
    with pytest.raises(MqError) as caught:
        desk.answer("change_users", header, 5, NOW, None)
    assert "canary" not in str(caught.value.reason + caught.value.hint)
    with pytest.raises(BadRequest):
        desk.answer("users", {"after": 7}, 5, NOW, None)
