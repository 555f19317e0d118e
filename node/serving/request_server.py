"""The server's end of a ZeroMQ connection: bounded requests in, answers out, nothing raised.

A request is the peer's identity and one or two frames; a longer one is read off the socket and
refused. `receive` and `send` do not raise, whatever a peer sends or does. The answers that peers
have not read yet are bounded.

New connections stay out while descriptors are short, so that the store still gets some. ZeroMQ
accepts each connection until no descriptor is left. So `Doors` holds spare descriptors back. When
connections have taken all others, a filter lets the kernel drop requests for new connections, and
the spares are given back for the store. Connections that are there stay, and the port stays ours.
"""

import ctypes
import errno
import ipaddress
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import zmq

from node.runtime.event_log import fields
from node.runtime.shortage import STORE_SPARES, Spares, as_refusal, backlog
from node.serving.unix_server import LocalConnection, LocalEnd, Payload
from protocol.errors import BadRequest, MqError, NodeBusy, ServiceNotAvailable
from protocol.ids import Host
from protocol.wire.frames import (
    FRAMES_MAX,
    HEADER_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    Header,
    HeaderPacker,
    check_envelope,
    id_within,
    pack,
    refusal,
    request_id,
    unpack,
)
from protocol.wire.zmtp import AwakeLook, KeptMessage, parse_socket_event

log = logging.getLogger("keelog.serving")

OWED_BYTES_MAX = 256 * 1024 * 1024
OWED_BYTES_MAX_OF_PEER = 32 * 1024 * 1024
"""Bounds large payloads on their way: a peer over its bound is refused until it has read."""

SAID_AGAIN_S = 10.0
LOOK_AGAIN_S = 0.5
"""How long doors stay closed: a look needs descriptors itself, for a moment."""
_LISTENING_MS_MAX = 1_000
_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_RETURN = 0x06
_DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
"""A program of one instruction for the kernel's packet filter: zero bytes of any packet pass."""
_PROGRAM = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))

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

_FIRST_FRAME, _MORE = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.SNDMORE)
_NOBLOCK = int(zmq.NOBLOCK)
_APART = nullcontext()
_LOCAL = Host(bytes([127, 0, 0, 1]), 0)
_BAD_ADDRESS = {
    zmq.EINVAL,
    zmq.EPROTONOSUPPORT,
    errno.ENODEV,
    zmq.ENOCOMPATPROTO,
    zmq.EADDRNOTAVAIL,
}


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
    """The header as it came: it knows where from."""

    def sender(self) -> Host:
        """Where the connection comes from, port 0; 127.0.0.1 for ipc (design: born host)."""
        try:
            address = ipaddress.ip_address(_address(self.frame))
        except ValueError:
            return _LOCAL
        # A socket for both kinds of addresses shows an IPv4 one inside an IPv6 one.
        return Host((getattr(address, "ipv4_mapped", None) or address).packed, 0)


class BadFrames(NamedTuple):
    """A request that broke the rules of frames, and the refusal that it gets."""

    peer: bytes
    request_id: int
    error: MqError


