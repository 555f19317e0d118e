"""A connection to one process of the node that its owner carries itself: a socket that speaks ZMTP.

ZeroMQ hands each frame to a thread of its own and back. With one request after the other these are
two of the three changes of threads on the client's side, and most of the time of a request. Nothing
runs beside the owner here, so no PING gets its PONG while it does something else: a connection that
was silent for long is replaced by a new one.
"""

import select
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import count
from time import monotonic
from typing import Any

import msgpack

from keelog.client.transport.exchange import Decision, Exchange
from keelog.client.transport.request import Call
from keelog.client.transport.zmq_connection import ANSWER_BYTES_MAX
from protocol.errors import BadRequest
from protocol.wire import zmtp
from protocol.wire.frames import VERSION, HeaderPacker, unpack_answer

UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""Kept of requests that the network does not take; beyond it no request is taken."""
SEND_BUFFER_BYTES = 1024 * 1024
"""Of a local socket: the kernel's usual 208 KiB hold seven batches of 100 messages. A request that
does not fit is copied, and waits for another turn."""
RECEIVES_MAX = 64
"""The network is read up to this often before others have their turn."""
_TIMEVAL = struct.Struct("@ll")
"""C's `timeval` where `time_t` is a `long`, as on 64-bit Linux; elsewhere the kernel may refuse it.
A timeout of Python's own socket would ask `poll` before each receive."""
_NOW = socket.MSG_DONTWAIT
_SEND_NOW = _NOW | socket.MSG_NOSIGNAL

Take = Callable[[Call, Decision], None]


class _State(Enum):
    CONNECTING = "connecting"
    GREETED = "greeted"
    UP = "up"
    LOST = "lost"


