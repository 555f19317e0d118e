"""The users of a master, as a replica takes them over from the answers to 3005 and 3010."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.changes import acls_answer, users_answer
from protocol.access.copied_users import MasterUsers, master_users
from protocol.access.credentials import Credentials
from protocol.access.decision import Action, Entry, parse_resource
from protocol.access.users import (
    EMPTY,
    AccessList,
    AccessTable,
    User,
    UserStatus,
    UserType,
    read_table,
    table_json,
)
from protocol.errors import NotAllowed

OWN = Credentials("inner", "inner-secret")
INNER = User("inner", "inner-secret", UserType.SUPER)
KEY, OTHER_KEY = "k" * 40, "o" * 40
PUB = AccessList((Entry(parse_resource("Topic:a*"), frozenset({Action.PUB}), True, ("10.0.0.1",)),))
DENY = AccessList(default=(Entry(parse_resource("*"), frozenset({Action.ALL}), False, ()),))


def table(*users: User, **lists: AccessList) -> AccessTable:
    return AccessTable({one.name: one for one in (INNER, *users)}, lists, 7)


def said_by(master: AccessTable, with_keys: bool = True, with_secret: bool = True) -> MasterUsers:
    users = users_answer(master, "", with_secret, with_keys) or b""
    return master_users(users, acls_answer(master, "", "") or b"", OWN)


NAMES = st.sampled_from(["alice", "bob", "carol"])
USERS = st.builds(
    User,
    NAMES,
    st.sampled_from(["", "long-enough", "another-one"]),
    st.sampled_from(UserType),
    st.sampled_from(UserStatus),
)
TABLES = st.builds(
    lambda users, lists: table(*users, **{n: one for n, one in lists.items() if n in
                                          {user.name for user in users}}),
    st.lists(USERS, unique_by=lambda user: user.name),
    st.dictionaries(NAMES, st.sampled_from([PUB, DENY])),
)  # fmt: skip


@given(TABLES, TABLES)
def test_a_replica_has_what_its_master_has_whatever_it_had(
    master: AccessTable, before: AccessTable
) -> None:
    after = said_by(master).over(before, 9)
    assert set(after.users) == set(master.users)
    for name, user in master.users.items():
        found = after.users[name]
        kept = (user.secret, user.type, user.status, user.public_keys)
        assert (found.secret, found.type, found.status, found.public_keys) == kept
    assert after.lists == master.lists
    assert said_by(master).over(after, 10) is after, "the second time nothing changes"
    assert read_table(table_json(after)) == after


def test_a_change_is_noted_with_its_time_and_what_stays_keeps_its_own() -> None:
    before = table(User("alice", "long-enough", changed_ms=1), User("bob", "long-enough"))
    master = table(User("alice", "long-enough"), User("bob", "another-one"))
    after = said_by(master).over(before, 9)
    assert (after.users["alice"].changed_ms, after.users["bob"].changed_ms) == (1, 9)
    assert after.revision == before.revision + 1


def test_public_keys_come_from_a_node_and_stay_where_a_broker_knows_none() -> None:
    before = table(User("alice", "long-enough", public_keys=(KEY,)))
    node = table(User("alice", "long-enough", public_keys=(OTHER_KEY,)))
    assert said_by(node).over(before, 9).users["alice"].public_keys == (OTHER_KEY,)
    broker = table(User("alice", "long-enough"))
    assert said_by(broker, with_keys=False).over(before, 9) is before
    assert said_by(broker, with_keys=True).over(before, 9).users["alice"].public_keys == ()


def answer(*users: dict[str, Any]) -> bytes:
    inner = {
        "username": "inner", "password": "inner-secret", "userType": "Super",
        "userStatus": "enable",
    }  # fmt: skip
    return json.dumps([inner, *users]).encode()


def test_who_a_node_would_not_make_is_left_out_with_a_word_and_has_no_list() -> None:
    short = {"username": "short", "password": "123", "userType": "Normal", "userStatus": "enable"}
    odd = {"username": "a b", "password": "long-enough", "userType": "Normal", "userStatus": "on"}
    lists = [{"subject": "User:short", "policies": []}, {"subject": "User:gone", "policies": []}]
    found = master_users(answer(short, odd), json.dumps(lists).encode(), OWN)
    assert set(found.users) == {"inner"}
    assert found.lists == {}
    assert len(found.left_out) == 2
    assert "'short': the password has 3 characters" in found.left_out[0]
    assert "123" not in found.left_out[0]


def test_a_list_with_one_entry_that_makes_no_sense_is_left_out_whole() -> None:
    """Without its Deny the rest would allow more."""
    alice = {"username": "alice", "password": "secret-1", "userType": "Normal",
             "userStatus": "enable"}  # fmt: skip
    allow = {"resource": "Topic:*", "actions": ["All"], "decision": "Allow"}
    deny = {"resource": "Topic:x", "actions": ["Fly"], "decision": "Deny"}
    policies = [{"policyType": "Custom", "entries": [allow, deny]}]
    lists = json.dumps([{"subject": "User:alice", "policies": policies}]).encode()
    found = master_users(answer(alice), lists, OWN)
    assert set(found.users) == {"inner", "alice"}
    assert found.lists == {}
    assert "list of 'User:alice'" in found.left_out[0]


@pytest.mark.parametrize(
    ("users", "why"),
    [
        (b"", "does not name the user inner"),
        (b"[]", "does not name the user inner"),
        (b"{}", "holds no users"),
        (b"\xff", "holds no users"),
        (b"[7]", "makes no sense"),
        (users_answer(table(), "", with_secret=False), "no passwords"),
        (users_answer(AccessTable({"inner": replace(INNER, secret="other-one")}), "", True),
         "another one"),
        (users_answer(AccessTable({"inner": User("inner", OWN.secret)}), "", True), "another one"),
        (json.dumps([{}] * 5_001).encode(), "5001 users"),
    ],
)  # fmt: skip
def test_an_answer_without_the_own_user_as_it_must_be_changes_nothing(
    users: bytes, why: str
) -> None:
    with pytest.raises(NotAllowed, match=why) as caught:
        master_users(users, b"", OWN)
    assert "inner-secret" not in caught.value.reason


def test_a_replica_without_users_gets_them_all() -> None:
    after = said_by(table(User("alice", "long-enough"), alice=PUB)).over(EMPTY, 5)
    assert set(after.users) == {"inner", "alice"}
    assert {one.changed_ms for one in after.users.values()} == {5}
