"""Requests of the node to its clients, each until it is answered, is late, or its connection ends.

A client repeats the number of the request, over the connection on which it was asked. What
nobody asked for, or comes too late, is ignored (RocketMQ: NettyRemotingAbstract).
"""

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

from keelog.gateway.connection import Body, RemotingConnection
from protocol.errors import NodeBusy
from protocol.remoting.codes import RequestCode
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import INT32_MAX

CLIENT_REQUESTS_MAX = 1_024
"""Requests to all clients without an answer; further ones are refused as busy."""
ANSWER_S_MAX = 10.0
"""How long a client may take, as at a broker (Broker2Client#callClient)."""


class ClientAnswer(NamedTuple):
    """What a client has answered."""

    header: RemotingHeader
    body: bytes


class ClientRequests:
    """One for each gateway, in the thread of its loop."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, tuple[RemotingConnection, asyncio.Future[ClientAnswer]]] = {}

    def __len__(self) -> int:
        """How many have no answer yet."""
        return len(self._waiting)

    async def ask(
        self,
        connection: RemotingConnection,
        code: RequestCode,
        ext: Mapping[str, str],
        body: Body,
        timeout_s: float = ANSWER_S_MAX,
    ) -> ClientAnswer:
        """Sends a request, and returns its answer.

        Raises NodeBusy beyond CLIENT_REQUESTS_MAX, TimeoutError, and ConnectionResetError when the
        connection has ended.
        """
        if len(self._waiting) >= CLIENT_REQUESTS_MAX:
            raise NodeBusy(f"{CLIENT_REQUESTS_MAX} requests wait for clients")
        if connection.is_closed:
            raise ConnectionResetError("the client is gone")
        opaque = next(self._numbers) % INT32_MAX
        coming: asyncio.Future[ClientAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = connection, coming
        try:
            connection.send(RemotingHeader(code, opaque, ext=ext), body)
            async with asyncio.timeout(timeout_s):
                return await coming
        finally:
            del self._waiting[opaque]

    def answered(
        self, connection: RemotingConnection, header: RemotingHeader, body: Body = b""
    ) -> None:
        """Takes an answer that came over a connection."""
        asked, coming = self._waiting.get(header.opaque, (None, None))
        if asked is connection and coming is not None and not coming.done():
            coming.set_result(ClientAnswer(header, bytes(body)))

    def went(self, connection: RemotingConnection) -> None:
        """A connection is gone: what it was asked fails at once."""
        for asked, coming in list(self._waiting.values()):
            if asked is connection and not coming.done():
                coming.set_exception(ConnectionResetError("the client is gone"))
