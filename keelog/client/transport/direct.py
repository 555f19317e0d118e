"""The direct lane: a caller that waits for an answer carries the request itself.

Handing a request to the I/O thread and its answer back costs two changes of threads, much of what a
lone send, a look-up, or a message that arrives alone takes. So there are connections to the writer,
or a reader, beside those of the I/O thread. Everything out of the ordinary (no connection yet,
another process, several readers, an attempt that is repeated) is left to the I/O thread, whose
rules hold. The kinds of `Channel` differ in how they wait: `BlockingChannel` is for lone threads,
`PullChannel` for the pulls of one follower, as streams; `client.event_loop` has that of asyncio.

Each speaks ZMTP on a socket of its own. ZeroMQ hands each frame to a thread of its own and back:
with one request after the other these are two of the three changes of threads on the client's side,
and most of the time of a request. Nothing runs beside the owner here, so no PING gets its PONG
while it does something else: a connection that was silent for long is replaced by a new one.
"""

import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic
from typing import Any

import msgpack

from keelog.client.transport import exchange
from keelog.client.transport.io_thread import ANSWER_BYTES_MAX, RECONNECT_MS, IoThread
from keelog.client.transport.routes import Routes, connecting_socket, local_address
from protocol.errors import BadRequest
from protocol.wire import zmtp
from protocol.wire.frames import VERSION, Header, HeaderPacker, unpack_answer
from protocol.wire.zmtp import AwakeLook, Payload

UNSENT_BYTES_MAX = 8 * 1024 * 1024
"""Kept of requests that the network does not take; beyond it no request is taken."""
RECEIVES_MAX = 64
"""The network is read up to this often before others have their turn."""
_TIMEVAL = struct.Struct("@ll")
"""C's `timeval` where `time_t` is a `long`, as on 64-bit Linux; elsewhere the kernel may refuse it.
A timeout of Python's own socket would ask `poll` before each receive."""
_NOW = socket.MSG_DONTWAIT
_SEND_NOW = _NOW | socket.MSG_NOSIGNAL

Reply = tuple[exchange.NodeAnswer | exchange.Unanswered, str]
"""With the endpoint that the request went to."""
AWAKE_S = 0.0006
"""How long a lone caller looks at its connection before it sleeps."""
DIRECTS = 2
"""Threads that carry a request at the same time. Messages of further threads go in groups."""
BLOCKING_SLICE_S, PULL_SLICE_S = 0.05, 0.2
"""Waits of a lone caller, and of a follower, are cut into slices, to notice a lost connection, or
the client's end."""
CONNECT_S = 0.05
"""The first pull waits this time for the connection, then goes by the I/O thread."""


