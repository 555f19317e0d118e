"""Users by RocketMQ's tools: who may change them, and who sees passwords."""

from types import SimpleNamespace
from typing import Any

import pytest

from keelog.gateway.admin.users import INFO_BYTES_MAX, UserHandlers, shows_secrets
from keelog.gateway.connection import Request
from keelog.gateway.guard import AskingUser
from protocol.access.users import EMPTY, User, UserType
from protocol.errors import NotAllowed
from protocol.ids import parse_host
from protocol.remoting.codes import BadCommand
from protocol.remoting.headers import RemotingHeader

HERE, FAR = "127.0.0.1:5", "192.0.2.1:5"


def request(
    address: str, kind: UserType | None, code: int = 3001, tls: bool = False, body: bytes = b"{}"
) -> Request:
    connection: Any = SimpleNamespace(peer=parse_host(address), is_encrypted=tls)
    guard: Any = None
    asker = None
    if kind is not None:
        asker = AskingUser(guard, User("u", "secret-of-u", kind), address, code)
    header = RemotingHeader(code, 1, ext={"username": "x"})
    return Request(connection, header, memoryview(body), asker=asker)


def handlers() -> UserHandlers:
    core: Any = None
    table: Any = SimpleNamespace(table=EMPTY)
    return UserHandlers(core, table, lambda: None)


def test_while_nobody_must_log_in_users_are_changed_from_this_machine_alone() -> None:
    for code in (3001, 3002, 3003, 3006, 3007, 3008):
        with pytest.raises(NotAllowed, match="at the node itself"):
            handlers().change(request(FAR, None, code)).close()
        handlers().change(request(HERE, None, code)).close()
        handlers().change(request("[::1]:5", None, code)).close()
        handlers().change(request(FAR, UserType.SUPER, code)).close()


def test_a_body_of_more_than_the_limit_is_refused() -> None:
    with pytest.raises(BadCommand):
        handlers().change(request(HERE, None, body=bytes(INFO_BYTES_MAX + 1))).close()


@pytest.mark.parametrize(
    ("address", "kind", "tls", "shows"),
    [
        (HERE, UserType.SUPER, False, True),
        (FAR, UserType.SUPER, True, True),
        (FAR, UserType.SUPER, False, False),
        (HERE, UserType.NORMAL, True, False),
        (HERE, None, True, False),
    ],
)
def test_passwords_are_for_super_users_where_nobody_reads_them_on_their_way(
    address: str, kind: UserType | None, tls: bool, shows: bool
) -> None:
    assert shows_secrets(request(address, kind, 3004, tls)) is shows
