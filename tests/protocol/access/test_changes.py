"""Changes of users and lists: RocketMQ's codes, texts and answers, and where a node grants less."""

import json
from typing import Any

import pytest

from protocol import requests
from protocol.access import changes
from protocol.access.changes import Change
from protocol.access.users import EMPTY, AccessTable, UserStatus, UserType
from protocol.errors import MqError, NotAllowed

NOW = 1_700_000_000_000
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
ENTRY = {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Allow"}


def apply(table: AccessTable, *wanted: Change, by_super: bool = True) -> AccessTable:
    for one in wanted:
        table = changes.changed(table, one, by_super, NOW)
    return table


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def create(name: str, **fields: Any) -> Change:
    return Change("create_user", name, body(**{"password": "12345678", **fields}))


def update(name: str, **fields: Any) -> Change:
    return Change("update_user", name, body(**fields))


def put(subject: str, *entries: Any, policy: str | None = "Custom") -> Change:
    policies = [{"policyType": policy, "entries": list(entries)}]
    return Change("create_acl", subject, body(subject=subject, policies=policies))


ALICE = apply(EMPTY, create("alice"))
WITH_ROOT = apply(ALICE, create("root", userType="Super"))
WITH_LIST = apply(ALICE, put("User:alice", ENTRY))


def test_the_changes_are_those_of_the_protocol() -> None:
    assert changes.CHANGES == requests.USER_CHANGES


def test_a_user_is_normal_and_enabled_unless_said_otherwise() -> None:
    alice = ALICE.users["alice"]
    assert (alice.type, alice.status) == (UserType.NORMAL, UserStatus.ENABLE)
    assert (alice.secret, alice.changed_ms) == ("12345678", NOW)
    other = apply(EMPTY, create("bob", userType="super", userStatus="disable")).users["bob"]
    assert (other.type, other.status) == (UserType.SUPER, UserStatus.DISABLE)


def test_an_update_changes_only_what_is_given() -> None:
    table = apply(ALICE, update("alice", userStatus="disable"))
    assert table.users["alice"].secret == "12345678"
    assert not table.users["alice"].is_enabled
    table = apply(table, update("alice", password="another-secret"))
    assert table.users["alice"].secret == "another-secret"
    assert not table.users["alice"].is_enabled


def test_each_change_raises_the_revision_and_none_does_not() -> None:
    assert (ALICE.revision, WITH_ROOT.revision) == (1, 2)
    assert apply(ALICE, update("alice")) is ALICE
    assert apply(ALICE, Change("delete_user", "nobody")) is ALICE
    assert apply(WITH_LIST, put("User:alice", ENTRY)) is WITH_LIST


def test_a_deleted_user_takes_the_list_along() -> None:
    table = apply(WITH_LIST, Change("delete_user", "alice"))
    assert not table.users
    assert not table.lists
    assert not apply(table, create("alice")).lists


def refusal(table: AccessTable, change: Change, by_super: bool = True) -> tuple[int, str]:
    with pytest.raises(MqError) as caught:
        apply(table, change, by_super=by_super)
    return caught.value.code, caught.value.reason


def list_of(entry: Any) -> Change:
    return put("User:alice", entry)


REFUSED: dict[str, tuple[Change, int, str]] = {
    "no name": (create(" "), 29, "The username is blank"),
    "a name that is there": (create("alice"), 16, "The user is existed"),
    "no password": (create("bob", password=" "), 16, "password can not be blank"),
    "another who is not there": (update("bob"), 16, "The user is not exist"),
    "a list of nobody": (put("User:x", ENTRY), 16, "The subject of User:x is not exist."),
    "no policy": (
        Change("create_acl", "User:alice", body(policies=[])), 16, "The policies is empty.",
    ),
    "no entry": (put("User:alice"), 16, "The policy entries is empty."),
    "no resource": (list_of({**ENTRY, "resource": "Queue:t"}), 16, "The resource is null."),
    "no action": (list_of({**ENTRY, "actions": []}), 16, "The actions is empty."),
    "any action": (
        list_of({**ENTRY, "actions": ["Pub", "Any"]}), 16, "The actions can not be Any.",
    ),
    "no address": (list_of({**ENTRY, "sourceIps": ["*"]}), 16, "The source ip is invalid."),
    "no decision": (
        list_of({**ENTRY, "decision": "Maybe"}), 16, "The decision is null or illegal.",
    ),
    "a list to delete of nobody": (
        Change("delete_acl", "User:x"), 16, "The subject is not exist.",
    ),
    "no list to delete": (Change("delete_acl", "User:alice"), 16, "The acl is not exist."),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_has_the_code_and_the_text_of_a_broker(what: str) -> None:
    change, code, text = REFUSED[what]
    assert refusal(WITH_ROOT, change) == (code, text)


@pytest.mark.parametrize(
    ("change", "code", "verb"),
    [
        (create("eve", userType="Super"), 1, "create"),
        (update("alice", userType="Super"), 1, "update"),
        (update("root", password="12345678-new"), 16, "update"),
        (update("root", userStatus="disable"), 16, "update"),
        (Change("delete_user", "root"), 16, "update"),
    ],
)
def test_super_users_are_made_and_changed_by_super_users_alone(
    change: Change, code: int, verb: str
) -> None:
    wanted = (code, f"The super user can only be {verb} by super user")
    assert refusal(WITH_ROOT, change, by_super=False) == wanted
    assert apply(WITH_ROOT, change) is not WITH_ROOT


@pytest.mark.parametrize(
    "change",
    [
        create("bob", password="short"),
        create("bob", password="x" * 257),
        create("bob", userType="Owner"),
        create("bob", publicKeys=["short"]),
        create("b\nob"),
        list_of({**ENTRY, "actions": ["Pub", "Sbu"]}),
        put("User:alice", ENTRY, policy="Costum"),
        Change("create_acl", "User:alice", body(subject="User:root", policies=[])),
        Change("create_acl", "Group:g", body(policies=[])),
        Change("grant", "alice"),
        Change("create_user", "bob"),
        Change("create_user", "bob", b"{"),
    ],
)
def test_what_a_broker_takes_for_something_else_is_refused(change: Change) -> None:
    _, reason = refusal(WITH_ROOT, change)
    assert reason


def test_no_refusal_and_no_change_shows_a_password() -> None:
    for change in (create("alice", password="canary-secret"), create("b", password="canary\x00")):
        assert "canary" not in "".join(map(str, refusal(ALICE, change)))
        assert "canary" not in repr(change)


def test_one_key_belongs_to_one_user() -> None:
    table = apply(ALICE, create("bob", password="", publicKeys=[KEY]))
    assert table.by_public_key[KEY].name == "bob"
    assert refusal(table, update("alice", publicKeys=[KEY])) == (16, "user bob has this public key")
    with pytest.raises(NotAllowed, match="neither a password nor a key"):
        apply(table, update("bob", publicKeys=[]))


def test_an_entry_replaces_that_of_the_same_resource_and_type() -> None:
    denied = {**ENTRY, "actions": ["All"], "decision": "Deny"}
    table = apply(WITH_LIST, put("User:alice", denied, {**ENTRY, "resource": "Topic:new"}))
    assert [(str(one.resource), one.allow) for one in table.lists["alice"].custom] == [
        ("Topic:orders", False),
        ("Topic:new", True),
    ]
    table = apply(table, put("User:alice", ENTRY, policy="Default"))
    assert len(table.lists["alice"].custom) == 2
    assert len(table.lists["alice"].default) == 1


def test_two_entries_of_one_resource_in_one_request_both_stay() -> None:
    denied = {**ENTRY, "actions": ["Sub"], "decision": "Deny"}
    table = apply(ALICE, put("User:alice", ENTRY, denied))
    assert [one.allow for one in table.lists["alice"].custom] == [True, False]


def test_entries_are_deleted_by_resource_and_the_last_one_takes_the_list_along() -> None:
    table = apply(WITH_LIST, put("User:alice", {**ENTRY, "resource": "Group:g"}))
    table = apply(table, Change("delete_acl", "User:alice", resource="Topic:orders"))
    assert [str(one.resource) for one in table.lists["alice"].custom] == ["Group:g"]
    assert apply(table, Change("delete_acl", "User:alice", resource="Topic:other")) is table
    assert not apply(table, Change("delete_acl", "User:alice", resource="Group:g")).lists
    assert not apply(table, Change("delete_acl", "User:alice")).lists


def test_answers_are_the_json_of_rocketmqs_classes() -> None:
    sourced = {**ENTRY, "actions": ["Sub", "Pub"], "sourceIps": ["10.0.0.0/8"]}
    table = apply(WITH_ROOT, put("User:alice", sourced))
    assert changes.user_answer(table, "alice", with_secret=True) == (
        b'{"password":"12345678","userStatus":"enable","userType":"Normal","username":"alice"}'
    )
    assert changes.acl_answer(table, "User:alice") == (
        b'{"policies":[{"entries":[{"actions":["Pub","Sub"],"decision":"Allow",'
        b'"resource":"Topic:orders","sourceIps":["10.0.0.0/8"]}],"policyType":"Custom"}],'
        b'"subject":"User:alice"}'
    )


def test_passwords_are_in_answers_only_for_who_may_copy_them() -> None:
    for text in (
        changes.user_answer(WITH_ROOT, "root", with_secret=False),
        changes.users_answer(WITH_ROOT, "", with_secret=False),
    ):
        assert text is not None
        assert b"password" not in text
        assert b"12345678" not in text


def test_lists_of_users_and_of_lists_are_filtered_and_none_is_no_body() -> None:
    table = apply(WITH_LIST, create("bob"), put("User:bob", {**ENTRY, "resource": "Group:g"}))
    assert json.loads(changes.users_answer(table, "ob", with_secret=False) or b"") == [
        {"userStatus": "enable", "userType": "Normal", "username": "bob"}
    ]
    found = json.loads(changes.acls_answer(table, "User:", "Topic:") or b"")
    assert [one["subject"] for one in found] == ["User:alice"]
    assert len(json.loads(changes.acls_answer(table, "", "") or b"")) == 2
    assert changes.users_answer(table, "zz", with_secret=True) is None
    assert changes.user_answer(table, "zz", with_secret=True) is None
    assert changes.acls_answer(table, "zz", "") is None
    assert changes.acl_answer(ALICE, "User:alice") is None


def test_a_list_goes_from_one_table_to_another_as_its_own_answer() -> None:
    table = apply(WITH_LIST, put("User:alice", {**ENTRY, "resource": "*"}, policy="Default"))
    info = changes.acl_answer(table, "User:alice") or b""
    assert apply(ALICE, Change("create_acl", "User:alice", info)).lists == table.lists


def test_a_body_that_cannot_be_read_is_a_bad_request_that_shows_nothing_of_it() -> None:
    code, text = refusal(ALICE, Change("create_user", "bob", b'{"password":"canary-secret"'))
    assert code == 29
    assert "canary" not in text
