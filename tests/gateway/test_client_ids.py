"""Whose a client id is, and for how long."""

from types import SimpleNamespace
from typing import Any

import pytest

from keelog.gateway import client_ids
from keelog.gateway.client_ids import ClientIds
from keelog.gateway.connection import Request
from keelog.gateway.guard import AskingUser
from protocol.access.users import User
from protocol.errors import NotAllowed
from protocol.remoting.headers import RemotingHeader


def request(user: str | None, peer: Any) -> Request:
    guard: Any = SimpleNamespace(refused=lambda *said: NotAllowed(said[-1]))
    asker = None if user is None else AskingUser(guard, User(user, "secret-of-user"), "::1", 34)
    return Request(peer, RemotingHeader(34, 1), memoryview(b""), asker=asker)


@pytest.mark.attack(32)
def test_an_id_is_its_users_until_its_connections_are_gone() -> None:
    ids, first, second, other = ClientIds(), object(), object(), object()
    ids.bind("c", request("alice", first))
    ids.bind("c", request("alice", second))
    ids.went(first)  # type: ignore[arg-type]
    for ask in (ids.bind, ids.check):
        with pytest.raises(NotAllowed, match="is another user's"):
            ask("c", request("bob", other))
    ids.went(second)  # type: ignore[arg-type]
    ids.bind("c", request("bob", other))
    ids.check("c", request("bob", other))


def test_an_id_that_two_connections_have_is_free_when_both_are_gone() -> None:
    ids, first, second = ClientIds(), object(), object()
    ids.bind("c", request("alice", first))
    ids.bind("c", request("alice", second))
    ids.went(second)  # type: ignore[arg-type]
    with pytest.raises(NotAllowed, match="is another user's"):
        ids.bind("c", request("bob", object()))
    ids.went(first)  # type: ignore[arg-type]
    ids.bind("c", request("bob", object()))


def test_without_logins_ids_are_nobodys() -> None:
    ids = ClientIds()
    ids.bind("c", request(None, object()))
    ids.bind("c", request(None, object()))
    ids.check("c", request(None, object()))
    ids.bind("c", request("alice", object()))


def test_a_connection_may_have_many_ids_and_all_together_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_ids, "CLIENT_IDS_MAX", 3)
    ids, peer = ClientIds(), object()
    for name in ("a", "b", "c", "a"):
        ids.bind(name, request("alice", peer))
    with pytest.raises(NotAllowed, match="3 client ids"):
        ids.bind("d", request("alice", peer))
    ids.went(peer)  # type: ignore[arg-type]
    ids.bind("d", request("bob", object()))
