"""ZMTP 3.1 (rfc.zeromq.org/spec/37), as far as DEALER and ROUTER need it with the mechanism NULL.

A connection begins with a greeting and a READY of either side; then come messages of one or more
frames, and PINGs that are to be answered. No sockets here.
"""

import struct
from typing import NamedTuple

GREETING_BYTES = 64
GREETING = struct.pack(">B8xBBB20sB31x", 0xFF, 0x7F, 3, 1, b"NULL", 0)
"""Signature, version 3.1, mechanism, no server of a mechanism."""
ROOM_BYTES = 128 * 1024
COMMAND_BYTES_MAX = 4_096
BYTES_FRAME_MIN = 65_536
"""A frame of so many bytes stays where it was received, smaller ones are copied to bytes."""
FRAMES_MAX = 64
"""Nobody here sends a message of more frames than two."""

_MORE, _LONG, _COMMAND = 1, 2, 4
_SHORT_MAX = 255
_SHORT_HEAD, _LONG_HEAD = struct.Struct(">BB"), struct.Struct(">BQ")
_SIGNATURE, _VERSION_AT, _MECHANISM_AT = (0xFF, 0x7F), 10, 12
_PING_TTL_BYTES = 2

Payload = bytes | memoryview


class NotZmtp(Exception):
    """What came breaks the protocol, or is another one."""


class ZmtpCommand(NamedTuple):
    """What the ends of a connection say to each other: READY, ERROR, PING."""

    name: bytes
    data: bytes


def head(size: int, more: bool) -> bytes:
    """What stands before a frame's bytes."""
    if size <= _SHORT_MAX:
        return _SHORT_HEAD.pack(_MORE * more, size)
    return _LONG_HEAD.pack(_LONG | _MORE * more, size)


def command(name: bytes, data: bytes = b"") -> bytes:
    """A command, ready to be sent."""
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
"""With a TTL of 0: the peer need not watch us for it."""


def pong(ping: ZmtpCommand) -> bytes:
    """The answer to a PING: its context, which stands after the TTL."""
    return command(b"PONG", ping.data[_PING_TTL_BYTES:])


class Inbox:
    """Bytes in, messages and commands out. Bytes go where `room` says, then `took` counts them."""

    def __init__(self, frame_bytes_max: int, room_bytes: int = ROOM_BYTES) -> None:
        """`room_bytes`: what is received at once, and kept all the time; COMMAND_BYTES_MAX fit."""
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
        """Where the next bytes of the connection go. Never empty."""
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

    def took(self, count: int) -> None:
        """So many bytes were put where `room` said."""
        if self._large is not None:
            self._large_end += count
        else:
            self._end += count

    def items(self) -> list[list[Payload] | ZmtpCommand]:
        """The messages and commands that are whole. Raises NotZmtp, for good."""
        found: list[list[Payload] | ZmtpCommand] = []
        if self._is_greeted or self._greet():
            while (item := self._next()) is not None:
                if item:
                    found.append(item)
        return found

    def _next(self) -> list[Payload] | ZmtpCommand | None:
        """A message that a frame ends, an empty list for a part of one; None: nothing is whole."""
        return self._frame() if self._large is None else self._large_frame()

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

    def _frame(self) -> list[Payload] | ZmtpCommand | None:
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
            return ZmtpCommand(data[1:name_end], data[name_end:])
        return self._add(data, not flags & _MORE)

    def _begin_large(self, start: int, size: int, is_last: bool) -> None:
        """The rest of it is received where it stays."""
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
