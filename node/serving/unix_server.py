"""The node's end of a local socket: connections that the server's loop carries itself.

ZeroMQ hands each request from a thread of its own to the loop, and each answer back: two changes of
threads for one request, which take longer than all else where the client waits for each answer.
Clients speak ZMTP, ours or any other. Whatever they send or do, nothing here raises.
"""

import fcntl
import logging
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Sequence
from time import monotonic

from node.runtime.event_log import fields
from protocol.wire import zmtp

log = logging.getLogger("keelog.serving")

ROOM_BYTES = 8_192
"""What a connection is asked for at once, and all that an idle one takes."""
EVENTS_MAX = 64
RECEIVES_MAX = 4
ACCEPTS_MAX = 64
HANDSHAKE_S = 2.0
SWEEP_S = 1.0
PEER_PREFIX = b"\0local"
"""ZeroMQ's names of peers are five bytes where they begin with a zero."""

_READ, _BOTH = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
_HELLO = zmtp.GREETING + zmtp.ready(b"ROUTER")

Payload = bytes | bytearray | memoryview
Request = tuple[bytes, list[zmtp.Payload]]
"""Who sent it, and its frames."""


class Kept:
    """An answer, or what is left of it, that waits for its connection."""

    def __init__(self, parts: list[memoryview]) -> None:
        self.parts = parts

    @property
    def done(self) -> bool:
        """Whether it needs its memory no more."""
        return not self.parts

    def took(self, count: int) -> None:
        """So many bytes of it were sent."""
        while self.parts and count >= len(self.parts[0]):
            count -= len(self.parts.pop(0))
        if self.parts:
            self.parts[0] = self.parts[0][count:]


class Connection:
    """One client. `kept` waits until the client reads."""

    def __init__(self, end: socket.socket, peer: bytes, frame_bytes_max: int, now: float) -> None:
        self.end = end
        self.fd = end.fileno()
        self.peer = peer
        self.inbox = zmtp.Inbox(frame_bytes_max, ROOM_BYTES)
        self.kept: deque[Kept] = deque()
        self.since = now
        """When it came, or when the first of `kept` began to wait for the client to read."""
        self.is_ready = False
        self.is_gone = False

    def write(self, parts: Sequence[Payload]) -> int:
        """How many bytes the client's side takes now."""
        try:
            return self.end.send(parts[0]) if len(parts) == 1 else self.end.sendmsg(parts)
        except BlockingIOError:
            return 0
        except OSError:
            self.is_gone = True
            return 0

    @property
    def has_unread(self) -> bool:
        """Whether something that was sent waits in the kernel for the client."""
        count = fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4))
        return bool(struct.unpack("i", count)[0])

    def write_kept(self) -> None:
        """Goes on with what is kept."""
        while self.kept and not self.is_gone:
            count = self.write(list(self.kept[0].parts))
            if not count:
                return
            self.since = monotonic()
            self.kept[0].took(count)
            if not self.kept[0].done:
                return
            self.kept.popleft()


