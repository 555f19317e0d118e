"""One connection of a RocketMQ client: bytes in, requests out, replies back. It knows no request.

A client has one connection for all its threads, so many requests are under way on it, and their
replies go out in any order: those of one turn of the loop together.
"""

import asyncio
import ipaddress
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from node.runtime.event_log import Seldom, fields
from protocol import addresses, errors, ids
from protocol.remoting import codes, headers, java_json
from protocol.remoting.frame_reader import ROOM_BYTES, FrameReader, frame_head

if TYPE_CHECKING:
    from keelog.gateway.guard import AskingUser
    from keelog.gateway.service import GatewayService

log = logging.getLogger("keelog.gateway")

UNDER_WAY_MAX = 1_024
"""Requests of one connection without an answer; further ones are refused as busy."""
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Of replies that a client does not read: beyond it, the connection ends."""
BUFFERED_BYTES_MAX = 256 * 1024 * 1024
"""Of all connections: frames that have begun, and unsent replies. Beyond it, those end that hold
most."""
PIECE_BYTES_MIN = 4096
"""Replies whose pieces are larger in mean are not joined before they are written."""
PAUSE_BYTES = 1024 * 1024
"""While more than this is unsent, no more requests of the client are taken."""
IDLE_S_MAX = 120.0
"""A connection on which nothing was read for longer is closed: clients beat every 30 s."""
FRAME_S_MAX = 120.0
"""A connection of which a frame has begun, and does not come to its end, is closed."""
LOGIN_S_MAX = 10.0
"""Where users must log in: a connection without a good signature is closed after this time."""
STRANGERS_BYTES_MAX = 64 * 1024 * 1024
"""Where users must log in: of all connections without a good signature, as BUFFERED_BYTES_MAX. So
strangers end no connection of a user."""
_NUMBERS = count(1)

Body = bytes | bytearray | memoryview
NO_EXT: Mapping[str, str] = {}
_NO_BODY = memoryview(b"")


class Reply(NamedTuple):
    """The outcome of a request, for its client."""

    code: int = codes.ResponseCode.SUCCESS
    ext: Mapping[str, str] = NO_EXT
    body: Body = b""
    remark: str | None = None


def system_error(why: object) -> Reply:
    """The reply to what failed, where RocketMQ has no other code for that."""
    return Reply(codes.ResponseCode.SYSTEM_ERROR, remark=str(why))


def json_reply(value: Any, ext: Mapping[str, str] = NO_EXT) -> Reply:
    """A body of `write_body`, in standard JSON."""
    return Reply(ext=ext, body=java_json.write_body(value, standard=True))


class EndReason(StrEnum):
    """Why a connection was ended."""

    BROKEN = "broken"
    UNREAD = "unread"
    SILENT = "silent"
    CROWD = "crowd"
    MEMORY = "memory"
    LOGIN = "login"


@dataclass(slots=True, eq=False)
class Request:
    """One request, until it is answered."""

    connection: "RemotingConnection"
    header: headers.RemotingHeader
    body: memoryview
    is_open: bool = True
    asker: "AskingUser | None" = None
    """The user who sent it; None where nobody must say so."""

    def forget_fields(self) -> None:
        """They and the body are read: until it is answered it costs little memory."""
        known = self.header
        self.header = headers.RemotingHeader(
            known.code, known.opaque, known.flag, serialization=known.serialization
        )
        self.body = _NO_BODY

    def answer(self, reply: Reply) -> None:
        """Sends the answer; nothing for a one-way request, or when it was answered before."""
        if not self.is_open:
            return
        self.is_open = False
        self.connection.under_way -= 1
        self.connection.handler.count(self.header.code, reply.code)
        if not self.header.flag & headers.ONE_WAY:
            header = self.header.answer(reply.code, reply.ext, reply.remark)
            self.connection.send(header, reply.body)


class Gathering:
    """What the requests of a read, or the writer's answer, give to send: it goes at their end. A
    turn of the loop for each would cost a lone caller a tenth."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._last: deque[Callable[[], None]] = deque()
        """What nobody waits for: it is done when nothing is left to send."""
        self._depth = 0

    def at_end(self, send: Callable[[], None], is_last: bool = False) -> None:
        """Does it at the end of what is being taken, otherwise of this turn of the loop.
        `is_last`: after all that is to be sent."""
        if not self._depth and not self._waiting and not self._last:
            asyncio.get_running_loop().call_soon(self._send)
        (self._last if is_last else self._waiting).append(send)

    def __enter__(self) -> None:
        """Around what takes requests, or what the writer said of some."""
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and self._depth == 1:
                self._send()
        finally:
            self._depth -= 1
            if (self._waiting or self._last) and not self._depth:
                asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        while found := self._waiting or self._last:
            found.popleft()()


