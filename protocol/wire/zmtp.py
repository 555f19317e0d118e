"""ZMTP 3.1 (rfc.zeromq.org/spec/37), as far as DEALER and ROUTER need it with the mechanism NULL.

A connection begins with a greeting and a READY of either side. Messages of one or more frames
follow, and PINGs, which the peer has to answer. This module has no sockets and no clock:
`Connection` holds the rules, and each end moves the bytes in its own way.

`parse_socket_event` reads the events of libzmq's sockets, as their monitor says them
(zmq_socket_monitor(3)). pyzmq's own parser would bring asyncio and TLS into every process of a
node: 50 ms of each start.
"""

import struct
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

GREETING_BYTES = 64
GREETING = struct.pack(">B8xBBB20sB31x", 0xFF, 0x7F, 3, 1, b"NULL", 0)
"""Signature, version 3.1, mechanism, no server of a mechanism."""
ROOM_BYTES = 128 * 1024
COMMAND_BYTES_MAX = 4_096
BYTES_FRAME_MIN = 65_536
"""A frame of this size stays where it was received; a smaller one is copied to bytes."""
FRAMES_MAX = 64
"""In one message. Node and client send two at most."""
PING_S = 2.0
"""A peer that was silent for this long is asked for a PONG."""
PONG_S = 8.0
"""A peer that was asked for a PONG and stays silent for longer is gone."""
STALE_S = 4.0
"""A connection on which this end was silent for longer is not used: the peer closes it after
PONG_S."""
Payload = bytes | memoryview
Sendable = bytes | bytearray | memoryview

_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_MAX = 255
_SHORT_HEAD, _LONG_HEAD = struct.Struct(">BB"), struct.Struct(">BQ")
_SIGNATURE, _VERSION_AT, _MECHANISM_AT = (0xFF, 0x7F), 10, 12
_PING_TTL_BYTES = 2
_SOCKET_EVENT = struct.Struct("=Hi")


class NotZmtp(Exception):
    """The peer breaks the protocol, or speaks another one. The connection has to be closed."""


class ZmtpCommand(NamedTuple):
    """What the ends of a connection say to each other: READY, ERROR, PING or PONG."""

    name: bytes
    data: bytes


def head(size: int, more: bool) -> bytes:
    """The bytes that precede a frame of `size` bytes."""
    if size <= _SHORT_MAX:
        return _SHORT_HEAD.pack(_MORE * more, size)
    return _LONG_HEAD.pack(_LONG | _MORE * more, size)


def message(header: bytes, payload: Sendable | None) -> tuple[Sendable, ...]:
    """The buffers of a message of one frame or two, to be sent in this order."""
    if payload is None:
        return (head(len(header), more=False) + header,)
    return head(len(header), more=True) + header + head(len(payload), more=False), payload


def command(name: bytes, data: bytes = b"") -> bytes:
    body = bytes([len(name)]) + name + data
    if len(body) <= _SHORT_MAX:
        return _SHORT_HEAD.pack(_COMMAND, len(body)) + body
    return _LONG_HEAD.pack(_COMMAND | _LONG, len(body)) + body


def ready(socket_type: bytes) -> bytes:
    """The command READY of a socket without an identity."""
    name = b"Socket-Type"
    return command(
        b"READY", bytes([len(name)]) + name + len(socket_type).to_bytes(4, "big") + socket_type
    )


PING = command(b"PING", bytes(_PING_TTL_BYTES))
"""Its TTL is 0: the peer need not watch this end for it."""


def pong(ping: ZmtpCommand) -> bytes:
    """The answer to a PING: its context, which follows the TTL."""
    return command(b"PONG", ping.data[_PING_TTL_BYTES:])


class KeptMessage:
    """A message, or the rest of one, that the network has not taken yet."""

    __slots__ = ("parts",)

    def __init__(self, parts: Iterable[Sendable], taken: int) -> None:
        self.parts = [memoryview(part) for part in parts]
        self.took(taken)

    @property
    def done(self) -> bool:
        """True when its memory is no longer needed."""
        return not self.parts

    def took(self, count: int) -> None:
        """Forgets the next `count` bytes, which were sent."""
        while self.parts and count >= len(self.parts[0]):
            count -= len(self.parts.pop(0))
        if self.parts:
            self.parts[0] = self.parts[0][count:]


