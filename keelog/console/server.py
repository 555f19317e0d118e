"""The HTTP server of the console: uvicorn's protocol by h11, with ends for whoever is slow.

uvicorn has no time-out for a request that comes slowly, nor for an answer that nobody reads, and
both would hold a connection for ever.
"""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from keelog.console.headers import SAFE_HEADERS
from node.runtime.event_log import fields

log = logging.getLogger("keelog.console")

CONNECTIONS_MAX = 64
"""Beyond it a new connection ends the oldest one without a whole request."""
HEAD_BYTES_MAX = 16 * 1024
REQUEST_S_MAX = 5.0
"""From its first byte to its last; also how long a connection may stay idle, and shake hands."""
UNREAD_S_MAX = 10.0
"""How long an answer may wait for a browser that reads nothing."""
BACKLOG = 64
STOP_S_MAX = 1.0
"""How long replies that are under way may take at the end."""


class DeadlineProtocol(H11Protocol):
    """One connection. It ends without a word when a request is not whole in time, and when an
    answer is not read."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config, state, {})
        self.since = self.loop.time()
        """When it came, or its last request ended."""
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts it, and makes room where there are too many."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            _end_one(self, self.connections)  # type: ignore[arg-type]
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its timers end with it."""
        self._settle()
        self._read()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The time begins with the first byte of a request and ends with its last."""
        if self._late is None and not self.is_busy:
            self.since = self.loop.time()
            self._expect()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.more_body:
            self._settle()

    @property
    def is_busy(self) -> bool:
        """Whether a whole request is being answered."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def pause_writing(self) -> None:
        """Nobody reads the answer now."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        """Somebody has read again."""
        super().resume_writing()
        self._read()

    def send_400_response(self, msg: str) -> None:
        """As uvicorn's, with our headers: it is for bytes that are not HTTP."""
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"connection", b"close"),
            *SAFE_HEADERS,
        ]
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        answer = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (answer, h11.Data(data=msg.encode("ascii")), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _expect(self) -> None:
        self._settle()
        self._late = self.loop.call_later(REQUEST_S_MAX, self.transport.abort)

    def _settle(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _end_one(newest: DeadlineProtocol, connections: set[DeadlineProtocol]) -> None:
    """Ends the connection that has waited longest for a whole request; else the newest one."""
    waiting = [one for one in connections if one is not newest and not one.is_busy]
    chosen = min(waiting, key=lambda one: one.since, default=newest)
    chosen.transport.abort()


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    stop: asyncio.Event,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serves at a socket that listens, until `stop` is set."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_keep_alive=int(REQUEST_S_MAX),
    )
    config.load()
    state = ServerState()
    handshake: dict[str, Any] = {} if tls is None else {"ssl_handshake_timeout": REQUEST_S_MAX}
    server = await asyncio.get_running_loop().create_server(
        partial(DeadlineProtocol, config, state),
        sock=listener, ssl=tls, backlog=BACKLOG, **handshake,
    )  # fmt: skip
    await stop.wait()
    server.close()
    for connection in list(state.connections):
        connection.shutdown()
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_S_MAX):
            await asyncio.gather(*state.tasks, return_exceptions=True)
    for connection in list(state.connections):
        connection.transport.abort()
    log.debug("the console has ended", extra=fields(requests=state.total_requests))