class ZmtpConnection:
    """A socket: requests go out, answers come in. For one thread at a time."""

    def __init__(self, endpoint: str, local: str = "") -> None:
        """Starts to connect, without waiting, over `local` where it is given: another way to the
        same process. Raises OSError, ValueError for what it cannot.
        """
        self.endpoint = endpoint
        self.closed = False
        self._is_connecting = True
        self.is_up = False
        """Whether requests may be sent."""
        self.is_lost = False
        """Whether no answer can come any more, once those that `receive` had are taken."""
        self.pack = HeaderPacker()
        self._zmtp = zmtp.Connection(b"DEALER", ANSWER_BYTES_MAX, monotonic())
        self._unsent = zmtp.Outbox()
        self._wait_s = 0.0
        self._socket = _connect(local or endpoint)
        self.fd = self._socket.fileno()
        self._poller, self._incoming = select.poll(), select.poll()
        self._poller.register(self.fd, select.POLLIN | select.POLLOUT)
        self._incoming.register(self.fd, select.POLLIN)
        self._greet()

    @property
    def wants_to_send(self) -> bool:
        """Whether `receive` should be called too when the socket can be written to."""
        return bool(self._unsent.kept) or self._is_connecting

    def has_come(self) -> bool:
        """Whether `receive` finds something at once. It costs a fraction of a look there."""
        return bool(self._incoming.poll(0)) or self.wants_to_send

    def is_at_rest(self, now: float) -> bool:
        """Whether a request may be sent at once: nothing has come, not even the end, and the
        silence was short."""
        is_free = self.is_up and not self._unsent.kept and not self._incoming.poll(0)
        return is_free and now - self._zmtp.spoke_at <= zmtp.STALE_S

    def is_stale(self, now: float) -> bool:
        """Whether the silence is so long that the node may be about to close it, if nothing is
        under way."""
        return self._zmtp.is_stale(now)

    def wait_at_most(self, seconds: float) -> None:
        """Sets how long `receive` waits when called with `wait`."""
        if seconds == self._wait_s:
            return
        self._wait_s = seconds
        whole = int(seconds)
        value = _TIMEVAL.pack(whole, max(1, int((seconds - whole) * 1e6)))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    @property
    def takes_requests(self) -> bool:
        """Whether requests may be sent, and are kept where the network does not take them."""
        return self.is_up and self._unsent.bytes < UNSENT_BYTES_MAX

    def send(self, parts: Sequence[zmtp.Sendable]) -> None:
        """Sends what is unsent and then this message, and keeps what the network does not take."""
        unsent, sent = self._unsent, 0
        try:
            try:
                if unsent.kept:
                    if parts:
                        unsent.keep(parts, 0)
                    parts = ()
                    while unsent.kept:
                        unsent.took(self._socket.sendmsg(unsent.kept[0].parts, (), _SEND_NOW))
                        self._zmtp.spoke_at = monotonic()
                elif parts:
                    sent = self._socket.sendmsg(parts, (), _SEND_NOW)
                    self._zmtp.spoke_at = monotonic()
            except BlockingIOError:
                pass
            if sent < sum(map(len, parts)):
                unsent.keep(parts, sent)
        except OSError:
            self._lose()
        except BaseException:
            # Interrupted: it is unknown how much of it was sent.
            self._lose()
            raise

    def receive(self, wait: bool = False) -> Iterator[tuple[Header, Payload]]:
        """Yields the answers that have come. Take all of them, then look at `is_lost`.

        With `wait` it waits until something comes, as long as `wait_at_most` said.
        """
        link, flags = self._zmtp, 0 if wait else _NOW
        try:
            if self._unsent.kept or self._is_connecting:
                self._go_on(wait)
                flags = _NOW
            for _ in range(0 if self._is_connecting or self.is_lost else RECEIVES_MAX):
                room = link.room()
                size = self._socket.recv_into(room, 0, flags)
                if not size:
                    self._lose()
                    break
                messages = link.received(size, monotonic())
                if link.replies:
                    self.send((link.take_replies(),))
                self.is_up = link.is_ready and not self.is_lost
                for parts in messages:
                    # What is not an answer is passed over: its call ends at its deadline.
                    with suppress(ValueError, msgpack.UnpackException, BadRequest):
                        header = unpack_answer(bytes(parts[0]))
                        yield header, parts[-1] if len(parts) > 1 else b""
                if messages and size < len(room):
                    break  # what else there may be has time
                flags = _NOW
        except BlockingIOError:
            return
        except (OSError, zmtp.NotZmtp):
            self._lose()
        except BaseException:
            # Interrupted (KeyboardInterrupt): it is unknown which bytes were taken.
            self._lose()
            raise

    def keep_alive(self, now: float) -> None:
        """Asks a silent node for a PONG, or finds that it is gone. Call it now and then while an
        answer is awaited."""
        try:
            ping = self._zmtp.ping(now)
        except zmtp.NotZmtp:
            self._lose()
        else:
            if ping:
                self.send((ping,))

    def close(self) -> None:
        """Ends the connection. Bytes that the network has taken are still delivered."""
        self.closed = True
        self._lose()
        self._socket.close()

    def _lose(self) -> None:
        self._is_connecting, self.is_up, self.is_lost = False, False, True

    def _go_on(self, wait: bool) -> None:
        """Goes on with what waits for the network: the connection, or what is kept."""
        if wait:
            self._poller.poll(self._wait_s * 1_000)
        if self._is_connecting:
            self._greet()
        else:
            self.send(())

    def _greet(self) -> None:
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._lose()
            return
        try:
            self._socket.getpeername()
        except OSError:
            return
        self._is_connecting = False
        self.send((self._zmtp.hello,))


def _connect(endpoint: str) -> socket.socket:
    """A socket that connects. A name raises: `HostNames` knows its addresses."""
    kind, _, rest = endpoint.partition("://")
    if kind == "ipc":
        return connecting_socket(socket.AF_UNIX, local_address(rest))
    if kind != "tcp":
        raise ValueError(f"{endpoint!r} is neither tcp nor ipc")
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    (found, *_) = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    )
    family, _, _, _, address = found
    return connecting_socket(family, address)


