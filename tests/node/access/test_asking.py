"""What a port asks of a request: whose it is, and what that user may do."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from node.access.asking import PortAsker, PortGuard
from node.access.audit import AuditLog
from node.access.curve import new_pair
from node.access.rights import Rights
from node.access.user_table import UserTable
from node.access.users_file import auth_dir, write_users
from node.runtime.settings import Settings
from protocol.access.decision import Action, Entry, Kind, parse_resource
from protocol.access.needs import ANYBODY, OF_OTHERS
from protocol.access.own_needs import OWN_NEEDS, SUPER_ALONE, own_needs
from protocol.access.users import AccessList, AccessTable, User, UserStatus, UserType
from protocol.errors import MqError, NotAllowed, NotLoggedIn

KEYS = {name: new_pair().public for name in ("root", "alice", "nobody")}
AUDIT = "audit.test.log"
FIELDS = {"topic": "orders", "group": "billing"}


@dataclass
class Request:
    """As a server gives it."""

    user: str = ""
    address: str = "10.0.0.1"
    is_own: bool = False

    @property
    def key(self) -> str:
        return KEYS.get(self.user, "")


def entry(resource: str, *actions: Action, allow: bool = True, sources: str = "") -> Entry:
    named = (sources,) if sources else ()
    return Entry(parse_resource(resource), frozenset(actions), allow, named)


def table(*entries: Entry, revision: int = 1, **more: User) -> AccessTable:
    users = {
        "root": User("root", "", UserType.SUPER, public_keys=(KEYS["root"],)),
        "alice": User("alice", "", public_keys=(KEYS["alice"],)),
        "nobody": User("nobody", "", public_keys=(KEYS["nobody"],)),
    }
    return AccessTable(users | more, {"alice": AccessList(entries)}, revision)


def port_of(root: Path, found: AccessTable | None = None, **settings: str) -> PortGuard:
    if found is not None:
        write_users(root, found)
    rights = Rights(UserTable(root), Settings(**settings))  # type: ignore[arg-type]
    return PortGuard(rights, AuditLog(root, AUDIT))


def ask(port: PortGuard, user: str, operation: str, **fields: Any) -> PortAsker | None:
    return port.asker_of(Request(user), operation, {**FIELDS, **fields})


def audited(root: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (auth_dir(root) / AUDIT).read_text().splitlines()]


def change(port: PortGuard, after: AccessTable) -> bool:
    write_users(port.users._root, after)
    return port.look(port.users._looked_at + 1.0)


def test_without_users_nobody_is_asked_and_the_first_one_ends_that(tmp_path: Path) -> None:
    port = port_of(tmp_path)
    assert not port.is_on
    assert ask(port, "", "send") is None
    assert not port.look(0.0)
    assert change(port, table())
    assert port.is_on
    with pytest.raises(NotLoggedIn, match="this client has no key") as caught:
        ask(port, "", "ping")
    assert "keelog key new" in caught.value.hint
    assert audited(tmp_path)[0]["operation"] == "ping"


@pytest.mark.parametrize("operation", [*OWN_NEEDS, *sorted(SUPER_ALONE), "format", ""])
def test_a_user_without_a_list_may_do_what_anybody_may_and_nothing_else(
    tmp_path: Path, operation: str
) -> None:
    port = port_of(tmp_path, table())
    assert ask(port, "root", operation) is not None
    assert port.asker_of(Request(is_own=True), operation, {}) is None
    with pytest.raises(NotLoggedIn):
        ask(port, "", operation)
    if own_needs(operation, FIELDS, "DefaultCluster") == ANYBODY:
        assert ask(port, "nobody", operation) is not None
        return
    with pytest.raises(NotAllowed, match="User:nobody has no permission"):
        ask(port, "nobody", operation)
    assert (audited(tmp_path)[-1]["user"], audited(tmp_path)[-1]["address"]) == (
        "nobody", "10.0.0.1",
    )  # fmt: skip


@pytest.mark.parametrize("operation", ["send", "append", "stage", "get", "find"])
def test_a_record_needs_the_right_to_its_own_topic(tmp_path: Path, operation: str) -> None:
    port = port_of(tmp_path, table(entry("Topic:orders", Action.PUB, Action.SUB)))
    asker = ask(port, "alice", operation)
    assert asker is not None
    asker.check_topic("orders")
    for topic in ("secret", "%RETRY%billing", *OF_OTHERS):
        with pytest.raises(NotAllowed, match="has no permission"):
            asker.check_topic(topic)
    free = ask(port, "root", operation)
    assert free is not None
    for topic in ("secret", *OF_OTHERS):
        free.check_topic(topic)


def test_an_entry_with_addresses_counts_from_there_alone(tmp_path: Path) -> None:
    port = port_of(tmp_path, table(entry("Topic:orders", Action.PUB, sources="10.0.0.0/8")))
    assert ask(port, "alice", "send") is not None
    for address in ("11.0.0.1", ""):
        with pytest.raises(NotAllowed):
            port.asker_of(Request("alice", address), "send", FIELDS)


@pytest.mark.attack(43)
def test_lists_name_what_a_user_has_any_right_to(tmp_path: Path) -> None:
    rows = entry("Topic:orders*", Action.SUB), entry("Group:g", Action.SUB)
    port = port_of(tmp_path, table(*rows))
    asker = ask(port, "alice", "topics")
    assert asker is not None
    assert not asker.sees_all
    topics = ("orders-eu", "secret", "%RETRY%g", "%RETRY%other")
    assert [topic for topic in topics if asker.sees(Kind.TOPIC, topic)] == ["orders-eu", "%RETRY%g"]
    assert [group for group in ("g", "other") if asker.sees(Kind.GROUP, group)] == ["g"]
    assert change(port, table(*rows, entry("Cluster:DefaultCluster", Action.GET), revision=2))
    assert asker.sees_all


@pytest.mark.attack(13)
def test_a_request_that_waits_is_refused_when_its_right_is_gone(tmp_path: Path) -> None:
    rows = (entry("Topic:orders", Action.SUB),)
    port = port_of(tmp_path, table(*rows))
    held, of_root = ask(port, "alice", "pull"), ask(port, "root", "pull")
    assert held is not None
    assert of_root is not None
    assert (held.refusal(), of_root.refusal()) == (None, None)
    alice = User("alice", "", public_keys=(KEYS["alice"],))
    root = User("root", "", public_keys=(KEYS["root"],))
    for number, (after, why) in enumerate(
        [
            (table(), "no matched policies"),
            (table(*rows, alice=User("alice", "", status=UserStatus.DISABLE)), "nobody's any more"),
            (table(*rows, alice=User("alice", "x" * 8)), "nobody's any more"),
        ],
        2,
    ):
        changed = AccessTable(after.users, after.lists, number)
        assert change(port, changed)
        refusal = held.refusal()
        assert refusal is not None
        assert why in refusal.reason
        assert of_root.refusal() is None
    assert change(port, table(*rows, alice=alice, root=root, revision=9))
    assert held.refusal() is None
    refusal = of_root.refusal()
    assert refusal is not None
    assert "not a Super user any more" in refusal.reason


def test_with_authorization_off_a_key_is_enough_for_all_but_users(tmp_path: Path) -> None:
    port = port_of(tmp_path, table(), authorization_enabled="false")
    for operation in OWN_NEEDS:
        asker = ask(port, "nobody", operation)
        assert asker is not None
        assert asker.is_free
        asker.check_topic("secret")
    for operation in SUPER_ALONE:
        with pytest.raises(NotAllowed):
            ask(port, "nobody", operation)
    with pytest.raises(NotLoggedIn):
        ask(port, "", "ping")


@pytest.mark.parametrize("mode", ["auto", "false"])
def test_users_are_changed_by_super_users_and_at_local_sockets_alone(
    tmp_path: Path, mode: str
) -> None:
    """Also while nobody has to log in: there is no user yet, or nobody is asked."""
    found = table() if mode == "false" else None
    port = port_of(tmp_path, found, authentication_enabled=mode)
    assert not port.is_on
    assert port.caller_of(Request(is_own=True), "change_users") is None
    for user in ("", *(("alice", "gone") if found else ())):
        with pytest.raises(NotAllowed) as caught:
            port.caller_of(Request(user, "127.0.0.1"), "change_users")
        assert caught.value.hint
    if found:
        caller = port.caller_of(Request("root"), "change_users")
        assert caller == ("root", "10.0.0.1")


def test_refusals_are_found_in_the_audit_log_and_keys_are_not(tmp_path: Path) -> None:
    port = port_of(tmp_path, table())
    for user in ("", "nobody"):
        with pytest.raises(MqError):
            ask(port, user, "send")
    with pytest.raises(NotAllowed):
        port.asker_of(Request("alice"), "send", {})
    port.close()
    rows = audited(tmp_path)
    assert [row.get("resource") for row in rows] == [None, "Topic:orders", None]
    assert {row["end"] for row in rows} == {"zeromq"}
    text = (auth_dir(tmp_path) / AUDIT).read_text()
    assert not any(key in text for key in KEYS.values())
