"""What a node passes on to a client of what a tool asked for: never what proves who asks."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from keelog.gateway.admin.groups import GroupHandlers
from protocol.access.remoting_needs import CREDENTIALS
from protocol.ids import NO_HOST, offset_message_id
from protocol.remoting.codes import RequestCode
from protocol.remoting.header_fields import request_fields
from protocol.remoting.headers import RemotingHeader

GATEWAY = Path(__file__).resolve().parents[3] / "keelog/gateway"
READ_ALONE = ("guard.py", "users.py")
"""They look at the fields, and send none on."""
PLAIN = {"consumerGroup": "g", "clientId": "c", "msgId": offset_message_id(NO_HOST, 0)}
Ask = Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]


def passed_on(ask: Ask, code: RequestCode, ext: Mapping[str, str]) -> Mapping[str, str]:
    """The fields that the client gets."""
    gateway, header = MagicMock(), RemotingHeader(code, 1, ext=ext)
    gateway._call = AsyncMock()
    gateway._topics.name.broker = "b1"
    asyncio.run(ask(gateway, MagicMock(header=header), request_fields(header)))
    found: Mapping[str, str] = gateway._call.call_args.args[3]
    return found


@pytest.mark.attack(17)
@pytest.mark.parametrize(
    ("ask", "code", "plain"),
    [
        (
            GroupHandlers.running_info,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {**PLAIN, "jstackEnable": "true"},
        ),
        (GroupHandlers.consume, RequestCode.CONSUME_MESSAGE_DIRECTLY, {**PLAIN, "topic": "t"}),
    ],
)
def test_a_client_that_a_tool_asks_gets_all_fields_but_credentials(
    ask: Ask, code: RequestCode, plain: Mapping[str, str]
) -> None:
    found = passed_on(ask, code, {**plain, **dict.fromkeys(CREDENTIALS, "secret")})
    assert plain.items() <= found.items()
    assert "secret" not in found.values()
    assert not CREDENTIALS & found.keys()


@pytest.mark.attack(17)
def test_no_other_place_passes_the_fields_of_a_request_on_as_they_came() -> None:
    uses = [
        (path.name, found[0])
        for path in sorted(GATEWAY.rglob("*.py"))
        if path.name not in READ_ALONE
        for found in re.finditer(r"[\w.]*\(?request\.header\.ext\b", path.read_text())
    ]
    assert [how for _, how in uses] == ["without_credentials(request.header.ext"] * 2, uses