class Server:
    """A bound ROUTER socket, and a local one beside it. Only one thread may use it all."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        frame_bytes_max: int = max(HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX),
        answers_max: int = SEND_HIGH_WATER_MARK,
        local: str = "",
        bulk: str = "",
        name: str = "",
    ) -> None:
        """Binds. A peer that sends a frame over `frame_bytes_max` is disconnected by ZeroMQ.

        `answers_max`: what ZeroMQ keeps for a peer that does not read; those with a payload may
        have ZERO_COPY_BYTES_MIN bytes each. `local` and `bulk` are bound too if given: a
        `LocalEnd`, and another name of the socket. Clients can do without, so those may fail.
        `name`: the endpoint as people gave it, for errors, where that names a host.
        Raises BadRequest for an address that cannot be, ServiceNotAvailable for one in use.
        """
        self.unsent_dropped = 0
        self._pack = HeaderPacker()
        self._unsent: dict[bytes, Behind] = {}
        self._sent_again_at = 0.0
        self._unsent_count = 0
        self._unsent_bytes = 0
        self._owed = Owed()
        self.socket = context.socket(zmq.ROUTER)
        waiting_max = backlog(BACKLOG)
        self._doors = Doors(self.socket, waiting_max)
        self._alone = [(self.socket, int(zmq.POLLIN))]
        self._local: LocalEnd | None = None
        self._is_local_next = False
        self._may_have_remote = True
        # What `socket.send` calls once it has looked for options that a ROUTER does not have.
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
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
            (zmq.IPV6, int(_is_v6(endpoint))),
        ):
            self.socket.setsockopt(option, value)
        try:
            self.endpoint = _bind(self.socket, self._doors, endpoint, name)
            """Where clients connect: the real port for `:0` or `:*`."""
            if local:
                with _may_fail(local):
                    self._local = LocalEnd(local, frame_bytes_max, answers_max, UNSENT_S_MAX)
            if bulk:
                with _may_fail(bulk):
                    self.socket.bind(bulk)
        except MqError:
            self._doors.close()
            self.socket.close(0)
            raise

    def turn(self) -> None:
        """Accepts new connections, or none while descriptors are short. Call it now and then."""
        self._doors.turn()
        if self._local is not None:
            self._local.is_open = self._doors.are_open

    @property
    def watched(self) -> "tuple[zmq.Socket[bytes] | int, ...]":
        """The ZeroMQ socket and the descriptor that become readable when a request comes."""
        return (self.socket,) if self._local is None else (self.socket, self._local.fd)

    @property
    def has_requests(self) -> bool:
        """Whether `receive` has a request that does not make `watched` readable."""
        return self._local is not None and self._local.has_requests

    def note_ready(self, ready: list[tuple[Any, int]]) -> None:
        """Takes what a `RequestWait` found. Where ZeroMQ's socket is not among it, `receive` does
        not look there until the next time: a look costs as much as a small append."""
        self._may_have_remote = False
        for one, _ in ready:
            if one is self.socket:
                self._may_have_remote = True

    def look_everywhere(self) -> None:
        """`receive` looks at both sockets, as for an owner that notes nothing."""
        self._may_have_remote = True

    def receive(self) -> Received | BadFrames | None:
        """The next request, or None. Never raises for anything that a peer sent."""
        if self._unsent_count:
            self._send_again()
        if self._local is None:
            return self._receive_remote()
        if not self._may_have_remote:
            return self._receive_local(self._local)
        # In turns: neither side can keep the other waiting.
        self._is_local_next = not self._is_local_next
        if self._is_local_next:
            return self._receive_local(self._local) or self._receive_remote()
        return self._receive_remote() or self._receive_local(self._local)

    def _receive_local(self, local: LocalEnd) -> Received | BadFrames | None:
        request = local.receive()
        if request is None:
            return None
        peer, frames = request
        header = bytes(frames[0])
        if len(frames) <= FRAMES_MAX:
            return Received(peer, header, frames[1] if len(frames) > 1 else None)
        return BadFrames(peer, _id_of(header), _too_many(len(frames), sum(map(len, frames))))

    def _receive_remote(self) -> Received | BadFrames | None:
        socket = self.socket
        # A receive without a message costs four times as much as this poll.
        if not zmq.zmq_poll(self._alone, 0):
            return None
        try:
            peer = socket.recv(_NOBLOCK)
            frame = socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        header = frame.bytes
        if not frame.more:
            return Received(peer, header, None, frame)
        second = socket.recv(_NOBLOCK, copy=False)
        is_small = len(second) < ZERO_COPY_BYTES_MIN
        payload = second.bytes if is_small else second.buffer
        if not second.more:
            return Received(peer, header, payload, frame)
        return BadFrames(peer, _id_of(header), self._drain(len(header) + len(payload)))

    def _drain(self, size: int) -> BadRequest:
        """Reads off the rest of a message, frame by frame. ZeroMQ has all of it by now."""
        count = FRAMES_MAX
        while self.socket.getsockopt(zmq.RCVMORE):
            size += len(self.socket.recv())
            count += 1
        return _too_many(count, size)

    def send(self, peer: bytes, header: Mapping[str, Any], payload: Payload | None = None) -> bool:
        """Sends an answer, or keeps it for a peer that reads slowly; False when the peer is gone.

        The payload's memory must stay as it is until it has been sent. Never raises.
        """
        try:
            packed = self._pack(header)
        except BadRequest as error:
            packed, payload = pack(refusal(request_id(dict(header)), error)), None
        if payload is not None and not self._owed.takes(peer, len(payload)):
            busy = NodeBusy("earlier answers to this client are still on their way", "read them")
            packed, payload = pack(refusal(request_id(dict(header)), busy)), None
        if peer not in self._unsent:
            sent = self._try_send(peer, packed, payload)
            if sent is not None:
                return sent
        return self._keep(peer, Unsent(packed, payload))

    def together(self, count: int) -> AbstractContextManager[None]:
        """Around what `count` requests get: to each client of this machine it goes as one."""
        if count == 1 or self._local is None:
            return _APART
        return self._local.together()

    def _try_send(self, peer: bytes, header: bytes, payload: Payload | None) -> bool | None:
        """Whether the peer is there; None when its connection takes no more answers now."""
        if self._local is not None and (connection := self._local.connection(peer)) is not None:
            return self._try_send_local(self._local, connection, header, payload)
        send = self._send
        try:
            send(peer, _FIRST_FRAME)
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
            tracker = self.socket.send(payload, 0, copy=False, track=True)
            self._owed.add(peer, tracker, len(payload))
        return True

    def _try_send_local(
        self, local: LocalEnd, connection: LocalConnection, header: bytes, payload: Payload | None
    ) -> bool | None:
        if local.is_full(connection):
            return None
        is_large = payload is not None and len(payload) >= ZERO_COPY_BYTES_MIN
        kept = local.send(connection, header, payload, borrows=is_large)
        if kept is not None and payload is not None and is_large:
            self._owed.add(connection.peer, kept, len(payload))
        return not connection.is_gone

    def _keep(self, peer: bytes, answer: Unsent) -> bool:
        if self._unsent_count >= UNSENT_MAX or self._unsent_bytes + answer.size > UNSENT_BYTES_MAX:
            self.unsent_dropped += 1
            return False
        if peer not in self._unsent:
            self._unsent[peer] = Behind(time.monotonic())
        self._unsent[peer].answers.append(answer)
        self._unsent_count += 1
        self._unsent_bytes += answer.size
        return True

    @property
    def has_unsent(self) -> bool:
        """Whether answers are kept here: call `receive` again soon, which sends them."""
        return bool(self._unsent)

    def _send_again(self) -> None:
        """Tries the kept answers again: each peer's until its connection takes no more."""
        now = time.monotonic()
        if now - self._sent_again_at < SEND_AGAIN_S:
            return
        self._sent_again_at = now
        for peer, slow in list(self._unsent.items()):
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
                del self._unsent[peer]

    def _forget_first(self, waiting: deque[Unsent]) -> None:
        self._unsent_count -= 1
        self._unsent_bytes -= waiting.popleft().size

    def close(self, linger_ms: int = LINGER_MS) -> None:
        """Sends answers that are left for up to `linger_ms`, then closes the socket.

        Half of the time is for answers that are kept here: ZeroMQ takes no more than its own limit.
        """
        begin = time.monotonic()
        while self._owes and time.monotonic() - begin < linger_ms / 2000:
            time.sleep(SEND_AGAIN_S)
            self._send_again()
            if self._local is not None:
                self._local.turn()
        self.unsent_dropped += self._unsent_count
        if self._local is not None:
            self._local.close()
        self._doors.close()
        self.socket.close(max(0, linger_ms - int((time.monotonic() - begin) * 1000)))

    @property
    def _owes(self) -> bool:
        return self._unsent_count > 0 or (self._local is not None and self._local.has_unread)


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
            server.send(received.peer, refusal(received.request_id, received.error))
            continue
        number = 0
        try:
            header = unpack(received.header, header_bytes_max)
            number = request_id(header)
            answer = reply(check_envelope(header), header, received)
        except (MqError, OSError) as error:
            number = number or id_within(received.header)
            answer = refusal(number, as_refusal(error, place))
        server.send(received.peer, answer)