class Outbox:
    """Messages that the network has not taken yet, oldest first. Their memory is not copied."""

    __slots__ = ("bytes", "kept")

    def __init__(self) -> None:
        self.kept: deque[KeptMessage] = deque()
        self.bytes = 0

    def keep(self, parts: Iterable[Sendable], taken: int) -> KeptMessage:
        """Appends a message of which `taken` bytes were sent."""
        one = KeptMessage(parts, taken)
        self.kept.append(one)
        self.bytes += sum(map(len, one.parts))
        return one

    def took(self, count: int) -> bool:
        """Notes that `count` bytes of the first message were sent; returns True when it is done."""
        first = self.kept[0]
        first.took(count)
        self.bytes -= count
        if first.done:
            self.kept.popleft()
        return first.done

    def clear(self) -> None:
        """Drops all messages, whose memory is no longer needed then."""
        for one in self.kept:
            one.parts.clear()
        self.kept.clear()
        self.bytes = 0


class Connection:
    """The rules of one end: bytes in, messages out. It obeys the peer's commands itself.

    The owner sends `hello` first. It puts received bytes where `room` says, calls `received` with
    their number, and then sends what `take_replies` returns. Whenever it sends something it sets
    `spoke_at`. Times are seconds of one clock, which the owner reads.
    """

    def __init__(
        self, socket_type: bytes, frame_bytes_max: int, now: float, room_bytes: int = ROOM_BYTES
    ) -> None:
        """`room_bytes` are kept all the time; a command of COMMAND_BYTES_MAX has to fit."""
        self.hello = GREETING + ready(socket_type)
        self.is_ready = False
        """The peer has sent its READY."""
        self.spoke_at = self._heard_at = now
        self._pinged_at = 0.0
        self.replies = b""
        """PONGs that the peer waits for, until `take_replies`."""
        self._frame_bytes_max = frame_bytes_max
        self._bytes = bytearray(room_bytes)
        self._view = memoryview(self._bytes)
        self._start = self._end = 0
        self._is_greeted = False
        self._large: memoryview | None = None
        """A large frame that has come in part, up to `_large_end`."""
        self._large_end = 0
        self._large_is_last = False
        self._parts: list[Payload] = []

    def room(self) -> memoryview:
        """Returns where the next bytes of the connection go. Never empty."""
        if self._large is not None:
            return self._large[self._large_end :]
        if self._start == self._end:
            self._start = self._end = 0
            return self._view
        if self._start:
            # What is left is the beginning of a frame: at most a small one.
            left = self._bytes[self._start : self._end]
            self._view[: len(left)] = left
            self._start, self._end = 0, len(left)
        return self._view[self._end :]

    def received(self, count: int, now: float) -> list[list[Payload]]:
        """Takes `count` bytes that came at `now`, and returns the messages that are whole.

        Raises NotZmtp, for good.
        """
        self._heard_at, self._pinged_at = now, 0.0
        if self._large is None:
            self._end += count
        else:
            self._large_end += count
        messages: list[list[Payload]] = []
        if self._is_greeted or self._greet():
            while self._large is not None or self._start < self._end:
                parts = self._frame() if self._large is None else self._large_frame()
                if parts is None:
                    break
                if parts:
                    messages.append(parts)
        return messages

    def take_replies(self) -> bytes:
        """Returns `replies`, and forgets them."""
        replies, self.replies = self.replies, b""
        return replies

    def ping(self, now: float) -> bytes:
        """Returns a PING to send when the peer has been silent for long, else nothing.

        Call it now and then while an answer is awaited. Raises NotZmtp when the peer has left a
        PING unanswered for PONG_S.
        """
        if self._pinged_at:
            if now - self._pinged_at > PONG_S:
                raise NotZmtp("no PING is answered")
        elif now - self._heard_at > PING_S:
            self._pinged_at = now
            return PING
        return b""

    def is_stale(self, now: float) -> bool:
        """Returns whether this end was silent for so long that the peer may be about to close."""
        return now - self.spoke_at > STALE_S

    def _obey(self, said: ZmtpCommand) -> None:
        if said.name == b"READY":
            self.is_ready = True
        elif said.name == b"PING":
            self.replies += pong(said)
        elif said.name == b"ERROR":
            raise NotZmtp(f"the peer reports {said.data!r}")

    def _greet(self) -> bool:
        data = self._bytes[self._start : self._end]
        if data and data[0] != _SIGNATURE[0]:
            raise NotZmtp("no greeting of ZMTP")
        if len(data) < GREETING_BYTES:
            return False
        mechanism = bytes(data[_MECHANISM_AT : _MECHANISM_AT + 20]).rstrip(b"\0")
        if not data[9] & 1 or data[_VERSION_AT] < GREETING[_VERSION_AT] or mechanism != b"NULL":
            raise NotZmtp(f"version {data[_VERSION_AT]}, mechanism {mechanism!r}")
        self._start += GREETING_BYTES
        self._is_greeted = True
        return True

    def _frame(self) -> list[Payload] | None:
        """Returns the message that the next frame ends, an empty list where it ends none, or None
        when no frame is whole."""
        start, have = self._start, self._end - self._start
        if have < _SHORT_HEAD.size:
            return None
        flags, size = self._bytes[start], self._bytes[start + 1]
        start += _SHORT_HEAD.size
        if flags & _LONG:
            if have < _LONG_HEAD.size:
                return None
            size = _LONG_HEAD.unpack_from(self._bytes, self._start)[1]
            start += _LONG_HEAD.size - _SHORT_HEAD.size
        if size > (COMMAND_BYTES_MAX if flags & _COMMAND else self._frame_bytes_max):
            raise NotZmtp(f"a frame of {size} bytes")
        if not self.is_ready and not flags & _COMMAND:
            raise NotZmtp("a message before READY")
        stop = start + size
        if size >= BYTES_FRAME_MIN or size > len(self._bytes) - _LONG_HEAD.size:
            self._begin_large(start, size, not flags & _MORE)
            return []
        if stop > self._end:
            return None
        data = bytes(self._view[start:stop])
        self._start = stop
        if flags & _COMMAND:
            name_end = 1 + data[0] if data else 0
            self._obey(ZmtpCommand(data[1:name_end], data[name_end:]))
            return []
        return self._add(data, not flags & _MORE)

    def _begin_large(self, start: int, size: int, is_last: bool) -> None:
        """Receives the rest of a large frame where it stays."""
        have = min(self._end - start, size)
        self._large = memoryview(bytearray(size))
        self._large[:have] = self._view[start : start + have]
        self._large_end, self._large_is_last = have, is_last
        self._start = start + have

    def _large_frame(self) -> list[Payload] | None:
        assert self._large is not None
        if self._large_end < len(self._large):
            return None
        data, self._large = self._large.toreadonly(), None
        kept = data if len(data) >= BYTES_FRAME_MIN else bytes(data)
        return self._add(kept, self._large_is_last)

    def _add(self, data: Payload, is_last: bool) -> list[Payload]:
        if not is_last:
            self._parts.append(data)
            if len(self._parts) >= FRAMES_MAX:
                raise NotZmtp(f"a message of more than {FRAMES_MAX} frames")
            return []
        if not self._parts:
            return [data]
        parts, self._parts = [*self._parts, data], []
        return parts


class SocketEvent(NamedTuple):
    """`event` is one of zmq.EVENT_*; `value` is a descriptor or an error, by the event."""

    event: int
    value: int


def parse_socket_event(frame: bytes) -> SocketEvent:
    """Of a monitor's message: its first frame. The second one names the endpoint."""
    return SocketEvent(*_SOCKET_EVENT.unpack(frame))
