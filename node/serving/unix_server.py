"""The node's end of a local socket: connections that the server's loop carries itself.

ZeroMQ's own thread hands each request to the loop, and each answer back. If the client waits for
each answer, these two changes of threads take longer than all else. Any client that speaks ZMTP may
connect. Nothing here raises, whatever a client sends or does.
"""

import fcntl
import logging
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from node.runtime.event_log import fields
from protocol.wire import zmtp

log = logging.getLogger("keelog.serving")

ROOM_BYTES = 8_192
"""The buffer of a connection: all the memory that an idle one takes."""
EVENTS_MAX = 64
RECEIVES_MAX = 4
ACCEPTS_MAX = 64
HANDSHAKE_S = 2.0
SWEEP_S = 1.0
PEER_PREFIX = b"\0local"
"""ZeroMQ's names of peers are five bytes where they begin with a zero."""

_READ, _BOTH = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT

Payload = zmtp.Sendable
Request = tuple[bytes, list[zmtp.Payload]]
"""The peer that sent it, and its frames."""


class LocalConnection:
    """One client. `unsent` waits until the client reads."""

    def __init__(self, end: socket.socket, peer: bytes, frame_bytes_max: int, now: float) -> None:
        self.end = end
        self.fd = end.fileno()
        self.peer = peer
        self.zmtp = zmtp.Connection(b"ROUTER", frame_bytes_max, now, ROOM_BYTES)
        self.unsent = zmtp.Outbox()
        self.since = now
        """When it came, or when the first of `unsent` began to wait for the client to read."""
        self.is_gone = False

    def write(self, parts: Sequence[Payload]) -> int:
        """Sends what the client's side takes now, and returns its bytes."""
        try:
            return self.end.send(parts[0]) if len(parts) == 1 else self.end.sendmsg(parts)
        except BlockingIOError:
            return 0
        except OSError:
            self.is_gone = True
            return 0

    @property
    def has_unread(self) -> bool:
        """True while something that was sent waits in the kernel for the client."""
        count = fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4))
        return bool(struct.unpack("i", count)[0])

    def write_unsent(self) -> None:
        """Goes on sending what was not taken before."""
        while self.unsent.kept and not self.is_gone:
            count = self.write(self.unsent.kept[0].parts)
            if not count:
                return
            self.since = monotonic()
            if not self.unsent.took(count):
                return


