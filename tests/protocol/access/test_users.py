"""Users and lists as one value: its JSON, its limits, and that nothing shows a secret."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.access import users
from protocol.access.decision import Action, Entry, Kind, Need, parse_resource
from protocol.access.users import AccessList, AccessTable, User, UserStatus, UserType
from protocol.errors import NotAllowed

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
ALLOW = Entry(parse_resource("Topic:orders*"), frozenset((Action.PUB, Action.SUB)), True)
DENY = Entry(parse_resource("Topic:orders"), frozenset((Action.ALL,)), False, ("10.0.0.0/8",))
ALICE = User("alice", "canary-secret", public_keys=(KEY,), changed_ms=1_700_000_000_000)
ROOT = User("root", "another-secret", UserType.SUPER, UserStatus.DISABLE)
TABLE = AccessTable(
    {"alice": ALICE, "root": ROOT}, {"alice": AccessList((ALLOW, DENY), (ALLOW,))}, 7
)

ENTRIES = st.builds(
    Entry,
    st.sampled_from(["*", "Topic:*", "Topic:a", "Group:g*", "Cluster:c"]).map(parse_resource),
    st.sets(st.sampled_from(Action), min_size=1).map(frozenset),
    st.booleans(),
    st.lists(st.sampled_from(["10.0.0.1", "fd00::/8"]), max_size=2).map(tuple),
)
LISTS = st.lists(ENTRIES, min_size=1, max_size=3).map(tuple)


def test_a_table_comes_back_from_its_json_as_it_was() -> None:
    assert users.read_table(users.table_json(TABLE)) == TABLE
    assert users.read_table(users.table_json(users.EMPTY)) == users.EMPTY


@given(LISTS, LISTS, st.integers(0, 2**40))
def test_any_list_comes_back_as_it_was(
    custom: tuple[Entry, ...], default: tuple[Entry, ...], revision: int
) -> None:
    table = AccessTable({"alice": ALICE}, {"alice": AccessList(custom, default)}, revision)
    assert users.read_table(users.table_json(table)) == table


@given(st.integers(0, 2_000), st.binary(max_size=4))
def test_broken_bytes_are_refused_with_a_value_error_that_shows_no_secret(
    at: int, other: bytes
) -> None:
    whole = users.table_json(TABLE)
    broken = whole[: at % len(whole)] + other
    try:
        users.read_table(broken)
    except ValueError as error:
        assert "canary" not in str(error)


def changed(**fields: Any) -> bytes:
    document = json.loads(users.table_json(TABLE))
    return json.dumps({**document, **fields}).encode()


def user(**fields: Any) -> dict[str, Any]:
    known = json.loads(users.table_json(TABLE))["users"][0]
    return {**known, **fields}


SENSELESS = [
    (b"", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "not a table of users"),
    (changed(format=2), "not a table of users"),
    (changed(revision="7"), "no revision"),
    (changed(users={}), "no users"),
    (changed(users=[user(), user()]), "'alice' twice"),
    (changed(users=[user(type="Owner")]), "number 1 of users makes no sense"),
    (changed(users=[user(secret="short")]), "number 1 of users: the password has 5"),
    (changed(users=[user(secret=["canary-secret"])]), "number 1 of users makes no sense"),
    (changed(users=[user(public_keys=["short"])]), "a public key has 5 characters"),
    (changed(users=[user(name="a b")]), "not a name of a user"),
    (changed(users=[user(), user(name="bob")], lists=[]), "one public key for two users"),
    (changed(users=[]), "no such user"),
    (changed(lists=[{"subject": "Group:g", "policies": []}]), "names no user"),
    (changed(lists=[{"subject": "User:alice", "policies": 7}]), "policies"),
]


@pytest.mark.parametrize("number", range(len(SENSELESS)))
def test_a_table_that_makes_no_sense_says_where(number: int) -> None:
    data, why = SENSELESS[number]
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        users.read_table(data)
    assert "canary" not in str(caught.value)


def test_no_value_shows_a_secret() -> None:
    for value in (ALICE, TABLE, {"alice": ALICE}, TABLE.by_public_key):
        assert "secret" not in repr(value)
        assert "secret" not in str(value)


def test_a_key_finds_its_user() -> None:
    assert TABLE.by_public_key[KEY] is ALICE
    assert TABLE.by_public_key.get("another") is None


def test_the_table_decides_by_the_list_of_the_user_who_asks() -> None:
    need = Need(Kind.TOPIC, "orders", frozenset((Action.PUB,)))
    assert TABLE.deciding("alice", need, "10.1.1.1") == DENY
    assert TABLE.deciding("alice", need, "192.168.0.1") == ALLOW
    assert TABLE.deciding("root", need, "10.1.1.1") is None


@pytest.mark.parametrize(
    ("text", "found"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1/8", "10.0.0.1/8")],
)
def test_an_address_is_kept_as_decisions_compare_it(text: str, found: str) -> None:
    assert users.source_of(text) == found


@pytest.mark.parametrize(
    "text", ["", "*", "10.0.0", "10.0.0.1/255.0.0.0", "10.0.0.0/33", "host", "::ffff:10.0.0.0/104"]
)
def test_what_is_no_address_is_refused_in_rocketmqs_words(text: str) -> None:
    with pytest.raises(NotAllowed, match=r"^The source ip is invalid\.$"):
        users.source_of(text)