class RequestWait:
    """Where a server's loop sleeps: watches sockets and descriptors, for their own thread."""

    def __init__(
        self,
        watched: "Iterable[zmq.Socket[bytes] | int]",
        note: Callable[[list[tuple[Any, int]]], object] = lambda ready: None,
    ) -> None:
        """`note` is called with what each wait has found ready."""
        self._note = note
        self._ready: list[tuple[Any, int]] = []
        """What the last look found."""
        # What a zmq.Poller asks; the list is made once.
        self._watched: list[tuple[Any, int]] = [(one, int(zmq.POLLIN)) for one in watched]
        processors = len(os.sched_getaffinity(0))
        self._awake = AwakeLook(AWAKE_S, processors, time.monotonic, os.sched_yield)

    def poll(self, timeout_ms: int, looks: bool = False) -> list[tuple[Any, int]]:
        """Returns when there may be something to do, at the latest after the time: what is ready,
        each with its events. With `looks` it does not sleep at once."""
        if looks and timeout_ms and (self._look(0) or self._awake.until(partial(self._look, 0))):
            return self._ready
        return self._look(timeout_ms)

    def _look(self, timeout_ms: int) -> list[tuple[Any, int]]:
        self._ready = zmq.zmq_poll(self._watched, timeout_ms)
        self._note(self._ready)
        return self._ready


