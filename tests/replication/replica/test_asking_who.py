"""A replica asks each request whose it is, before it says what it does not take."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from keelog.replication.replica.loop import QUESTIONS, Replica
from node.access.curve import new_pair
from node.access.users_file import write_users
from node.serving.request_server import Received
from protocol.access.needs import ANYBODY
from protocol.access.own_needs import OWN_NEEDS, SUPER_ALONE, own_needs
from protocol.access.users import AccessTable, User, UserType
from protocol.errors import MqError, NodeFollows, NotAllowed, NotLoggedIn
from protocol.requests import CREATE_TOPIC
from tests.support.owned_store import Owner

FIELDS = {"topic": "orders", "group": "billing"}
KEYS = {name: new_pair().public for name in ("root", "carol")}


@dataclass
class Request:
    """As a server gives it."""

    user: str = ""
    is_own: bool = False
    address: str = "10.0.0.1"
    key: str = ""


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    owner = Owner(tmp_path / "store")
    users = {
        "root": User("root", "", UserType.SUPER, public_keys=(KEYS["root"],)),
        "carol": User("carol", "", public_keys=(KEYS["carol"],)),
    }
    write_users(owner.root, AccessTable(users, {}, 1))
    owner.store.port.look(1.0)
    found = Replica.__new__(Replica)  # without a master to follow
    found.store, found.source = owner.store, "db7:10912"
    found.copy = type("Copy", (), {"settle": lambda self: None})()
    yield found
    owner.stop()


def ask(replica: Replica, operation: str, request: Request) -> dict[str, Any]:
    header = {"v": 1, "op": operation, "id": 1, **FIELDS}
    return replica._answer(operation, header, cast(Received, request))


@pytest.mark.attack(72)
@pytest.mark.parametrize("operation", [*OWN_NEEDS, *sorted(SUPER_ALONE), "format"])
def test_each_handler_asks(replica: Replica, operation: str) -> None:
    with pytest.raises(NotLoggedIn):
        ask(replica, operation, Request())
    if own_needs(operation, FIELDS, "DefaultCluster") != ANYBODY:
        with pytest.raises(NotAllowed, match="User:carol has no permission"):
            ask(replica, operation, Request("carol"))
    for request in (Request("root"), Request(is_own=True)):
        try:
            ask(replica, operation, request)
        except NodeFollows:
            assert operation not in QUESTIONS
        except MqError as error:
            assert not isinstance(error, NotAllowed)


@pytest.mark.attack(43)
def test_lists_are_cut_at_a_replica_too(replica: Replica) -> None:
    replica.store.topics.create(CREATE_TOPIC.parse({"topic": "orders", "queues": 1}))
    assert ask(replica, "topics", Request("carol"))["topics"] == []
    names = {row["topic"] for row in ask(replica, "topics", Request("root"))["topics"]}
    assert "orders" in names
