"""The server's end of connections: bounded requests in, answers out, nothing raised.

A request is the peer's identity and one or two frames; a longer one is read off the socket and
refused. `receive` and `send` do not raise, whatever a peer sends or does. The answers that peers
have not read yet are bounded.

ZeroMQ carries what comes over a network. Connections of this machine the loop carries itself
(`LocalEnd`): ZeroMQ's own thread hands each request to the loop, and each answer back, and if the
client waits for each answer, these two changes of threads take longer than all else. Any client
that speaks ZMTP may connect there.
"""

import fcntl
import ipaddress
import logging
import os
import secrets
import select
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic, sleep
from typing import Any, NamedTuple

import zmq

from node.runtime.event_log import Seldom, fields
from node.runtime.shortage import as_refusal, backlog
from node.serving import doors
from protocol.access.decision import plain_address
from protocol.errors import BadRequest, MqError, NodeBusy
from protocol.ids import Host
from protocol.wire import frames, zmtp
from protocol.wire.frames import FRAMES_MAX, HEADER_BYTES_MAX, Header
from protocol.wire.zmtp import AwakeLook

log = logging.getLogger("keelog.serving")

OWED_BYTES_MAX = 256 * 1024 * 1024
OWED_BYTES_MAX_OF_PEER = 32 * 1024 * 1024
"""Bounds large payloads on their way: a peer over its bound is refused until it has read."""

HANDSHAKE_MS = 2_000
"""A connection that is silent for this long is closed."""
HEARTBEAT_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 8_000
BACKLOG = 1_024
"""Connections that may wait to be taken; fewer where descriptors are few."""
RECEIVE_HIGH_WATER_MARK = 64
"""Requests that ZeroMQ reads ahead for one connection; the rest stays in the network."""
SEND_HIGH_WATER_MARK = 1_000
"""Answers that ZeroMQ keeps for one connection that does not read."""
UNSENT_MAX = 10_000
UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Answers kept here for peers that do not read theirs; beyond it they are dropped."""
UNSENT_S_MAX = 10.0
"""A peer that reads nothing for this long is given up: the answers kept for it are dropped."""
SEND_AGAIN_S = 0.001
LINGER_MS = 500
AWAKE_S = 0.0003
"""How long a loop looks for the next request of a client that waits for each answer."""
ZERO_COPY_BYTES_MIN = 65_536
"""Below it copying a payload costs less than handing it over."""

ROOM_BYTES = 8_192
"""The buffer of a local connection: all the memory that an idle one takes."""
EVENTS_MAX = 64
RECEIVES_MAX = 4
ACCEPTS_MAX = 64
HANDSHAKE_S = 2.0
SWEEP_S = 1.0
PEER_BYTES = 16
"""Random in the names of local connections: a peer of ZeroMQ may choose any name that it knows, and
would make a local client take the answers to its own requests."""

_FIRST_FRAME, _MORE = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.SNDMORE)
_NOBLOCK = int(zmq.NOBLOCK)
_READ, _BOTH = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
_APART = nullcontext()
_LOCAL = Host(bytes([127, 0, 0, 1]), 0)
_PEER_ADDRESS = "Peer-Address"

Payload = zmtp.Sendable
Request = tuple[bytes, list[zmtp.Payload]]
"""The peer that sent it, and its frames."""


class Unsent(NamedTuple):
    header: bytes
    payload: Payload | None

    @property
    def size(self) -> int:
        return len(self.header) + (0 if self.payload is None else len(self.payload))


class Received(NamedTuple):
    """A request of one or two frames, not parsed yet."""

    peer: bytes
    header: bytes
    payload: bytes | memoryview | None
    """A large one is ZeroMQ's own memory, which lives as long as this does."""
    frame: zmq.Frame | None = None
    """The header as it came over the network: it knows where from."""
    user: str = ""
    """Whose key the connection has, at a server that asks for keys."""
    key: str = ""
    """That key."""

    @property
    def is_own(self) -> bool:
        """Whether it came over a local socket, where the node's own user and root alone connect."""
        return self.frame is None

    @property
    def address(self) -> str:
        """Where the connection comes from, as access lists name it; empty for a local socket, and
        for a connection that was gone before it could be seen."""
        try:
            return "" if self.frame is None else plain_address(str(self.frame.get(_PEER_ADDRESS)))
        except (ValueError, zmq.ZMQError):
            return ""

    def sender(self) -> Host:
        """Where the connection comes from, port 0; 127.0.0.1 for ipc (design: born host)."""
        try:
            found = "" if self.frame is None else str(self.frame.get(_PEER_ADDRESS))
            address = ipaddress.ip_address(found)
        except (ValueError, zmq.ZMQError):
            return _LOCAL
        # A socket for both kinds of addresses shows an IPv4 one inside an IPv6 one.
        return Host((getattr(address, "ipv4_mapped", None) or address).packed, 0)