class LocalEnd:
    """A bound local socket and its connections. For one thread. `fd` can be read from when there is
    something to do; `has_requests` tells of those that are taken in already.
    """

    def __init__(
        self, endpoint: str, frame_bytes_max: int, answers_max: int, unsent_s_max: float
    ) -> None:
        """Binds `ipc://@NAME`. `answers_max` are kept for a client that does not read, for
        `unsent_s_max` seconds. Raises OSError.
        """
        self._frame_bytes_max = frame_bytes_max
        self._answers_max = answers_max
        self._unsent_s_max = unsent_s_max
        self._ready: deque[Request] = deque()
        self._peers: dict[bytes, Connection] = {}
        self._by_fd: dict[int, Connection] = {}
        self._count = 0
        self._swept_at = 0.0
        self.is_open = True
        """Whether new connections are taken: its owner may say no."""
        self._listener = _listen(endpoint)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), _READ)
        self.fd = self._epoll.fileno()

    @property
    def has_requests(self) -> bool:
        """Whether `receive` has something that `fd` does not tell of."""
        return bool(self._ready)

    @property
    def has_unread(self) -> bool:
        """Whether a client has yet to read something, here or in the kernel.

        A ZeroMQ client that has as much as it takes (RCVHWM) drops the rest at a hang-up.
        """
        return any(one.kept or one.has_unread for one in self._peers.values())

    def connection(self, peer: bytes) -> Connection | None:
        """The connection of a peer, as long as there is one."""
        return self._peers.get(peer)

    def is_full(self, connection: Connection) -> bool:
        """Whether no more is kept for it."""
        return len(connection.kept) >= self._answers_max

    def receive(self) -> Request | None:
        """The next request that waits. Connections are read when all that they sent is taken."""
        if not self._ready:
            self.turn()
        return self._ready.popleft() if self._ready else None

    def send(
        self, connection: Connection, header: bytes, payload: Payload | None, borrows: bool
    ) -> Kept | None:
        """Sends an answer; what is not taken at once is kept. `borrows`: the payload's memory stays
        as it is until that is done, else it is copied. Look whether the connection `is_gone`.
        """
        parts: list[Payload] = [zmtp.head(len(header), payload is not None) + header]
        if payload is not None:
            parts += [zmtp.head(len(payload), more=False), payload]
        count = 0 if connection.kept else connection.write(parts)
        if connection.is_gone:
            self._drop(connection)
            return None
        if count == sum(map(len, parts)):
            return None
        if payload is not None and not borrows:
            parts[2] = bytes(payload)
        return self._keep(connection, parts, count)

    def _keep(self, connection: Connection, parts: list[Payload], taken: int) -> Kept:
        kept = Kept([memoryview(part) for part in parts])
        kept.took(taken)
        if not connection.kept:
            connection.since = monotonic()
            self._epoll.modify(connection.fd, _BOTH)
        connection.kept.append(kept)
        return kept

    def turn(self) -> None:
        """Accepts, reads and goes on writing, once for each connection where that is possible."""
        now = monotonic()  # of before the look: who had done its part by then is not swept
        for fd, events in self._epoll.poll(0, EVENTS_MAX):
            connection = self._by_fd.get(fd)
            if connection is None:
                self._accept()
                continue
            if events & ~select.EPOLLOUT:
                self._read(connection)
            if events & select.EPOLLOUT:
                connection.write_kept()
                if not connection.kept:
                    self._epoll.modify(fd, _READ)
            if connection.is_gone:
                self._drop(connection)
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._sweep(now)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            if not self.is_open:
                self._wait()
                return
            try:
                end, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Most likely no descriptor is free.
                log.warning("a client of this machine has to wait", extra=fields(why=error))
                self._wait()
                return
            end.setblocking(False)
            self._count += 1
            peer = PEER_PREFIX + self._count.to_bytes(8, "big")
            connection = Connection(end, peer, self._frame_bytes_max, monotonic())
            self._peers[peer] = self._by_fd[connection.fd] = connection
            self._epoll.register(connection.fd, _READ)
            connection.write([_HELLO])

    def _wait(self) -> None:
        """Who comes waits for the next sweep."""
        self._epoll.modify(self._listener.fileno(), 0)

    def _read(self, connection: Connection) -> None:
        """Up to the first request, or what is there."""
        waiting = len(self._ready)
        for _ in range(RECEIVES_MAX):
            room = connection.inbox.room()
            try:
                size = connection.end.recv_into(room)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                connection.is_gone = True
                return
            connection.inbox.took(size)
            self._take_in(connection)
            if connection.is_gone or size < len(room) or len(self._ready) > waiting:
                return

    def _take_in(self, connection: Connection) -> None:
        try:
            for item in connection.inbox.items():
                if isinstance(item, zmtp.ZmtpCommand):
                    self._obey(connection, item)
                elif connection.is_ready:
                    self._ready.append((connection.peer, item))
                else:
                    connection.is_gone = True
                    return
        except zmtp.NotZmtp:
            connection.is_gone = True

    def _obey(self, connection: Connection, said: zmtp.ZmtpCommand) -> None:
        if said.name == b"READY":
            connection.is_ready = True
        elif said.name == b"ERROR":
            connection.is_gone = True
        elif said.name == b"PING":
            pong = zmtp.pong(said)
            count = 0 if connection.kept else connection.write([pong])
            if count < len(pong) and not connection.is_gone:
                # Who sends PINGs and reads no PONG is no client.
                connection.is_gone = self.is_full(connection)
                self._keep(connection, [pong], count)

    def _sweep(self, now: float) -> None:
        """Ends the connections of those who do not say who they are, or read nothing for long."""
        for connection in list(self._peers.values()):
            waits_s = now - connection.since
            if connection.kept:
                connection.is_gone = waits_s > self._unsent_s_max
            elif not connection.is_ready:
                connection.is_gone = waits_s > HANDSHAKE_S
            if connection.is_gone:
                self._drop(connection)
        self._epoll.modify(self._listener.fileno(), _READ)

    def _drop(self, connection: Connection) -> None:
        del self._peers[connection.peer], self._by_fd[connection.fd]
        for kept in connection.kept:
            kept.parts.clear()
        self._epoll.unregister(connection.fd)
        connection.end.close()

    def close(self) -> None:
        """Ends all connections. What is in the kernel can still be read, by most clients."""
        for connection in list(self._peers.values()):
            self._drop(connection)
        self._epoll.close()
        self._listener.close()


def bulk_socket(local: str) -> str:
    """The second local socket of a process, for answers that are many and large: ZeroMQ's thread
    sends one while the loop makes the next."""
    return f"{local}-bulk"


def _listen(endpoint: str) -> socket.socket:
    """A listening socket with an abstract name."""
    scheme, _, name = endpoint.partition("://@")
    if scheme != "ipc" or not name:
        raise OSError(f"{endpoint!r} is no abstract name, as ipc://@name is")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(f"\0{name}")
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener
