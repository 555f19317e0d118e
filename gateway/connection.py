"""One connection of a RocketMQ client: bytes in, requests out, replies back. It knows no request.

A client has one connection for all its threads, so many requests are under way on it, and their
replies go out in any order: those of one turn of the loop together.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import NamedTuple, Protocol

from node.runtime.event_log import fields
from protocol.errors import NodeBusy
from protocol.message_id import NO_HOST, Host
from protocol.remoting.codes import ResponseCode
from protocol.remoting.errors import BadCommand, BrokenFrame
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import ONE_WAY, RemotingHeader

log = logging.getLogger("keelog.gateway")

UNDER_WAY_MAX = 1_024
"""Requests of one connection without an answer; further ones are refused as busy."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Of replies that a client does not read: beyond it, the connection ends."""
PAUSE_BYTES = 1024 * 1024
"""While more than this is unsent, nothing more is read from the client."""
IDLE_S_MAX = 120.0
"""A connection on which nothing was read for longer is closed: clients beat every 30 s."""
_NUMBERS = count(1)

Body = bytes | bytearray | memoryview
NO_EXT: Mapping[str, str] = {}


class Reply(NamedTuple):
    """The outcome of a request, for its client."""

    code: int = ResponseCode.SUCCESS
    ext: Mapping[str, str] = NO_EXT
    body: Body = b""
    remark: str | None = None


class RequestHandler(Protocol):
    """What takes the requests of all connections."""

    def take(self, request: "Request") -> None:
        """Serves a request, at once or later. Its body is valid only until the return."""

    def came(self, connection: "RemotingConnection") -> None:
        """A client has connected."""

    def went(self, connection: "RemotingConnection") -> None:
        """A connection is gone: nothing reaches it any more."""


@dataclass(slots=True, eq=False)
class Request:
    """One request, until it is answered."""

    connection: "RemotingConnection"
    header: RemotingHeader
    body: memoryview
    is_open: bool = True

    def answer(self, reply: Reply) -> None:
        """Sends the answer; nothing for a one-way request, or when it was answered before."""
        if not self.is_open:
            return
        self.is_open = False
        self.connection.under_way -= 1
        if not self.header.flag & ONE_WAY:
            header = self.header.answer(reply.code, reply.ext, reply.remark)
            self.connection.send(header, reply.body)


@dataclass(slots=True, eq=False)
class RemotingConnection(asyncio.BufferedProtocol):
    """The server's end. All runs in the loop's thread."""

    handler: RequestHandler
    loop: asyncio.AbstractEventLoop
    peer: Host = NO_HOST
    """The client's address: the born host of its messages."""
    address: str = ""
    """The address and port at which the client reached the node."""
    under_way: int = 0
    heard_at: float = 0.0
    number: bytes = field(default_factory=lambda: b"%d" % next(_NUMBERS))
    """Its name among the peers of held pulls."""
    is_closed: bool = False
    _reader: FrameReader = field(default_factory=FrameReader)
    _unsent: list[Body] = field(default_factory=list)
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=PAUSE_BYTES)
        self.peer = _host(*transport.get_extra_info("peername")[:2])
        self.address = str(_host(*transport.get_extra_info("sockname")[:2]))
        self.heard_at = monotonic()
        self.handler.came(self)

    def connection_lost(self, _: Exception | None) -> None:
        """Of asyncio."""
        self.is_closed = True
        self._unsent.clear()
        self.handler.went(self)

    def pause_writing(self) -> None:
        """Of asyncio: the client does not read, so its requests wait."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Of asyncio."""
        if self._transport is not None:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Of asyncio."""
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Of asyncio: takes all requests that are whole."""
        self.heard_at = monotonic()
        try:
            for header, body in self._reader.received(nbytes):
                if header.is_answer:
                    continue  # to a request of ours, and none of those waits for its answer yet
                self._take(Request(self, header, body))
        except BrokenFrame as error:
            self._end("a connection sent a broken frame", error.reason)

    def _take(self, request: Request) -> None:
        self.under_way += 1
        if self.under_way > UNDER_WAY_MAX:
            text = f"{UNDER_WAY_MAX} requests of this connection wait for their replies"
            request.answer(Reply(NodeBusy.code, remark=f"[OVERLOAD] {text}"))
        else:
            self.handler.take(request)

    def send(self, header: RemotingHeader, body: Body = b"") -> None:
        """Sends a frame, after what was sent in this turn of the loop before it."""
        if self.is_closed:
            return
        try:
            head = frame_head(header, len(body))
        except BadCommand as error:
            refused = header._replace(code=error.code, ext=NO_EXT, remark=error.reason)
            head, body = frame_head(refused, 0), b""
        if not self._unsent:
            self.loop.call_soon(self._flush)
        self._unsent += (head, body) if body else (head,)

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or self.is_closed or not self._unsent:
            return
        pieces: Iterable[Body] = self._unsent
        self._unsent = []
        transport.write(b"".join(pieces))
        if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._end("a client does not read its replies", f"{UNSENT_BYTES_MAX} bytes are unsent")

    def close_if_idle(self, now: float) -> None:
        """Ends a connection on which nothing came for IDLE_S_MAX."""
        if now - self.heard_at > IDLE_S_MAX:
            self._end("a connection was silent", f"for more than {IDLE_S_MAX:.0f} s")

    def close(self) -> None:
        """Ends it after what is unsent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _end(self, event: str, why: str) -> None:
        log.warning(event, extra=fields(peer=str(self.peer), why=why))
        if self._transport is not None:
            self._transport.abort()


def _host(ip: str, port: int) -> Host:
    """The address of one end of a socket; an IPv4 address in IPv6's form becomes one."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return Host((mapped or address).packed, port)