class BadFrames(NamedTuple):
    """A request that broke the rules of frames, or may not be made, and the refusal that it
    gets."""

    peer: bytes
    request_id: int
    error: MqError


class Owed:
    """The large payloads that are on their way, by peer: no other limit counts their bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._peers: dict[bytes, deque[tuple[zmq.MessageTracker | zmtp.KeptMessage, int]]] = {}

    def takes(self, peer: bytes, size: int) -> bool:
        """Whether a peer may get `size` bytes more. The first payload of a peer always fits."""
        if not self.bytes:
            return True
        self._forget_sent(peer)
        owed = sum(size for _, size in self._peers.get(peer, ()))
        if owed + size > max(size, OWED_BYTES_MAX_OF_PEER):
            return False
        if self.bytes + size > OWED_BYTES_MAX:
            for other in list(self._peers):
                self._forget_sent(other)
        return self.bytes + size <= OWED_BYTES_MAX

    def add(self, peer: bytes, tracker: zmq.MessageTracker | zmtp.KeptMessage, size: int) -> None:
        """Counts a payload until it is sent."""
        self._peers.setdefault(peer, deque()).append((tracker, size))
        self.bytes += size

    def _forget_sent(self, peer: bytes) -> None:
        waiting = self._peers.get(peer)
        while waiting and waiting[0][0].done:
            self.bytes -= waiting.popleft()[1]
        if not waiting:
            self._peers.pop(peer, None)


class Behind:
    """The answers kept for one slow peer, and since when it has read nothing."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.answers: deque[Unsent] = deque()


class LocalConnection:
    """One client. `unsent` waits until the client reads."""

    def __init__(
        self, end: socket.socket, peer: bytes, frame_bytes_max: int, epoll: select.epoll
    ) -> None:
        self.end = end
        self.fd = end.fileno()
        self.peer = peer
        self.since = monotonic()
        """When it came, or when the first of `unsent` began to wait for the client to read."""
        self.zmtp = zmtp.Connection(b"ROUTER", frame_bytes_max, self.since, ROOM_BYTES)
        self.unsent = zmtp.Outbox()
        self.is_gone = False
        self._epoll = epoll
        epoll.register(self.fd, _READ)

    def write(self, parts: Sequence[Payload], lends: bool = True) -> zmtp.KeptMessage | None:
        """Sends what the client's side takes now. The rest is kept and returned: in its own memory
        with `lends`, which stays as it is until that is done, else as a copy."""
        count = 0
        if not self.unsent.kept:
            try:
                count = self.end.send(parts[0]) if len(parts) == 1 else self.end.sendmsg(parts)
            except BlockingIOError:
                pass
            except OSError:
                self.is_gone = True
                return None
            if count == sum(map(len, parts)):
                return None
            self.since = monotonic()
            self._epoll.modify(self.fd, _BOTH)
        return self.unsent.keep(parts if lends else map(bytes, parts), count)

    @property
    def has_unread(self) -> bool:
        """True while something that was sent waits here, or in the kernel, for the client."""
        count = fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4))
        return bool(self.unsent.kept) or bool(struct.unpack("i", count)[0])

    def write_unsent(self) -> None:
        """Goes on sending what was not taken before."""
        try:
            while self.unsent.kept:
                count = self.end.sendmsg(self.unsent.kept[0].parts)
                self.since = monotonic()
                if not self.unsent.took(count):
                    return
        except BlockingIOError:
            return
        except OSError:
            self.is_gone = True
        else:
            self._epoll.modify(self.fd, _READ)