class ConnectionBuffers:
    """The bytes that all connections hold: frames that have begun, and unsent replies."""

    def __init__(self, limit: int = BUFFERED_BYTES_MAX) -> None:
        self.gathering = Gathering()
        self.said = Seldom()
        self.room = memoryview(bytearray(ROOM_BYTES))
        """Where every connection reads to: idle ones cost no memory."""
        self.held = 0
        self._limit = limit
        self._holders: dict[RemotingConnection, int] = {}
        self._strange = 0
        """Of `held`: of connections that are not known."""
        self.strangers_limit: int | None = None
        """For those; None where nobody must log in."""

    def note(self, connection: "RemotingConnection", now: int) -> None:
        """A connection holds this number of bytes now."""
        before = self._holders.pop(connection, 0)
        if now:
            self._holders[connection] = now
        self.held += now - before
        if self.held > self._limit and now > before:
            self.count_anew()
            self._shrink()
        if self.strangers_limit is not None and not connection.is_known:
            self._strange += now - before
            if self._strange > self.strangers_limit and now > before:
                self.count_anew()
                self._shrink_strangers(self.strangers_limit)

    def is_of_user(self, connection: "RemotingConnection") -> None:
        """A user has logged in: what the connection holds is no stranger's any more."""
        if self.strangers_limit is not None and not connection.is_known:
            self._strange -= self._holders.get(connection, 0)

    def count_anew(self) -> None:
        """What was sent in the meantime is not noted by itself."""
        self._holders = {one: now for one in self._holders if (now := one.buffered_bytes)}
        self.held = sum(self._holders.values())
        self._strange = sum(now for one, now in self._holders.items() if not one.is_known)

    def _shrink(self) -> None:
        while self.held > self._limit:
            greediest = max(self._holders, key=self._holders.__getitem__)
            why = f"the connections hold {self.held} bytes, this one {self._holders[greediest]}"
            self.held -= self._holders.pop(greediest)
            greediest.end(EndReason.MEMORY, why)

    def _shrink_strangers(self, limit: int) -> None:
        strangers = {one: now for one, now in self._holders.items() if not one.is_known}
        while self._strange > limit:
            greediest = max(strangers, key=strangers.__getitem__)
            size = strangers.pop(greediest)
            why = f"those who have not logged in hold {self._strange} bytes, this one {size}"
            self.held -= self._holders.pop(greediest)
            self._strange -= size
            greediest.end(EndReason.MEMORY, why)


_EVENTS = {
    EndReason.BROKEN: "a connection sent a broken frame",
    EndReason.UNREAD: "a client does not read its replies",
    EndReason.SILENT: "a connection was silent",
    EndReason.CROWD: "too many connections",
    EndReason.MEMORY: "a connection holds too much memory",
    EndReason.LOGIN: "a client has not logged in",
}


