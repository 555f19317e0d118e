"""ZMTP 3.1 (rfc.zeromq.org/spec/37), as far as DEALER and ROUTER need it with the mechanism NULL.

A connection begins with a greeting and a READY of either side. Messages of one or more frames
follow, and PINGs, which the peer has to answer. This module has no sockets and no clock:
`Connection` holds the rules, and each end moves the bytes in its own way.

A wake-up costs as much as the rest of a request, so an end looks for what comes for a moment before
it sleeps: `AwakeLook` is the rule of both ends. `parse_socket_event` reads the events of libzmq's
sockets, as their monitor says them (zmq_socket_monitor(3)). pyzmq's own parser would bring asyncio
and TLS into every process of a node: 50 ms of each start.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable
from math import inf

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
ASLEEP_LOOKS = 15
"""After a look in vain this many fall out: who waits for something slow sleeps at once."""
ASLEEP_LOOKS_MAX = 1_023
"""After each further look in vain it is twice as many and one, up to this number."""
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
        self._large_flags = 0
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
        if not self._is_greeted and not self._greet():
            return messages
        while (found := self._frame()) is not None:
            flags, frame = found
            if flags & _COMMAND:
                self._obey(bytes(frame))
                continue
            self._parts.append(frame)
            if not flags & _MORE:
                messages.append(self._parts)
                self._parts = []
            elif len(self._parts) >= FRAMES_MAX:
                raise NotZmtp(f"a message of more than {FRAMES_MAX} frames")
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

    def _obey(self, said: bytes) -> None:
        """Does what the peer says: READY, ERROR, PING or PONG."""
        name_end = 1 + said[0] if said else 0
        name, data = said[1:name_end], said[name_end:]
        if name == b"READY":
            self.is_ready = True
        elif name == b"PING":
            # A PONG has the context of the PING, which follows its TTL.
            self.replies += command(b"PONG", data[_PING_TTL_BYTES:])
        elif name == b"ERROR":
            raise NotZmtp(f"the peer reports {data!r}")

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

    def _frame(self) -> tuple[int, Payload] | None:
        """The flags and the content of the next frame; None when it is not whole."""
        if self._large is not None:
            return self._large_frame()
        data, start, have = self._bytes, self._start, self._end - self._start
        if have < _SHORT_HEAD.size:
            return None
        flags, size = data[start], data[start + 1]
        start += _SHORT_HEAD.size
        if flags & _LONG:
            if have < _LONG_HEAD.size:
                return None
            size = _LONG_HEAD.unpack_from(data, self._start)[1]
            start += _LONG_HEAD.size - _SHORT_HEAD.size
        if size > (COMMAND_BYTES_MAX if flags & _COMMAND else self._frame_bytes_max):
            raise NotZmtp(f"a frame of {size} bytes")
        if not self.is_ready and not flags & _COMMAND:
            raise NotZmtp("a message before READY")
        if size >= BYTES_FRAME_MIN or size > len(data) - _LONG_HEAD.size:
            # The rest of it is received where it stays.
            have = min(self._end - start, size)
            self._large, self._large_flags = memoryview(bytearray(size)), flags
            self._large[:have] = self._view[start : start + have]
            self._large_end, self._start = have, start + have
            return self._large_frame()
        if start + size > self._end:
            return None
        self._start = start + size
        return flags, bytes(self._view[start : start + size])

    def _large_frame(self) -> tuple[int, Payload] | None:
        assert self._large is not None
        if self._large_end < len(self._large):
            return None
        data, self._large = self._large.toreadonly(), None
        return self._large_flags, data if len(data) >= BYTES_FRAME_MIN else bytes(data)


def parse_socket_event(frame: bytes) -> tuple[int, int]:
    """Of a monitor's message the first frame: one of zmq.EVENT_*, and a descriptor or an error, by
    the event. The second frame names the endpoint."""
    event, value = _SOCKET_EVENT.unpack(frame)
    return event, value


class AwakeLook:
    """One for each place where something is waited for; for one thread."""

    def __init__(
        self,
        seconds: float,
        processors: int,
        clock: Callable[[], float],
        yield_now: Callable[[], object],
    ) -> None:
        """`seconds` of `clock` is how long a look lasts at most. `yield_now` lets other processes
        run first."""
        self._seconds = seconds
        self._clock = clock
        self._yield_now = yield_now
        # On one processor a look would keep the other side from its part.
        self._asleep_looks: float = 0 if processors > 1 else inf
        self._next_asleep_looks = ASLEEP_LOOKS

    @property
    def is_awake(self) -> bool:
        """Whether the next look takes place."""
        return not self._asleep_looks

    def until(self, is_there: Callable[[], object]) -> bool:
        """Looks until it is there or the time is over; returns whether it is there."""
        if self._asleep_looks:
            self._asleep_looks -= 1
            return False
        end = self._clock() + self._seconds
        while True:
            self._yield_now()
            if is_there():
                self._next_asleep_looks = ASLEEP_LOOKS
                return True
            if self._clock() > end:
                self._asleep_looks = self._next_asleep_looks
                self._next_asleep_looks = min(2 * self._next_asleep_looks + 1, ASLEEP_LOOKS_MAX)
                return False