class Channel:
    """One for each client, role and way to wait; for one thread at a time."""

    def __init__(self, io: IoThread, role: exchange.NodeRole) -> None:
        self._io = io
        self._role = role
        self._link: ZmtpConnection | None = None
        self._exchange = exchange.Exchange(io.retry)
        self._ids = count(1)
        self._again_at = 0.0
        self._losses = 0
        self._closing = False
        self._awake = AwakeLook(AWAKE_S, len(os.sched_getaffinity(0)), monotonic, os.sched_yield)

    def _link_up(self) -> ZmtpConnection | None:
        """The link to the process that the routes name, when it is up; begins one otherwise."""
        link, usable, now = self._link, self._usable(), monotonic()
        is_stale = False
        if link is not None and not self._exchange.under_way:
            if link.endpoint in usable and link.is_at_rest(now):
                return link
            self._take_answers(link)  # a connection that was lost meanwhile is found so
            is_stale, link = link.is_stale(now), self._link
        if link is None or link.endpoint not in usable or is_stale:
            self._drop()
            link = self._connect(usable[os.getpid() % len(usable)], now) if usable else None
        return link if link is not None and link.takes_requests else None

    def _start(self, call: exchange.Call, **more: bool) -> ZmtpConnection | None:
        """Sends a call; returns the link that carries it, None where none does. `more`: fields."""
        link = self._link_up()
        if link is not None:
            number = next(self._ids)
            header = link.pack(call.header(number, **more))
            self._exchange.sent(call, number)
            link.send(zmtp.message(header, call.payload))
        return link

    def _take_answers(self, link: ZmtpConnection, wait: bool = False) -> None:
        """Takes what has come, and in the end that it was lost."""
        self._take_in(link, wait)
        if link.is_lost:
            self._lose_all(link)

    def _take_in(self, link: ZmtpConnection, wait: bool = False) -> None:
        for header, payload in link.receive(wait):
            if found := self._exchange.answered(header, payload, monotonic()):
                self._act(*found)

    def _lose_all(self, link: ZmtpConnection) -> None:
        """The connection is gone; its calls go on elsewhere, or fail."""
        link.close()
        if self._link is link:
            self._link = None
            self._losses += 1
            self._again_at = monotonic() + RECONNECT_MS / 1_000
            why = f"the connection to {link.endpoint} was lost"
            self._end_all(self._exchange.lost(why, monotonic()))

    def _end_all(self, ended: Sequence[tuple[exchange.Call, exchange.Decision]]) -> None:
        for call, decision in ended:
            self._act(call, decision)

    def _usable(self) -> Sequence[str]:
        """Any reader answers any question, so one is kept as long as it is there."""
        routes = self._io.routes
        if routes is None or self._closing:
            return ()
        if self._role is exchange.NodeRole.READER:
            return routes.readers
        return () if routes.writer is None else (routes.writer,)

    def _connect(self, endpoint: str, now: float) -> ZmtpConnection | None:
        if now < self._again_at or self._io.keys is not None:
            return None  # ZeroMQ encrypts, and this connection does not
        self._again_at = now + RECONNECT_MS / 1_000
        try:
            link = self._link_to(endpoint)
        except (OSError, ValueError):
            return None  # the I/O thread reports it to the callers
        self._link = link
        self._begun(link)
        return self._link

    def _link_to(self, endpoint: str) -> ZmtpConnection:
        """Over a local socket where there is one: a fraction of a round trip over the network."""
        routes = self._io.routes
        local = "" if routes is None else self._local(routes).get(endpoint, "")
        if local:
            # It may be of another machine, beyond a tunnel, or of a process that starts again.
            with suppress(OSError, ValueError):
                return ZmtpConnection(endpoint, local)
        at = self._io.names.numeric(endpoint, self._losses)
        return ZmtpConnection(endpoint, "" if at == endpoint else at)

    def _local(self, routes: Routes) -> Mapping[str, str]:
        return routes.local

    def _begun(self, link: ZmtpConnection) -> None:
        """Prepares a new link."""

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _act(self, call: exchange.Call, decision: exchange.Decision) -> None:
        """Ends the call, or leaves the next attempt to the I/O thread."""
        if isinstance(decision, exchange.GOES_ON):
            self._io.resume(call, decision)
        else:
            call.done(decision)

    def begin_close(self) -> None:
        """Prepares `close`, so that many channels let go at the same time."""

    def close(self) -> None:
        """Ends the calls that are under way, and the connection. Harmless when repeated."""
        raise NotImplementedError


class BlockingChannel(Channel):
    """One for each thread that waits: the lock gives the socket from one to the next."""

    def __init__(self, io: IoThread, role: exchange.NodeRole) -> None:
        super().__init__(io, role)
        self.lock = threading.Lock()
        """Held by the thread that asks."""

    def ask(
        self, op: str, fields: Mapping[str, Any], payload: Payload | None, deadline: float
    ) -> Reply | None:
        """With the lock held: sends a request and waits for its answer, or until no answer can
        come. None, at once, when it is for the I/O thread from the beginning; nothing was done
        then."""
        link = self._link_up()
        if link is None:
            return None
        asked = next(self._ids)
        header = link.pack({"v": VERSION, "op": op, "id": asked, **fields})
        link.send(zmtp.message(header, payload))
        reply: exchange.NodeAnswer | exchange.Unanswered | None = None
        has_come = self._awake.until(link.has_come)
        while True:
            now = monotonic()
            if not has_come:
                if deadline <= now:
                    return exchange.Unanswered.LATE, link.endpoint
                if self._closing:
                    return exchange.Unanswered.CLOSED, link.endpoint
                link.wait_at_most(min(deadline - now, BLOCKING_SLICE_S))
            for answer, frame in link.receive(wait=not has_come):
                if answer.get("id") == asked:  # else it is late: its caller waits no longer
                    reply = exchange.NodeAnswer(answer, frame)
            if link.is_lost:
                self._lose_all(link)
                reply = reply or exchange.Unanswered.LOST
            if reply is not None:
                return reply, link.endpoint
            link.keep_alive(now)
            has_come = False

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        with self.lock:
            self._drop()