class ZmtpConnection:
    """A socket, and the exchange of its requests. For one thread at a time."""

    def __init__(self, endpoint: str, exchange: Exchange, local: str = "") -> None:
        """Starts to connect, without waiting, over `local` where it is given: another way to the
        same process. Raises OSError, ValueError for what it cannot.
        """
        self.endpoint = endpoint
        self.exchange = exchange
        self._ids = count(1)
        self.closed = False
        self._state = _State.CONNECTING
        self._pack = HeaderPacker()
        self._zmtp = zmtp.Connection(b"DEALER", ANSWER_BYTES_MAX, monotonic())
        self._unsent = zmtp.Outbox()
        self._wait_s = 0.0
        self._socket = _begin(local or endpoint)
        self.fd = self._socket.fileno()
        self._poller, self._incoming = select.poll(), select.poll()
        self._poller.register(self.fd, select.POLLIN | select.POLLOUT)
        self._incoming.register(self.fd, select.POLLIN)
        self._greet()

    @property
    def is_up(self) -> bool:
        """Whether requests may be sent."""
        return self._state is _State.UP

    @property
    def is_lost(self) -> bool:
        """Whether no answer can come any more, once those that `receive` had are taken."""
        return self._state is _State.LOST

    @property
    def wants_to_send(self) -> bool:
        """Whether `receive` should be called too when the socket can be written to."""
        return bool(self._unsent.kept) or self._state is _State.CONNECTING

    @property
    def has_come(self) -> bool:
        """Whether `receive` finds something at once. It costs a fraction of a look there."""
        return self.wants_to_send or bool(self._incoming.poll(0))

    def is_stale(self, now: float) -> bool:
        """True if nothing is under way, and the silence is so long that the node may be about to
        close it."""
        return not self.exchange.under_way and self._zmtp.is_stale(now)

    def wait_at_most(self, seconds: float) -> None:
        """Sets how long `receive` waits when called with `wait`."""
        if seconds == self._wait_s:
            return
        self._wait_s = seconds
        whole = int(seconds)
        value = _TIMEVAL.pack(whole, max(1, int((seconds - whole) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def send(self, call: Call, is_stream: bool = False) -> bool:
        """Sends a call; False when it is not taken: nothing of it was sent then. `is_stream`: it
        may have several answers."""
        if self._state is not _State.UP or self._unsent.bytes >= UNSENT_BYTES_MAX:
            return False
        number = next(self._ids)
        fields = {"v": VERSION, "op": call.op, "id": number, **call.fields}
        if is_stream:
            fields["stream"] = True
        header = self._pack(fields)
        self.exchange.sent(call, number)
        try:
            self._put(zmtp.message(header, call.payload))
        except BaseException:
            # Interrupted: it is unknown how much of it was sent.
            self._state = _State.LOST
            raise
        return True

    def receive(self, take: Take, wait: bool = False) -> None:
        """Gives each call that was answered, and what follows, to `take`; look at `is_lost` after
        it.

        With `wait` it waits until something comes, as long as `wait_at_most` said.
        """
        try:
            self._receive(take, wait)
        except BaseException:
            # Interrupted (KeyboardInterrupt): it is unknown which bytes were taken.
            self._state = _State.LOST
            raise

    def _receive(self, take: Take, wait: bool) -> None:
        if self.wants_to_send:
            self._go_on(wait)
            wait = False
        flags = 0 if wait else _NOW
        for _ in range(RECEIVES_MAX):
            if self._state in (_State.CONNECTING, _State.LOST):
                break
            room = self._zmtp.room()
            size = self._receive_into(room, flags)
            if not size:
                break
            waiting = len(self.exchange.under_way)
            self._take_in(size, take)
            if size < len(room) and len(self.exchange.under_way) < waiting:
                break  # what else there may be has time
            flags = _NOW

    def keep_alive(self, now: float) -> None:
        """Asks a silent node for a PONG, or finds that it is gone. Call it now and then while an
        answer is awaited."""
        try:
            ping = self._zmtp.ping(now)
        except zmtp.NotZmtp:
            self._state = _State.LOST
        else:
            if ping:
                self._put((ping,))

    def close(self) -> None:
        """Ends the connection. What the network has taken is still delivered."""
        self.closed = True
        self._state = _State.LOST
        self._socket.close()

    def _receive_into(self, room: memoryview, flags: int) -> int:
        """0: nothing came, or it is lost."""
        try:
            size = self._socket.recv_into(room, 0, flags)
        except BlockingIOError:
            return 0
        except OSError:
            size = 0
        if not size:
            self._state = _State.LOST
        return size

    def _take_in(self, size: int, take: Take) -> None:
        now = monotonic()
        try:
            messages = self._zmtp.received(size, now)
        except zmtp.NotZmtp:
            self._state = _State.LOST
            return
        if self._zmtp.replies:
            self._put((self._zmtp.take_replies(),))
        if self._state is _State.GREETED and self._zmtp.is_ready:
            self._state = _State.UP
        for parts in messages:
            try:
                header = unpack_answer(bytes(parts[0]))
            except (ValueError, msgpack.UnpackException, BadRequest):
                continue  # It is not an answer. Its call ends at its deadline.
            payload = parts[-1] if len(parts) > 1 else b""
            if found := self.exchange.answered(header, payload, now):
                take(*found)

    def _go_on(self, wait: bool) -> None:
        """Goes on with what waits for the network: the connection, or what is kept."""
        if wait:
            self._poller.poll(self._wait_s * 1_000)
        if self._state is _State.CONNECTING:
            self._greet()
        else:
            self._put(())

    def _greet(self) -> None:
        """As soon as there is a connection."""
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._state = _State.LOST
            return
        try:
            self._socket.getpeername()
        except OSError:
            return
        self._state = _State.GREETED
        self._put((self._zmtp.hello,))

    def _put(self, parts: Sequence[zmtp.Sendable]) -> None:
        """Sends what is unsent and then this, and keeps what the network does not take."""
        unsent = self._unsent
        try:
            if unsent.kept:
                if parts:
                    unsent.keep(parts, 0)
                    parts = ()
                while unsent.kept:
                    unsent.took(self._socket.sendmsg(unsent.kept[0].parts, (), _SEND_NOW))
                    self._zmtp.spoke_at = monotonic()
            sent = self._socket.sendmsg(parts, (), _SEND_NOW) if parts else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._state = _State.LOST
            return
        if sent:
            self._zmtp.spoke_at = monotonic()
        if not unsent.kept and sent < sum(map(len, parts)):
            unsent.keep(parts, sent)


def _begin(endpoint: str) -> socket.socket:
    """A socket that connects. A name raises: `HostNames` knows its addresses."""
    kind, _, rest = endpoint.partition("://")
    if kind == "ipc":
        return _connecting(socket.AF_UNIX, f"\0{rest[1:]}" if rest.startswith("@") else rest)
    if kind != "tcp":
        raise ValueError(f"{endpoint!r} is neither tcp nor ipc")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    (found, *_) = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    )
    family, _, _, _, address = found
    return _connecting(family, address)


def _connecting(family: int, address: Any) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setblocking(False)
        if family == socket.AF_UNIX:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            found.connect(address)  # at once, or not at all: EAGAIN where too many wait
        else:
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with suppress(BlockingIOError):
                found.connect(address)
        # Waits are asked for where they are wanted: `_NOW`, or SO_RCVTIMEO.
        found.setblocking(True)
    except OSError:
        found.close()
        raise
    return found