@dataclass(slots=True, eq=False)
class RemotingConnection(asyncio.BufferedProtocol):
    """The server's end. All runs in the loop's thread."""

    handler: "GatewayService"
    """Takes requests and answers, whose bodies are valid only until it returns."""
    loop: asyncio.AbstractEventLoop
    peer: ids.Host = ids.NO_HOST
    """The client's address: the born host of its messages."""
    address: str = ""
    """The address and port at which the client reached the node."""
    client_id: str = ""
    group: str = ""
    """What its last heart-beat named, of groups that of a consumer; empty before."""
    under_way: int = 0
    heard_at: float = 0.0
    number: bytes = field(default_factory=lambda: b"%d" % next(_NUMBERS))
    """Its name among the peers of held pulls."""
    is_encrypted: bool = False
    """Whether it came by TLS."""
    logins: dict[str, tuple[float, int, str]] = field(default_factory=dict)
    """By user, each of whom has signed a request on it: until when, and for which table of users,
    that proves who sends others (TRUST_S of the guard); and the secret that signed it."""
    is_known: bool = False
    """Whether a user has logged in on it, who may still."""
    came_at: float = 0.0
    """When it came, or became a stranger's."""
    is_closed: bool = False
    is_unread: bool = False
    """The client does not read what was sent."""
    _reader: FrameReader = field(init=False)
    _noted_bytes: int = 0
    """Of the frame that has begun, as ConnectionBuffers know it."""
    _begun_at: float | None = None
    """When the frame began that is not whole."""
    _unsent: list[Body] = field(default_factory=list)
    _unsent_bytes: int = 0
    _is_waiting: bool = False
    """Requests that were read wait until it does."""
    _transport: asyncio.Transport | None = None
    _descriptor: int = -1
    """Of the transport's socket, which is open until `is_closed`; -1 with TLS: what is written to a
    descriptor goes out as it is."""

    def __post_init__(self) -> None:
        self._reader = FrameReader(shared=self.handler.buffers.room)

    @property
    def buffered_bytes(self) -> int:
        """What it holds: a frame that has begun, and unsent replies."""
        transport = self._transport
        if self.is_closed or transport is None:
            return 0
        return self._reader.buffer_bytes + transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=PAUSE_BYTES)
        self.is_encrypted = transport.get_extra_info("ssl_object") is not None
        if not self.is_encrypted:
            self._descriptor = transport.get_extra_info("socket").fileno()
        if name := transport.get_extra_info("peername"):  # else it was reset in this moment
            self.peer = _host(*name[:2])
        self.address = str(_host(*transport.get_extra_info("sockname")[:2]))
        self.heard_at = self.came_at = monotonic()
        self.handler.came(self)

    def logged_in(self) -> None:
        """A user has logged in on it."""
        self.handler.buffers.is_of_user(self)
        self.is_known = True

    def is_strangers(self, now: float) -> None:
        """Nobody who has logged in on it may any more, or nobody had to: it has as long as a new
        one to log in."""
        self.is_known, self.came_at = False, now

    def connection_lost(self, _: Exception | None) -> None:
        self.is_closed = True
        self._unsent.clear()
        self.handler.buffers.note(self, 0)
        self.handler.went(self)

    def pause_writing(self) -> None:
        """Of asyncio: the client does not read, so its requests wait."""
        self.is_unread = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Of asyncio: a client that reads is not silent."""
        self.is_unread = False
        self.heard_at = monotonic()
        self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Takes the requests that were read before the client stopped reading, then further ones.
        Nothing if it has stopped again: the next `resume_writing` comes."""
        if self.is_unread or self.is_closed or self._transport is None:
            return
        self._transport.resume_reading()
        if self._is_waiting:
            self._is_waiting = False
            self._take_frames(0)
        self._note_bytes()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Of asyncio: takes all requests that are whole."""
        self.heard_at = monotonic()
        if self._take_frames(nbytes) != self._noted_bytes:
            self._note_bytes()

    def _take_frames(self, nbytes: int) -> int:
        """Returns what the frame that has begun costs."""
        taken = False
        with self.handler.buffers.gathering:
            try:
                for header, body in self._reader.received(nbytes):
                    if header.flag & headers.ANSWER:
                        self.handler.answered(self, header, body)
                    else:
                        self._take(Request(self, header, body))
                    taken = True
                    if self.is_unread or self.is_closed:
                        self._is_waiting = True
                        break
            except codes.BrokenFrame as error:
                other = addresses.foreign_client(self._reader.begun)
                why = error.reason if other is None else f"it is of {other.what}: {other.hint}"
                self.end(EndReason.BROKEN, why)
            held = self._reader.keep(nbytes)
        if not held:
            self._begun_at = None
        elif self._begun_at is None or taken:
            self._begun_at = self.heard_at
        return held

    def _note_bytes(self) -> None:
        self._noted_bytes = self._reader.buffer_bytes
        self.handler.buffers.note(self, self.buffered_bytes)

    def _take(self, request: Request) -> None:
        self.under_way += 1
        if self.under_way > UNDER_WAY_MAX:
            text = f"{UNDER_WAY_MAX} requests of this connection wait for their replies"
            request.answer(Reply(errors.NodeBusy.code, remark=f"[OVERLOAD] {text}"))
        else:
            self.handler.take(request)

    def send(self, header: headers.RemotingHeader, body: Body = b"") -> None:
        """Sends a frame, after what was sent in this turn of the loop before it."""
        if self.is_closed:
            return
        try:
            head = frame_head(header, len(body))
        except codes.BadCommand as error:
            refused = header._replace(code=error.code, ext=NO_EXT, remark=error.reason)
            head, body = frame_head(refused, 0), b""
        if not self._unsent:
            self.handler.buffers.gathering.at_end(self._flush)
        self._unsent += (head, body) if body else (head,)
        self._unsent_bytes += len(head) + len(body)
        if self._unsent_bytes > PAUSE_BYTES:
            self._flush()  # so that it is known at once whether the client reads

    def _flush(self) -> None:
        transport = self._transport
        if transport is None or self.is_closed or not self._unsent:
            return
        pieces, size = self._unsent, self._unsent_bytes
        self._unsent, self._unsent_bytes = [], 0
        sent = self._write(transport, pieces) if size >= len(pieces) * PIECE_BYTES_MIN else 0
        if sent == size:
            return
        transport.write(b"".join(pieces)[sent:])
        unsent = transport.get_write_buffer_size()
        if unsent > UNSENT_BYTES_MAX:
            self.end(EndReason.UNREAD, f"{UNSENT_BYTES_MAX} bytes are unsent")
        elif unsent:
            self._note_bytes()

    def _write(self, transport: asyncio.Transport, pieces: list[Body]) -> int:
        """Writes what the network takes at once, without a copy: how many bytes. The transport
        writes the rest, meets an error too, and ends the connection then."""
        if self.is_encrypted or transport.get_write_buffer_size():
            return 0  # what was sent before goes first
        try:
            return os.writev(self._descriptor, pieces)
        except OSError:
            return 0

    def close_if_idle(self, now: float, must_log_in: bool = False) -> None:
        """Ends a connection on which nothing came for IDLE_S_MAX, one of which a frame began
        FRAME_S_MAX ago, and where users must log in one on which none has for LOGIN_S_MAX."""
        if must_log_in and not self.is_known and now - self.came_at > LOGIN_S_MAX:
            self.end(EndReason.LOGIN, f"for {LOGIN_S_MAX:.0f} s")
            return
        if now - self.heard_at > IDLE_S_MAX:
            self.end(EndReason.SILENT, f"for more than {IDLE_S_MAX:.0f} s")
        elif self._begun_at is not None and now - self._begun_at > FRAME_S_MAX:
            self.end(EndReason.SILENT, f"a frame has not ended for {FRAME_S_MAX:.0f} s")

    def close(self) -> None:
        """Ends it after what is unsent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def end(self, reason: EndReason, why: str) -> None:
        """Ends it at once, without what is unsent."""
        if self.is_closed:
            return
        said = self.handler.buffers.said
        # Who sends broken frames comes again, each second or so.
        if reason is not EndReason.BROKEN or said.is_due((self.peer.ip, why), monotonic()):
            who = {"client_id": self.client_id, "group": self.group}
            known = {name: text for name, text in who.items() if text}
            log.warning(_EVENTS[reason], extra=fields(peer=str(self.peer), **known, why=why))
        self.handler.count_end(reason)
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()


def _host(ip: str, port: int) -> ids.Host:
    """The address of one end of a socket; an IPv4 address in IPv6's form becomes one."""
    address = ipaddress.ip_address(ip.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return ids.Host((mapped or address).packed, port)