class ChannelPool:
    """The channels of one client to one role."""

    def __init__(self, io: IoThread, role: exchange.NodeRole) -> None:
        self.links = tuple(BlockingChannel(io, role) for _ in range(DIRECTS))

    def ask(
        self, op: str, fields: Mapping[str, Any], payload: Payload | None, deadline: float
    ) -> Reply | None:
        """As `BlockingChannel.ask`, by the first that is free; None where other threads have all
        of them."""
        for link in self.links:
            if link.lock.acquire(blocking=False):
                try:
                    return link.ask(op, fields, payload, deadline)
                finally:
                    link.lock.release()
        return None


class PullChannel(Channel):
    """The pulls of one follower, for one thread at a time: at most one call for each queue. The
    lock lets another thread close the client."""

    def __init__(self, io: IoThread, takes_much: bool) -> None:
        """`takes_much`: large answers one after the other, rather than each message at once."""
        super().__init__(io, exchange.NodeRole.READER)
        self._takes_much = takes_much
        self._arrived: queue.SimpleQueue[tuple[int, exchange.Outcome]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._looked_at = 0.0

    def start(self, queue_id: int, call: exchange.Call) -> None:
        call.done = lambda outcome: self._arrived.put((queue_id, outcome))
        with self._lock:
            if not self._closing and self._start(call, stream=True) is not None:
                return
        self._io.call(call)

    def next(self, seconds: float) -> tuple[int, exchange.Outcome] | None:
        """Returns the next queue with an ended pull, and its outcome; None after `seconds`."""
        deadline = monotonic() + seconds
        while self._arrived.empty():
            now = monotonic()
            if now >= deadline:
                return None
            link = self._link
            if link is None or not self._exchange.under_way or self._closing:
                try:
                    return self._arrived.get(timeout=deadline - now)
                except queue.Empty:
                    return None
            with self._lock:
                if not self._closing:
                    self._receive(link, min(deadline - now, PULL_SLICE_S), now)
        return self._arrived.get()

    def _usable(self) -> Sequence[str]:
        """Of several readers none is the node's; the one that is connected stays."""
        readers, link = super()._usable(), self._link
        is_kept = link is not None and link.endpoint in readers
        return readers if is_kept or len(readers) == 1 else ()

    def _local(self, routes: Routes) -> Mapping[str, str]:
        return routes.bulk if self._takes_much else routes.local

    def _begun(self, link: ZmtpConnection) -> None:
        link.wait_at_most(CONNECT_S)
        deadline = monotonic() + CONNECT_S
        while not link.is_up and not link.is_lost and monotonic() < deadline:
            self._take_answers(link, wait=True)
        if link.is_lost:
            self._lose_all(link)

    def _receive(self, link: ZmtpConnection, seconds: float, now: float) -> None:
        """Waits for answers, a slice at most."""
        if now >= self._looked_at + PULL_SLICE_S:
            self._looked_at = now
            link.keep_alive(now)
            self._end_all(self._exchange.expired(now, link.endpoint))
        link.wait_at_most(seconds)
        self._take_answers(link, wait=True)

    def _act(self, call: exchange.Call, decision: exchange.Decision) -> None:
        """Looks for the next answer of a stream. The first one that is missing ends it."""
        if isinstance(decision, exchange.NodeAnswer):
            header, offset = decision.header, call.fields["offset"]
            if header.get("offset", offset) != offset:
                # The node dropped answers that the client did not take in time.
                decision = call.lost("a part was lost", self._io.retry, monotonic())
            elif header.get("more") and self._link is not None:
                self._exchange.goes_on(call, {"offset": header["next_begin_offset"]})
        super()._act(call, decision)

    def _drop(self) -> None:
        if self._link is not None:
            self._lose_all(self._link)

    def begin_close(self) -> None:
        """The waiting thread releases the socket within a slice, so that `close` need not wait."""
        self._closing = True

    def close(self) -> None:
        self._closing = True
        with self._lock:
            self._end_all(self._exchange.closed())
            Channel._drop(self)