class LocalEnd:
    """A bound local socket and its connections, for one thread. `fd` is readable when there is
    something to do; `has_requests` is true when requests have been taken in already.
    """

    def __init__(
        self, endpoint: str, frame_bytes_max: int, answers_max: int, unsent_s_max: float
    ) -> None:
        """Binds `ipc://@NAME`. It keeps up to `answers_max` answers for a client that does not
        read, for `unsent_s_max` seconds. Raises OSError.
        """
        self._frame_bytes_max = frame_bytes_max
        self._answers_max = answers_max
        self._unsent_s_max = unsent_s_max
        self._ready: deque[Request] = deque()
        self._peers: dict[bytes, LocalConnection] = {}
        self._by_fd: dict[int, LocalConnection] = {}
        self._count = 0
        self._swept_at = 0.0
        self._together: dict[LocalConnection, list[bytes]] | None = None
        """What `together` keeps back."""
        self.is_open = True
        """Whether new connections are taken. The owner sets it."""
        self._listener = _listen(endpoint)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), _READ)
        self.fd = self._epoll.fileno()

    @property
    def has_requests(self) -> bool:
        """True when `receive` has a request that does not make `fd` readable."""
        return bool(self._ready)

    @property
    def has_unread(self) -> bool:
        """True while a client has yet to read something, here or in the kernel.

        A ZeroMQ client that has as much as it takes (RCVHWM) drops the rest at a hang-up.
        """
        return any(one.unsent.kept or one.has_unread for one in self._peers.values())

    def connection(self, peer: bytes) -> LocalConnection | None:
        """Returns the connection of a peer, as long as there is one."""
        return self._peers.get(peer)

    def is_full(self, connection: LocalConnection) -> bool:
        """Returns whether nothing more is kept for the connection."""
        return len(connection.unsent.kept) >= self._answers_max

    def receive(self) -> Request | None:
        """Returns the next request. Reads connections only when no earlier request is left."""
        if not self._ready:
            self.turn()
        return self._ready.popleft() if self._ready else None

    def send(
        self, connection: LocalConnection, header: bytes, payload: Payload | None, borrows: bool
    ) -> zmtp.KeptMessage | None:
        """Sends an answer, and keeps what is not taken at once. With `borrows` the payload's memory
        stays as it is until that is done, else it is copied. Afterwards the connection may be gone.
        """
        parts = zmtp.message(header, payload)
        if self._together is not None and not connection.unsent.kept:
            if payload is None:
                self._together.setdefault(connection, []).append(bytes(parts[0]))
                return None
            self._send_together(connection, self._together.pop(connection, []))
            if connection.is_gone:
                return None
        count = 0 if connection.unsent.kept else connection.write(parts)
        if connection.is_gone:
            self._drop(connection)
            return None
        if count == sum(map(len, parts)):
            return None
        if payload is not None and not borrows:
            parts = parts[0], bytes(payload)
        return self._keep(connection, parts, count)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is sent within it, and has no payload, goes as one for each client: each by itself
        would wake it."""
        self._together = {}
        try:
            yield
        finally:
            waiting, self._together = self._together, None
            for connection, messages in waiting.items():
                self._send_together(connection, messages)

    def _send_together(self, connection: LocalConnection, messages: list[bytes]) -> None:
        if not messages or connection.is_gone:
            return
        joined = b"".join(messages)
        count = connection.write((joined,))
        if connection.is_gone:
            self._drop(connection)
        elif count < len(joined):
            self._keep(connection, (joined,), count)

    def _keep(
        self, connection: LocalConnection, parts: Sequence[Payload], taken: int
    ) -> zmtp.KeptMessage:
        if not connection.unsent.kept:
            connection.since = monotonic()
            self._epoll.modify(connection.fd, _BOTH)
        return connection.unsent.keep(parts, taken)

    def turn(self) -> None:
        """Accepts, reads and goes on writing, once for each connection where that is possible."""
        # Read before the poll: a client that had done its part by then is not swept.
        now = monotonic()
        for fd, events in self._epoll.poll(0, EVENTS_MAX):
            connection = self._by_fd.get(fd)
            if connection is None:
                self._accept()
                continue
            if events & ~select.EPOLLOUT:
                self._read(connection, now)
            if events & select.EPOLLOUT:
                connection.write_unsent()
                if not connection.unsent.kept:
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
            connection = LocalConnection(end, peer, self._frame_bytes_max, monotonic())
            self._peers[peer] = self._by_fd[connection.fd] = connection
            self._epoll.register(connection.fd, _READ)
            connection.write([connection.zmtp.hello])

    def _wait(self) -> None:
        """Lets new clients wait for the next sweep."""
        self._epoll.modify(self._listener.fileno(), 0)

    def _read(self, connection: LocalConnection, now: float) -> None:
        """Reads up to the first request, or what is there."""
        waiting = len(self._ready)
        for _ in range(RECEIVES_MAX):
            room = connection.zmtp.room()
            try:
                size = connection.end.recv_into(room)
            except BlockingIOError:
                return
            except OSError:
                size = 0
            if not size:
                connection.is_gone = True
                return
            try:
                for request in connection.zmtp.received(size, now):
                    self._ready.append((connection.peer, request))
            except zmtp.NotZmtp:
                connection.is_gone = True
            if connection.zmtp.replies:
                self._reply(connection, connection.zmtp.take_replies())
            if connection.is_gone or size < len(room) or len(self._ready) > waiting:
                return

    def _reply(self, connection: LocalConnection, replies: bytes) -> None:
        count = 0 if connection.unsent.kept else connection.write([replies])
        if count < len(replies) and not connection.is_gone:
            # A peer that sends PINGs and reads no PONG is not a client.
            connection.is_gone = self.is_full(connection)
            self._keep(connection, [replies], count)

    def _sweep(self, now: float) -> None:
        """Ends the connections of clients that sent no READY in time, or read nothing for long."""
        for connection in list(self._peers.values()):
            waits_s = now - connection.since
            if connection.unsent.kept:
                connection.is_gone = waits_s > self._unsent_s_max
            elif not connection.zmtp.is_ready:
                connection.is_gone = waits_s > HANDSHAKE_S
            if connection.is_gone:
                self._drop(connection)
        self._epoll.modify(self._listener.fileno(), _READ)

    def _drop(self, connection: LocalConnection) -> None:
        del self._peers[connection.peer], self._by_fd[connection.fd]
        connection.unsent.clear()
        self._epoll.unregister(connection.fd)
        connection.end.close()

    def close(self) -> None:
        """Ends all connections. Most clients can still read the answers that the kernel has."""
        for connection in list(self._peers.values()):
            self._drop(connection)
        self._epoll.close()
        self._listener.close()


def bulk_socket(local: str) -> str:
    """Returns the name of a process's second local socket, for answers that are many and large:
    ZeroMQ's thread sends one while the loop makes the next."""
    return f"{local}-bulk"


def _listen(endpoint: str) -> socket.socket:
    """Opens a listening socket with an abstract name."""
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