class LocalEnd:
    """A bound local socket and its connections, for one thread. `fd` is readable when there is
    something to do.
    """

    def __init__(
        self, endpoint: str, frame_bytes_max: int, answers_max: int, unsent_s_max: float, owed: Owed
    ) -> None:
        """Binds `ipc://@NAME`. It keeps up to `answers_max` answers for a client that does not
        read, for `unsent_s_max` seconds; `owed` counts the large ones. Raises OSError.
        """
        self._frame_bytes_max = frame_bytes_max
        self._answers_max = answers_max
        self._unsent_s_max = unsent_s_max
        self._owed = owed
        self.ready: deque[Request] = deque()
        """Requests that were read already. Call `turn` when there are none."""
        self.peers: dict[bytes, LocalConnection] = {}
        self._by_fd: dict[int, LocalConnection] = {}
        self._count = 0
        self._prefix = secrets.token_bytes(PEER_BYTES)
        self._swept_at = 0.0
        self._together: dict[LocalConnection, list[bytes]] | None = None
        """What `together` keeps back."""
        self.is_open = True
        """Whether new connections are taken. The owner sets it."""
        self._listener = doors.listen(endpoint)
        self._said = Seldom(doors.SAID_AGAIN_S)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), _READ)
        self.fd = self._epoll.fileno()

    @property
    def has_unread(self) -> bool:
        """True while a client has yet to read something.

        A ZeroMQ client that has as much as it takes (RCVHWM) drops the rest at a hang-up.
        """
        return any(one.has_unread for one in self.peers.values())

    def send(
        self, connection: LocalConnection, header: bytes, payload: Payload | None
    ) -> bool | None:
        """Sends an answer, and keeps what is not taken at once. Returns whether the client is
        there; None, and nothing is sent, when no more is kept for it."""
        waiting = connection.unsent.kept
        if len(waiting) >= self._answers_max:
            return None
        parts = zmtp.message(header, payload)
        if self._together is not None and not waiting:
            if payload is None:
                self._together.setdefault(connection, []).append(bytes(parts[0]))
                return True
            if before := self._together.pop(connection, []):
                connection.write((b"".join(before),))
        if not connection.is_gone:
            is_large = payload is not None and len(payload) >= ZERO_COPY_BYTES_MIN
            kept = connection.write(parts, lends=is_large)
            if kept is not None and payload is not None and is_large:
                self._owed.add(connection.peer, kept, len(payload))
        if connection.is_gone:
            self._drop(connection)
        return not connection.is_gone

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
                if not connection.is_gone:
                    connection.write((b"".join(messages),))
                    if connection.is_gone:
                        self._drop(connection)

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
            if events & select.EPOLLOUT and not connection.is_gone:
                connection.write_unsent()
            if connection.is_gone:
                self._drop(connection)
        if now - self._swept_at >= SWEEP_S:
            self._swept_at = now
            self._sweep(now)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            if not self.is_open:
                self._let_wait()
                return
            try:
                end, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Most likely no descriptor is free.
                log.warning("a client of this machine has to wait", extra=fields(why=error))
                self._let_wait()
                return
            if not doors.is_own(user := doors.user_of(end)):
                end.close()
                if self._said.is_due(user, monotonic()):
                    why = fields(user=user)
                    log.warning("a local socket is for this user and root alone", extra=why)
                continue
            end.setblocking(False)
            self._count += 1
            peer = self._prefix + self._count.to_bytes(8, "big")
            connection = LocalConnection(end, peer, self._frame_bytes_max, self._epoll)
            self.peers[peer] = self._by_fd[connection.fd] = connection
            connection.write((connection.zmtp.hello,))

    def _let_wait(self) -> None:
        """New clients wait for the next sweep."""
        self._epoll.modify(self._listener.fileno(), 0)

    def _read(self, connection: LocalConnection, now: float) -> None:
        """Reads up to the first request, or what is there."""
        waiting = len(self.ready)
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
                    self.ready.append((connection.peer, request))
            except zmtp.NotZmtp:
                connection.is_gone = True
            if connection.zmtp.replies:
                is_full = len(connection.unsent.kept) >= self._answers_max
                if connection.write((connection.zmtp.take_replies(),)) is not None and is_full:
                    connection.is_gone = True  # who sends PINGs and reads no PONG is not a client
            if connection.is_gone or size < len(room) or len(self.ready) > waiting:
                return

    def _sweep(self, now: float) -> None:
        """Ends the connections of clients that sent no READY in time, or read nothing for long."""
        for connection in list(self.peers.values()):
            waits_s = now - connection.since
            if connection.unsent.kept:
                connection.is_gone = waits_s > self._unsent_s_max
            elif not connection.zmtp.is_ready:
                connection.is_gone = waits_s > HANDSHAKE_S
            if connection.is_gone:
                self._drop(connection)
        self._epoll.modify(self._listener.fileno(), _READ)

    def _drop(self, connection: LocalConnection) -> None:
        del self.peers[connection.peer], self._by_fd[connection.fd]
        connection.unsent.clear()
        self._epoll.unregister(connection.fd)
        connection.end.close()

    def close(self) -> None:
        """Ends all connections. Most clients can still read the answers that the kernel has."""
        for connection in list(self.peers.values()):
            self._drop(connection)
        self._epoll.close()
        self._listener.close()