class Doors:
    """Lets clients in at one ZeroMQ socket, or keeps them out. For the socket's own thread."""

    def __init__(self, bound: "zmq.Socket[bytes]", backlog: int) -> None:
        """`backlog`: connections that may wait; ZeroMQ accepts these even after the doors close."""
        self.are_open = True
        self._socket = bound
        self._listener: socket.socket | None = None
        self._spares = Spares(STORE_SPARES + backlog)
        self._said_at: float | None = None
        self._look_at = 0.0

    def bind(self, endpoint: str) -> None:
        """Binds, and remembers the descriptor that listens. Raises ZMQError."""
        monitor = self._socket.get_monitor_socket(int(zmq.EVENT_LISTENING))
        try:
            self._socket.bind(endpoint)
            if endpoint.startswith("tcp://") and monitor.poll(_LISTENING_MS_MAX):
                descriptor = parse_socket_event(monitor.recv_multipart()[0]).value
                self._listener = socket.socket(fileno=os.dup(descriptor))
        finally:
            self._socket.disable_monitor()
            monitor.close(0)

    def turn(self) -> None:
        """Closes when descriptors are short, opens when they are free. Call it now and then."""
        now = time.monotonic()
        if now < self._look_at:
            return
        has_room = self._spares.take()
        if has_room and not self.are_open:
            self.are_open = self._filter(_SO_DETACH_FILTER)
        elif not has_room:
            if self.are_open and self._filter(_SO_ATTACH_FILTER):
                self.are_open = False
                self._say(now)
            self._spares.give_back()
            self._look_at = now + LOOK_AGAIN_S

    def _filter(self, option: int) -> bool:
        if self._listener is not None:
            try:
                self._listener.setsockopt(socket.SOL_SOCKET, option, _PROGRAM)
            except OSError as error:
                log.warning("connections cannot be kept out", extra=fields(why=error))
                return False
        return True

    def _say(self, now: float) -> None:
        if self._said_at is None or now - self._said_at >= SAID_AGAIN_S:
            self._said_at = now
            why = "no descriptor is free for them: raise the limit of open files, LimitNOFILE"
            log.warning("new connections wait", extra=fields(why=why))

    def close(self) -> None:
        """Gives the descriptors back; its owner closes the socket."""
        self._spares.give_back()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


class Owed:
    """The large payloads that are on their way, by peer: no other limit counts their bytes."""

    def __init__(self) -> None:
        self.bytes = 0
        self._peers: dict[bytes, deque[tuple[zmq.MessageTracker | KeptMessage, int]]] = {}

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

    def add(self, peer: bytes, tracker: zmq.MessageTracker | KeptMessage, size: int) -> None:
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


@contextmanager
def _may_fail(local: str) -> Iterator[None]:
    try:
        yield
    except (OSError, zmq.ZMQError) as error:
        log.warning("clients of this machine use TCP", extra=fields(socket=local, why=error))


def _is_v6(endpoint: str) -> bool:
    """True for an IPv6 address, and for all addresses of a machine, where ZeroMQ does with IPv4 if
    IPv6 is missing."""
    return endpoint.startswith(("tcp://[", "tcp://*:"))


def _bind(socket: "zmq.Socket[bytes]", doors: Doors, endpoint: str, name: str) -> str:
    said = f"{name!r} ({endpoint})" if name else repr(endpoint)
    # An ipc socket is a file, and only its owner may write to it.
    mask = os.umask(0o077) if endpoint.startswith("ipc://") else None
    try:
        doors.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno in _BAD_ADDRESS:
            raise BadRequest(
                f"cannot bind {said}: {error.strerror}",
                "write tcp://127.0.0.1:7850, or another address of this machine",
            ) from None
        raise ServiceNotAvailable(
            f"cannot bind {said}: {error.strerror}", "use another port, or 0 for a free one"
        ) from None
    finally:
        if mask is not None:
            os.umask(mask)
    return socket.getsockopt_string(zmq.LAST_ENDPOINT)


def _too_many(frames: int, size: int) -> BadRequest:
    return BadRequest(
        f"the request has {frames} frames and {size} bytes, {FRAMES_MAX} frames are allowed",
        "send [header] or [header, payload]",
    )


def _address(frame: zmq.Frame | None) -> str:
    try:
        return "" if frame is None else str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""


def _id_of(header: bytes) -> int:
    try:
        return request_id(unpack(header))
    except BadRequest:
        return id_within(header)