class Server:
    """A bound ROUTER socket, and local ones beside it. Only one thread may use it all.

    That in bulk is a socket of its own: so who is of this machine is known by the socket, and by
    nothing that a peer says of itself.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        frame_bytes_max: int = max(HEADER_BYTES_MAX, frames.PAYLOAD_BYTES_MAX),
        answers_max: int = SEND_HIGH_WATER_MARK,
        local: str = "",
        bulk: str = "",
        name: str = "",
    ) -> None:
        """Binds. A peer that sends a frame over `frame_bytes_max` is disconnected by ZeroMQ.

        `answers_max`: what ZeroMQ keeps for a peer that does not read; those with a payload may
        have ZERO_COPY_BYTES_MIN bytes each. `local` and `bulk` are bound too if given: a
        `LocalEnd`, and a socket of ZeroMQ. Clients can do without, so those may fail.
        `name`: the endpoint as people gave it, for errors, where that names a host.
        Raises BadRequest for an address that cannot be, ServiceNotAvailable for one in use.
        """
        self.unsent_dropped = 0
        self._pack = frames.HeaderPacker()
        self.unsent: dict[bytes, Behind] = {}
        """What is kept here for slow peers: call `receive` again soon, which sends it."""
        self._sent_again_at = 0.0
        self._unsent_count = self._unsent_bytes = 0
        self._owed = Owed()
        waiting_max = backlog(BACKLOG)
        self.socket = _router(context, endpoint, frame_bytes_max, answers_max, waiting_max)
        self._doors = doors.Doors(self.socket, waiting_max)
        self.remote = [self.socket]
        """The sockets of ZeroMQ: that for clients from anywhere, and that in bulk."""
        self._polled = [(self.socket, int(zmq.POLLIN))]
        self._local: LocalEnd | None = None
        self.local = ""
        """The local socket, if it could be bound."""
        self._is_local_next = self._is_bulk_next = False
        self.may_have_remote = True
        """Whether `receive` looks at ZeroMQ's socket. A `RequestWait` sets it: a look costs as much
        as a small append."""
        self._bulk_prefix = secrets.token_bytes(PEER_BYTES)
        # What `socket.send` calls once it has looked for options that a ROUTER does not have.
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        try:
            self._guard(self.socket)
            self.endpoint = self._doors.bind(endpoint, name)
            """Where clients connect: the real port for `:0` or `:*`."""
            if local:
                with _may_fail(local):
                    limits = frame_bytes_max, answers_max, UNSENT_S_MAX
                    self._local = LocalEnd(local, *limits, self._owed)
                    self.local = local
            if bulk:
                made = _router(context, bulk, frame_bytes_max, answers_max, waiting_max)
                self._open_bulk(made, bulk)
        except MqError:
            self._doors.close()
            self.socket.close(0)
            raise
        self.ready: deque[Request] = deque() if self._local is None else self._local.ready
        """Requests that `receive` has and that do not make `watched` readable."""

    def _open_bulk(self, socket: "zmq.Socket[bytes]", name: str) -> None:
        with _may_fail(name):
            doors.take_own_users(socket)
            socket.bind(name)
            self.remote.append(socket)
            self._polled.append((socket, int(zmq.POLLIN)))
            return
        socket.close(0)

    def _guard(self, socket: "zmq.Socket[bytes]") -> None:
        """Called before the socket is bound to `endpoint`, for a kind that asks clients for more
        than this one does."""

    def turn(self) -> None:
        """Accepts new connections, or none while descriptors are short. Call it now and then."""
        self._doors.turn()
        if self._local is not None:
            self._local.is_open = self._doors.are_open

    @property
    def watched(self) -> "tuple[zmq.Socket[bytes] | int, ...]":
        """The ZeroMQ sockets and the descriptor that become readable when a request comes."""
        return (*self.remote,) if self._local is None else (*self.remote, self._local.fd)

    def is_own(self, peer: bytes) -> bool:
        """Whether a peer is connected to a local socket."""
        is_local = self._local is not None and peer in self._local.peers
        return is_local or self._is_in_bulk(peer)

    def _is_in_bulk(self, peer: bytes) -> bool:
        return len(self.remote) > 1 and peer.startswith(self._bulk_prefix)

    def receive(self) -> Received | BadFrames | None:
        """The next request, or None. Never raises for anything that a peer sent."""
        if self._unsent_count:
            self._send_again()
        if self._local is None:
            return self._receive_remote()
        if self.may_have_remote:
            # In turns: neither side can keep the other waiting.
            self._is_local_next = not self._is_local_next
            if not self._is_local_next and (remote := self._receive_remote()) is not None:
                return remote
        if not self.ready:
            self._local.turn()
        if not self.ready:
            is_left = self.may_have_remote and self._is_local_next
            return self._receive_remote() if is_left else None
        peer, parts = self.ready.popleft()
        header = bytes(parts[0])
        if len(parts) <= FRAMES_MAX:
            return Received(peer, header, parts[1] if len(parts) > 1 else None)
        return BadFrames(peer, _id_of(header), _too_many(len(parts), sum(map(len, parts))))

    def _receive_remote(self) -> Received | BadFrames | None:
        # A receive without a message costs four times as much as this poll.
        ready = zmq.zmq_poll(self._polled, 0)
        if not ready:
            return None
        # In turns: neither of both keeps the other waiting.
        self._is_bulk_next = not self._is_bulk_next
        is_in_bulk = ready[-1 if self._is_bulk_next else 0][0] is not self.socket
        socket = self.remote[is_in_bulk]
        try:
            peer = socket.recv(_NOBLOCK)
            frame = socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        header = frame.bytes
        origin = None if is_in_bulk else frame
        if is_in_bulk:
            peer = self._bulk_prefix + peer
        if not frame.more:
            return Received(peer, header, None, origin)
        second = socket.recv(_NOBLOCK, copy=False)
        is_small = len(second) < ZERO_COPY_BYTES_MIN
        payload = second.bytes if is_small else second.buffer
        if not second.more:
            return Received(peer, header, payload, origin)
        return BadFrames(peer, _id_of(header), _drain(socket, len(header) + len(payload)))

    def send(self, peer: bytes, header: Mapping[str, Any], payload: Payload | None = None) -> bool:
        """Sends an answer, or keeps it for a peer that reads slowly; False when the peer is gone.

        The payload's memory must stay as it is until it has been sent. Never raises.
        """
        try:
            packed = self._pack(header)
        except BadRequest as error:
            packed, payload = _refused(header, error), None
        if payload is not None and not self._owed.takes(peer, len(payload)):
            busy = NodeBusy("earlier answers to this client are still on their way", "read them")
            packed, payload = _refused(header, busy), None
        if peer not in self.unsent:
            sent = self._try_send(peer, packed, payload)
            if sent is not None:
                return sent
        return self._keep(peer, Unsent(packed, payload))

    def together(self) -> AbstractContextManager[None]:
        """Around the answers to several requests: to each client of this machine they go as one."""
        return _APART if self._local is None else self._local.together()

    def _try_send(self, peer: bytes, header: bytes, payload: Payload | None) -> bool | None:
        """Whether the peer is there; None when its connection takes no more answers now."""
        if self._local is not None and (connection := self._local.peers.get(peer)) is not None:
            return self._local.send(connection, header, payload)
        socket, send, name = self.socket, self._send, peer
        if self._is_in_bulk(peer):
            socket, name = self.remote[1], peer.removeprefix(self._bulk_prefix)
            send = super(zmq.Socket, socket).send
        try:
            send(name, _FIRST_FRAME)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                log.warning("an answer was not sent", extra=fields(why=error))
            return False
        # ROUTER took the first frame, so it has room for the others: they cannot block.
        if payload is None:
            send(header)
        elif len(payload) < ZERO_COPY_BYTES_MIN:
            send(header, _MORE)
            send(payload)
        else:
            send(header, _MORE)
            tracker = socket.send(payload, 0, copy=False, track=True)
            self._owed.add(peer, tracker, len(payload))
        return True

    def _keep(self, peer: bytes, answer: Unsent) -> bool:
        if self._unsent_count >= UNSENT_MAX or self._unsent_bytes + answer.size > UNSENT_BYTES_MAX:
            self.unsent_dropped += 1
            return False
        if peer not in self.unsent:
            self.unsent[peer] = Behind(monotonic())
        self.unsent[peer].answers.append(answer)
        self._unsent_count += 1
        self._unsent_bytes += answer.size
        return True

    def _send_again(self) -> None:
        """Tries the kept answers again: each peer's until its connection takes no more."""
        now = monotonic()
        if now - self._sent_again_at < SEND_AGAIN_S:
            return
        self._sent_again_at = now
        for peer, slow in list(self.unsent.items()):
            waiting = slow.answers
            while waiting:
                sent = self._try_send(peer, *waiting[0])
                if sent is None and now - slow.since < UNSENT_S_MAX:
                    break
                if sent:
                    slow.since = now
                    self._forget_first(waiting)
                    continue
                self.unsent_dropped += len(waiting)
                while waiting:
                    self._forget_first(waiting)
            if not waiting:
                del self.unsent[peer]

    def _forget_first(self, waiting: deque[Unsent]) -> None:
        self._unsent_count -= 1
        self._unsent_bytes -= waiting.popleft().size

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Sends answers that are left for up to `linger_ms`, then closes the socket.

        Half of the time is for answers that are kept here: ZeroMQ takes no more than its own limit.
        """
        begin = monotonic()
        local = self._local
        while monotonic() - begin < linger_ms / 2000:
            if not self._unsent_count and (local is None or not local.has_unread):
                break
            sleep(SEND_AGAIN_S)
            self._send_again()
            if local is not None:
                local.turn()
        self.unsent_dropped += self._unsent_count
        if local is not None:
            local.close()
        self._doors.close()
        for one in self.remote:
            one.close(max(0, linger_ms - int((monotonic() - begin) * 1000)))


def serve_waiting(
    server: Server,
    count_max: int,
    place: str,
    reply: Callable[[str, Header, Received], Header],
    header_bytes_max: int = HEADER_BYTES_MAX,
) -> None:
    """Replies to requests that wait, `count_max` at most, so that they do not delay the owner's
    other work.

    `reply` gets the operation and the header. What it raises refuses the request, and so does
    malformed input; the connection goes on. `place` is named by a shortage without a file.
    """
    for _ in range(count_max):
        received = server.receive()
        if received is None:
            return
        if isinstance(received, BadFrames):
            server.send(received.peer, frames.refusal(received.request_id, received.error))
            continue
        number = 0
        try:
            header = frames.unpack(received.header, header_bytes_max)
            number = frames.request_id(header)
            answer = reply(frames.check_envelope(header), header, received)
        except (MqError, OSError) as error:
            number = number or frames.id_within(received.header)
            answer = frames.refusal(number, as_refusal(error, place))
        server.send(received.peer, answer)


class RequestWait:
    """Where a server's loop sleeps: watches sockets and descriptors, for their own thread."""

    def __init__(
        self, watched: "Iterable[zmq.Socket[bytes] | int]", server: Server | None = None
    ) -> None:
        """Each wait notes at `server` whether its ZeroMQ socket is ready."""
        # What a zmq.Poller asks; the list is made once.
        self._watched: list[tuple[Any, int]] = [(one, int(zmq.POLLIN)) for one in watched]
        self._server = server
        processors = len(os.sched_getaffinity(0))
        self._awake = AwakeLook(AWAKE_S, processors, monotonic, os.sched_yield)

    def poll(self, timeout_ms: int, looks: bool = False) -> list[tuple[Any, int]]:
        """Returns when there may be something to do, at the latest after the time: what is ready,
        each with its events. With `looks` it does not sleep at once."""
        watched, looks = self._watched, looks and timeout_ms > 0
        ready: list[tuple[Any, int]] = zmq.zmq_poll(watched, 0 if looks else timeout_ms)
        # What a look finds is added to the list.
        if looks and not (
            ready or self._awake.until(lambda: ready.__iadd__(zmq.zmq_poll(watched, 0)))
        ):
            ready = zmq.zmq_poll(watched, timeout_ms)
        if (server := self._server) is not None:
            server.may_have_remote = any(
                one is remote for one, _ in ready for remote in server.remote
            )
        return ready


def _drain(socket: "zmq.Socket[bytes]", size: int) -> BadRequest:
    """Reads off the rest of a message, frame by frame. ZeroMQ has all of it by now."""
    count = FRAMES_MAX
    while socket.getsockopt(zmq.RCVMORE):
        size += len(socket.recv())
        count += 1
    return _too_many(count, size)


def bulk_socket(local: str) -> str:
    """Returns the name of a process's second local socket, for answers that are many and large:
    ZeroMQ's thread sends one while the loop makes the next."""
    return f"{local}-bulk"


def _router(
    context: "zmq.Context[zmq.Socket[bytes]]",
    endpoint: str,
    frame_bytes_max: int,
    answers_max: int,
    waiting_max: int,
) -> "zmq.Socket[bytes]":
    made = context.socket(zmq.ROUTER)
    for option, value in (
        (zmq.MAXMSGSIZE, frame_bytes_max),
        (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
        (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
        (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        (zmq.ROUTER_MANDATORY, 1),
        (zmq.BACKLOG, waiting_max),
        (zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK),
        (zmq.SNDHWM, answers_max),
        (zmq.LINGER, LINGER_MS),
        (zmq.IPV6, int(doors.is_v6(endpoint))),
    ):
        made.setsockopt(option, value)
    return made


@contextmanager
def _may_fail(local: str) -> Iterator[None]:
    try:
        yield
    except (OSError, zmq.ZMQError) as error:
        log.warning("clients of this machine use TCP", extra=fields(socket=local, why=error))


def _too_many(count: int, size: int) -> BadRequest:
    return BadRequest(
        f"the request has {count} frames and {size} bytes, {FRAMES_MAX} frames are allowed",
        "send [header] or [header, payload]",
    )


def _refused(header: Mapping[str, Any], error: MqError) -> bytes:
    return frames.pack(frames.refusal(frames.request_id(dict(header)), error))


def _id_of(header: bytes) -> int:
    try:
        return frames.request_id(frames.unpack(header))
    except BadRequest:
        return frames.id_within(header)
