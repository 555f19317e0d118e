"""The client's I/O thread: it alone owns the sockets, and carries every call to its end.

Other threads hand it actions through `post`. It asks the control socket for the routes, keeps a
link to each process (`ZmqConnection`), matches replies with calls, and repeats what may be
repeated. `Timers` has what it does later, in order of time; cancelled ones do not pile up.

ZMQ_IMMEDIATE keeps requests out of ZeroMQ's queues while there is no connection: what waits in
`pending` of a link was certainly not sent, what its exchange has under way may have been.
"""

import heapq
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from math import inf
from time import monotonic
from typing import Any

import msgpack
import zmq

from keelog.client.transport.exchange import (
    Call,
    Decision,
    Exchange,
    NodeAnswer,
    NodeRole,
    Outcome,
    RepeatAfter,
    Retry,
)
from keelog.client.transport.keys import ClientKeys
from keelog.client.transport.routes import HostNames, Routes, fill_in, is_own_socket
from protocol.addresses import DEFAULT_NODE, host_of, is_numeric
from protocol.errors import (
    BadRequest,
    MqError,
    NodeBusy,
    NotAllowed,
    NotConnected,
    NotLoggedIn,
)
from protocol.wire import zmtp
from protocol.wire.frames import HeaderPacker, unpack_answer

Action = Callable[[], object]
Timer = list[Any]
CANCELLED_MAX = 1_000
"""Cancelled entries that are kept before they are swept out."""
ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""The largest frame that is taken from a node."""
HIGH_WATER_MARK = 1_000
HANDSHAKE_MS = 2_000
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = int(zmtp.PING_S * 1_000), int(zmtp.PONG_S * 1_000)
RECONNECT_MS = 50
RECONNECT_MS_MAX = 500
LINGER_MS = 1_000
"""Closing waits this time for requests without a caller to be sent."""
ZERO_COPY_BYTES_MIN = 65_536
"""Smaller payloads are copied: that costs less than to keep the frame."""
RECEIVE_MAX = 512
"""Replies taken from one connection before the others have their turn."""

NOBLOCK = int(zmq.NOBLOCK)
_ONLY_FRAME, _FIRST_FRAME = NOBLOCK, int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
CALLS_MAX = 65_536
"""Calls without an answer, at most; more are refused before anything is sent."""
POLL_MS_MAX = 1_000
ROUTES_TIMEOUT_S = 2.0
ROUTES_INTERVAL_S = 0.1
"""While calls wait for a process, the routes are asked for at most this often."""


class ZmqConnection:
    """A DEALER socket, the calls that wait for it, and those that wait for its replies."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        exchange: Exchange,
        keys: ClientKeys | None = None,
    ) -> None:
        """Starts to connect. Raises BadRequest for an address that cannot be, NotConnected where
        the process may open no more sockets."""
        self.endpoint = endpoint
        self._keys = None if endpoint.startswith("ipc://") else keys
        self.is_unknown = False
        """Whether the node has refused the client's key."""
        self.is_over = False
        """Whether ZeroMQ does not connect again: the key was refused, or the other side speaks
        otherwise, as a node with keys to a client without."""
        self.pending: deque[Call] = deque()
        self.exchange = exchange
        self.connected = False
        self.ever_connected = False
        self.is_foreign = False
        """Whether somebody listens there, and has not answered as a process of a node yet."""
        self.refusals = 0
        self.closed = False
        self.families = 1 if is_numeric(host_of(endpoint)) else 2
        """A name may have IPv4 and IPv6 addresses, and the node listen at those of one kind."""
        self.watched = int(zmq.POLLIN)
        self._pack = HeaderPacker()
        self.socket, self.monitor = self._open(context)
        # What `socket.send` calls once it has looked for options that a DEALER does not have.
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadRequest(
                f"{endpoint!r} is not an address of a node: {error.strerror}",
                f"write {DEFAULT_NODE}",
            ) from None

    def _open(
        self, context: "zmq.Context[zmq.Socket[bytes]]"
    ) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        """The socket and its monitor, or neither. Raises NotConnected."""
        try:
            socket = context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise _none_left(error) from None
        try:
            for option, value in (
                (zmq.IMMEDIATE, 1),
                (zmq.LINGER, LINGER_MS),
                (zmq.SNDHWM, HIGH_WATER_MARK),
                (zmq.RCVHWM, HIGH_WATER_MARK),
                (zmq.MAXMSGSIZE, ANSWER_BYTES_MAX),
                (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
                (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
                (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
                (zmq.RECONNECT_IVL, RECONNECT_MS),
                (zmq.RECONNECT_IVL_MAX, RECONNECT_MS_MAX),
                (zmq.IPV6, int("[" in self.endpoint)),
            ):
                socket.setsockopt(option, value)
            if self._keys is not None:
                self._keys.apply(socket)
            return socket, socket.get_monitor_socket(_EVENTS)
        except zmq.ZMQError as error:
            socket.disable_monitor()
            socket.close(0)
            raise _none_left(error) from None

    def send_pending(self, refuse: Callable[[Call, MqError], None]) -> None:
        """Hands waiting calls to ZeroMQ until it takes no more; what cannot be packed is refused.

        Only while the monitor has seen the connection come up and not go down: ZeroMQ reports the
        end of a connection a moment before it takes its queue away, and what is put in there in
        between is lost without a word.
        """
        while self.pending and self.connected:
            call = self.pending[0]
            error: MqError | None = None
            try:
                if not call.finished and not self.send(call):
                    return
            except BadRequest as unpackable:
                error = unpackable
            self.pending.popleft()
            if error is not None:
                refuse(call, error)  # Last: its callback may begin another call.

    def send(self, call: Call) -> bool:
        """Hands one call to ZeroMQ; False when that takes no more.

        Raises BadRequest for fields that msgpack cannot hold; nothing was sent then.
        """
        payload = call.payload
        header = self._pack(call.header(call.id))
        more = _ONLY_FRAME if payload is None else _FIRST_FRAME
        try:
            self._send(header, more)
        except zmq.Again:
            return False
        if payload is not None:
            # The parts of a message go together: after the first, the second is always taken.
            self._send(payload, 0, len(payload) < ZERO_COPY_BYTES_MIN)
        self.exchange.sent(call, call.id)
        return True

    def receive(self, now: float) -> Iterator[tuple[Call, Decision]]:
        """Yields each call that was answered, and what follows. Other frames are skipped."""
        for _ in range(RECEIVE_MAX):
            try:
                frame = self.socket.recv(NOBLOCK, copy=False)
            except zmq.Again:
                return
            header_frame, more = frame.bytes, frame.more
            payload: bytes | memoryview = b""
            while more:
                frame = self.socket.recv(copy=False)
                small, more = len(frame) < ZERO_COPY_BYTES_MIN, frame.more
                payload = frame.bytes if small else frame.buffer.toreadonly()
            try:
                header = unpack_answer(header_frame)
            except (ValueError, msgpack.UnpackException, BadRequest):
                # A peer that speaks like this is not a node. The call ends at its deadline.
                continue
            if found := self.exchange.answered(header, payload, now):
                yield found

    def news(self) -> tuple[bool, bool, bool]:
        """Reads what the monitor has seen: whether it came up, was refused, and was lost."""
        up = refused = lost = False
        while self.monitor.poll(0):
            event, _ = zmtp.parse_socket_event(self.monitor.recv_multipart()[0])
            if event == zmq.EVENT_CONNECTED:
                self.is_foreign = not self.ever_connected
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                up = self.connected = self.ever_connected = True
                self.refusals, self.is_foreign = 0, False
            elif event == zmq.EVENT_DISCONNECTED:
                self.connected = False
                lost = True
            else:
                self.refusals += 1
                refused = True
                self.is_unknown = self.is_unknown or event == zmq.EVENT_HANDSHAKE_FAILED_AUTH
                is_otherwise = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                self.is_over = self.is_over or self.is_unknown or is_otherwise
                # The other attempts are ZeroMQ's own, after a pause.
                if self.families > 1 and self.refusals % 2 and not self.ever_connected:
                    self._try_other_family()
        return up, refused, lost

    def _try_other_family(self) -> None:
        """Connects by an address of the other kind: ZeroMQ takes a name's first of one kind."""
        self.socket.disconnect(self.endpoint)
        self.socket.setsockopt(zmq.IPV6, 1 - int(self.socket.getsockopt(zmq.IPV6)))
        self.socket.connect(self.endpoint)

    def take_pending(self) -> list[Call]:
        waiting = [call for call in self.pending if not call.finished]
        self.pending.clear()
        return waiting

    def close(self) -> None:
        """Ends the connection; what was handed to ZeroMQ is still sent, for a moment."""
        self.closed = True
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


def _none_left(error: zmq.ZMQError | OSError) -> NotConnected:
    return NotConnected(
        f"no socket can be opened: {error.strerror}",
        "one client serves all threads of a program; else raise the limit: ulimit -n",
    )


class IoThread:
    """Runs calls. Everything but `post`, `call` and `stop` belongs to the thread itself."""

    def __init__(self, endpoint: str, retry: Retry, keys: ClientKeys | None = None) -> None:
        """Starts the thread, which connects to `endpoint`. Raises BadRequest for a bad address, and
        NotConnected where nothing more can be opened."""
        self.retry = retry
        self.keys = keys
        self.routes: Routes | None = None
        self._given = self.control = endpoint
        """Where the node is asked for its routes; `_go_local` may change it."""
        self.names = HostNames()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        try:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError as error:
            raise _none_left(error) from None
        self._poller.register(self._wake_fd, zmq.POLLIN)
        self._links: dict[str, ZmqConnection] = {}
        self._timers = Timers()
        self._deadlines: dict[int, Timer] = {}
        self._live: dict[int, Call] = {}
        self._unrouted: list[Call] = []
        self._asking = False
        self._asked_at = self._learned_at = -ROUTES_INTERVAL_S
        self._stale = True
        self._ids = count(1)
        self._posted: deque[Action] = deque()
        self._gate = threading.Lock()
        self._asleep = False
        self._stopping = self._closed = self._failed = False
        try:
            self._link(endpoint)
        except MqError:
            self._release()
            raise
        self.ident = 0
        self._thread = threading.Thread(target=self._run, name="keelog-client", daemon=True)
        self._thread.start()

    # Any thread

    def post(self, action: Action) -> bool:
        """Runs `action` on the I/O thread, soon, in the order of the posts; False when closed."""
        # The gate: a post after the last look would be lost, and the descriptor may be reused.
        with self._gate:
            if self._closed:
                return False
            self._posted.append(action)
            if self._asleep:
                # Once is enough until it has looked.
                self._asleep = False
                os.eventfd_write(self._wake_fd, 1)
        return True

    def call(self, call: Call) -> None:
        """Starts a call; its `done` will be called once."""
        if len(self._posted) >= CALLS_MAX:
            call.done(NodeBusy(f"{CALLS_MAX} requests wait to be sent", "send in batches"))
        elif not self.post(lambda: self.start(call)):
            call.done(call.when_closed(self._failed))

    def resume(self, call: Call, decision: Decision) -> None:
        """Goes on as was decided with a call that another thread has begun."""

        def take_on() -> None:
            if self._take_on(call):
                self._act(call, decision)

        if not self.post(take_on):
            call.done(call.when_closed(self._failed))

    def call_at(self, when: float, action: Action) -> bool:
        """Runs `action` then, or at the client's end if that comes before; False when closed."""
        return self.post(lambda: self.at(when, action))

    def stop(self, timeout: float) -> None:
        """Ends the thread: waiting calls fail, sockets close. Harmless when done before."""
        self.post(lambda: setattr(self, "_stopping", True))
        if not self.on_thread():
            self._thread.join(timeout)

    def on_thread(self) -> bool:
        """Whether the caller runs on the I/O thread, which must never wait."""
        return threading.get_ident() == self.ident

    # The I/O thread

    def at(self, when: float, action: Action) -> Timer:
        return self._timers.at(when, action)

    def start(self, call: Call) -> None:
        """Takes on a new call, or refuses it when there are too many."""
        if self._take_on(call):
            self._dispatch(call)

    def _take_on(self, call: Call) -> bool:
        if self._stopping:
            call.done(call.when_closed(self._failed))
            return False
        if len(self._live) >= CALLS_MAX and call.role is not NodeRole.CONTROL:
            call.done(NodeBusy(f"{CALLS_MAX} requests wait for answers", "send in batches"))
            return False
        call.id = next(self._ids)
        self._live[call.id] = call
        self._deadlines[call.id] = self.at(call.deadline, lambda: self._expire(call))
        return True

    def _dispatch(self, call: Call) -> None:
        """Gives the call to the link that it needs, or to the list of those without one."""
        if call.finished:
            return
        endpoint = self._endpoint(call)
        if endpoint is None:
            self._wait_for_routes(call)
            return
        try:
            link = self._link(endpoint)
        except MqError as error:
            self._finish(call, error)
            return
        link.pending.append(call)
        link.send_pending(self._finish)

    def _wait_for_routes(self, call: Call) -> None:
        """Keeps the call until a process can take it. A node that says why it has none refuses."""
        error = self.routes.writer_error if self.routes else None
        known = monotonic() < self._learned_at + ROUTES_INTERVAL_S and not self._stale
        if call.role is NodeRole.WRITER and error is not None and known:
            self._act(call, call.refused_unsent(error, self.retry, monotonic()))
        else:
            self._unrouted.append(call)
            self._ask_routes()

    def _endpoint(self, call: Call) -> str | None:
        """Where the call goes; None while nothing is known that it can use, or only what may have
        moved. Readers by affinity, one further at each attempt, those up first."""
        wanted = self._wanted(call)
        if call.role is NodeRole.CONTROL:
            return self.control
        if self.routes is None or (self._stale and not any(map(self._is_up, wanted))):
            return None
        up = [one for one in wanted if one not in self._links or self._is_up(one)] or wanted
        return up[(call.affinity + call.attempts) % len(up)] if up else None

    def _wanted(self, call: Call) -> list[str]:
        """The endpoints that the call can use, as far as they are known."""
        if self.routes is None or call.role is NodeRole.CONTROL:
            return [self.control]
        if call.role is NodeRole.READER:
            return list(self.routes.readers)
        return [self.routes.writer] if self.routes.writer else []

    def _is_up(self, endpoint: str) -> bool:
        link = self._links.get(endpoint)
        return link is not None and link.connected

    def _link(self, endpoint: str) -> ZmqConnection:
        link = self._links.get(endpoint)
        if link is None:
            self.names.look_up(endpoint)
            link = ZmqConnection(self._context, endpoint, Exchange(self.retry), self.keys)
            self._links[endpoint] = link
            self._poller.register(link.socket, zmq.POLLIN)
            self._poller.register(link.monitor, zmq.POLLIN)
        return link

    def _drop(self, link: ZmqConnection) -> None:
        del self._links[link.endpoint]
        self._poller.unregister(link.socket)
        self._poller.unregister(link.monitor)
        link.close()

    def _ask_routes(self) -> None:
        """Asks where the processes are, once at a time and not too often."""
        if self._asking or self._stopping:
            return
        self._asking = True
        now = monotonic()
        at = max(now, self._asked_at + ROUTES_INTERVAL_S)
        call = Call(NodeRole.CONTROL, "routes", {}, at + ROUTES_TIMEOUT_S, done=self._routed)
        if at > now:
            self.at(at, lambda: self.start(call))
        else:
            self.start(call)

    def _routed(self, outcome: Outcome) -> None:
        self._asking = False
        self._asked_at = monotonic()
        if isinstance(outcome, NotLoggedIn):
            waiting, self._unrouted = self._unrouted, []
            for call in waiting:
                self._finish(call, outcome)
        # After an answer too: a node that is starting names no reader, or no writer, yet.
        self._dispatch_unrouted()

    def _learn(self, routes: Routes) -> None:
        """Takes new routes, and goes on with the calls that waited for them."""
        self.routes = routes
        self._stale, self._learned_at = False, monotonic()
        self._forget_old_links(routes)
        self._dispatch_unrouted()

    def _dispatch_unrouted(self) -> None:
        waiting, self._unrouted = self._unrouted, []
        for call in waiting:
            self._dispatch(call)

    def _forget_old_links(self, routes: Routes) -> None:
        """Routes the calls again that wait for an address which is out of use."""
        for endpoint in set(self._links) - routes.endpoints() - {self.control}:
            link = self._links[endpoint]
            self._take_answers(link)
            waiting = link.take_pending()
            self._drop(link)
            for call in waiting:
                self._dispatch(call)
            self._lose(link, "its process has another address now")

    def _run(self) -> None:
        self.ident = threading.get_ident()
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._failed = not self._stopping
            self._stopping = True
            with self._gate:
                self._closed = True
            try:
                run_all(self._last_actions())
            finally:
                self._release()

    def _last_actions(self) -> Iterator[Action]:
        """Give each call its outcome: the answer where it has come, and an error to the others."""
        while self._posted:
            yield self._posted.popleft()
        for link in list(self._links.values()):  # an answer may drop others of them
            left = -1
            while not link.closed and left != len(link.exchange.under_way):
                left = len(link.exchange.under_way)
                yield partial(self._take_answers, link)
        for call in list(self._live.values()):
            yield partial(self._finish, call, call.when_closed(self._failed))
        yield from self._timers.take_due(inf)  # their time will not come

    def _turn(self) -> None:
        """Sleeps until there is something to do, then does all of it once."""
        self._asleep = True
        sleep_ms = 0 if self._posted else self._timers.sleep_ms(monotonic(), POLL_MS_MAX)
        ready = dict(self._poller.poll(sleep_ms))
        self._asleep = False
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        for link in list(self._links.values()):  # the answers of one may end another
            if link.monitor in ready and not link.closed:
                self._read_news(link)
            if link.socket in ready and not link.closed:
                self._take_answers(link)
        for action in self._timers.take_due(monotonic()):
            action()
        for _ in range(len(self._posted)):
            self._posted.popleft()()
        for link in list(self._links.values()):
            self._push(link)

    def _push(self, link: ZmqConnection) -> None:
        """Sends what waits. POLLOUT is watched only while ZeroMQ's own queue is full."""
        link.send_pending(self._finish)
        full = link.pending and link.connected
        wanted = zmq.POLLIN | zmq.POLLOUT if full else zmq.POLLIN
        if link.watched != wanted:
            link.watched = wanted
            self._poller.modify(link.socket, wanted)

    def _read_news(self, link: ZmqConnection) -> None:
        up, refused, lost = link.news()
        if lost:
            self._take_answers(link)
            self._lose(link, f"the connection to {link.endpoint} was lost")
        if link.is_over:
            self._refuse_all(link)
            return
        if link.endpoint == self.control:
            if (refused or lost) and self._is_local:
                self._ask_at(self._given)  # after a start the node has another local socket
                self._drop(link)
            elif refused:
                self._refused_at_first(link)
            return
        if refused or lost:
            # Its address may be another one now, and another reader may do as well.
            self._stale = True
            for call in link.take_pending():
                self._dispatch(call)
            self._ask_routes()
        if up:
            self._dispatch_unrouted()

    def _refuse_all(self, link: ZmqConnection) -> None:
        """Nobody will answer there. A later call connects anew; the outcome of one that was sent
        before stays unknown."""
        self._drop(link)
        error = (
            _unknown_key(link.endpoint) if link.is_unknown else _foreign(link.endpoint, self.keys)
        )
        is_control = link.endpoint == self.control
        calls = list(self._live.values()) if is_control else link.take_pending()
        for call in calls:
            if not (call.sent or call.maybe_done):
                self._finish(call, error)

    def _refused_at_first(self, link: ZmqConnection) -> None:
        """A node that was never reached: more likely a wrong address than a restart."""
        if link.ever_connected:
            return
        error: MqError
        if why := self.names.error(self.control):
            error = _unknown_host(why)
        elif link.refusals < self.retry.max_attempts * link.families:
            return
        elif link.is_foreign:
            error = _foreign(self.control, self.keys)
        else:
            error = NotConnected(
                f"nobody answers at {self.control}",
                "start a node with keelog serve DIR, or name another one with --node",
            )
        for call in list(self._live.values()):
            self._finish(call, error)

    def _take_answers(self, link: ZmqConnection) -> None:
        for call, decision in link.receive(monotonic()):
            if link.endpoint == self.control and isinstance(decision, NodeAnswer):
                fill_in(decision.header, self.control)
                if call.op == "routes":
                    self._learn(Routes.of(decision.header))
            self._act(call, decision)

    def _lose(self, link: ZmqConnection, why: str) -> None:
        for call, decision in link.exchange.lost(why, monotonic()):
            self._act(call, decision)

    def _act(self, call: Call, decision: Decision) -> None:
        if isinstance(decision, NotLoggedIn) and self.keys is None:
            self._take_up_refused(call, decision)
        elif not isinstance(decision, RepeatAfter):
            self._finish(call, decision)
        elif not call.finished:
            self.at(monotonic() + decision.delay, lambda: self._dispatch(call))

    def _take_up_refused(self, call: Call, refusal: NotLoggedIn) -> None:
        """A node with users takes its own user without a key over local sockets, and its supervisor
        names its own one to clients of its machine: the call goes on there, if that can be."""
        if refusal.local is not None and not self._is_local:
            self._go_local(refusal.local)
        if call.attempts > self.retry.max_attempts + 1:
            self._finish(call, refusal)
        elif self._is_local:
            self._dispatch(call)
        elif call.role is NodeRole.CONTROL:
            self._finish(call, refusal)
        else:
            looked = partial(self._looked_for_local, call, refusal)
            self.start(Call(NodeRole.CONTROL, "routes", {}, call.deadline, done=looked))

    def _looked_for_local(self, call: Call, refusal: NotLoggedIn, outcome: Outcome) -> None:
        known = self.routes if isinstance(outcome, NodeAnswer) else None
        if known is not None and not self._is_local:
            self._go_local(known.control)  # nobody has to log in yet, but for this call
        if self._is_local:
            self._dispatch(call)
        else:
            self._finish(call, refusal)

    @property
    def _is_local(self) -> bool:
        return self.control != self._given

    def _go_local(self, endpoint: str) -> None:
        """Goes on over a local socket, where there is one of this name, of this user's. Beyond a
        tunnel there is none: the names are new at each start of a node."""
        if is_own_socket(endpoint):
            self._ask_at(endpoint)

    def _ask_at(self, control: str) -> None:
        """The processes are those that are named there from now on."""
        old, self.control, self._stale = self._links.get(self.control), control, True
        if self.routes is not None:
            self.routes = replace(self.routes, writer=None, readers=(), writer_error=None)
        for call in () if old is None else old.take_pending():
            self._dispatch(call)
        self._ask_routes()

    def _expire(self, call: Call) -> None:
        where = self._endpoint(call) or f"the {call.role.value} of {self.control}"
        error = call.at_deadline(where)
        why = next(filter(None, map(self.names.error, self._wanted(call))), "")
        if why and isinstance(error, NotConnected):
            error = _unknown_host(why)
        elif isinstance(error, NotConnected) and call.last_error is None:
            error = self._not_reached(call) or error
        self._finish(call, error)

    def _not_reached(self, call: Call) -> MqError | None:
        """What is known beside that nobody has answered; None for nothing."""
        control, wanted = self._links.get(self.control), self._wanted(call)
        if control is not None and control.is_foreign:
            return _foreign(self.control, self.keys)
        links = [link for one in wanted if (link := self._links.get(one)) is not None]
        if call.role is NodeRole.CONTROL or not wanted or any(one.ever_connected for one in links):
            return None
        return NotConnected(
            f"{call.op}: the node at {self.control} answered, but named {' and '.join(wanted)},"
            " which was not reached in time",
            "see keelog health; where its ports are published under other numbers, or its host is"
            " another one here, start it with --advertise",
        )

    def _finish(self, call: Call, outcome: Outcome) -> None:
        """Ends the call. A late answer is dropped."""
        if not call.finish():
            return
        self._live.pop(call.id, None)
        timer = self._deadlines.pop(call.id, None)
        if timer is not None:
            self._timers.cancel(timer)
        if call.sent:
            for link in self._links.values():
                link.exchange.under_way.pop(call.id, None)
        call.done(outcome)

    def _release(self) -> None:
        for link in list(self._links.values()):
            self._drop(link)
        self._context.term()
        os.close(self._wake_fd)


def _foreign(endpoint: str, keys: ClientKeys | None) -> MqError:
    """A node ends the connection of a client whose `server_key` is not its own, and of one without
    keys where it has some, and says nothing: these are known by what the client has.
    """
    if keys is not None and not endpoint.startswith("ipc://"):
        return NotAllowed(
            f"whoever listens at {endpoint} does not have the secret key to server_key, or is a"
            " node without keys",
            "compare server_key with: keelog key show DIR, on the node's machine",
        )
    return NotConnected(
        f"somebody listens at {endpoint}, but does not answer as a node",
        "name the address after the word ready of keelog serve: its ports for RocketMQ's clients,"
        " followers and metrics are others; a node with keys needs key= and server_key= (docs/"
        "curve.md)",
    )


def _unknown_key(endpoint: str) -> NotAllowed:
    return NotAllowed(
        f"the node at {endpoint} does not know the key of this client",
        "give your .key file, not the secret one, to whoever runs the node: it has to belong to a"
        " user who is enabled",
    )


def _unknown_host(why: str) -> NotConnected:
    return NotConnected(
        why,
        "check the name, or use an address; keelog serve --advertise HOST sets what a node gives"
        " to its clients",
    )


class Timers:
    """A heap of timers: [when, number, action], without an action once it is cancelled or taken.
    Times are seconds of one clock, which the caller reads."""

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._numbers = count()
        self._cancelled = 0

    def at(self, when: float, action: Action) -> Timer:
        timer: Timer = [when, next(self._numbers), action]
        heapq.heappush(self._heap, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Nothing happens then; harmless afterwards. Sweeps when most of the heap is such."""
        if timer[2] is None:
            return
        timer[2] = None
        self._cancelled += 1
        if self._cancelled > CANCELLED_MAX and self._cancelled * 2 > len(self._heap):
            self._heap = [timer for timer in self._heap if timer[2] is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_at(self) -> float | None:
        """When the first entry is due, or None."""
        while self._heap and self._heap[0][2] is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0][0] if self._heap else None

    def sleep_ms(self, now: float, most_ms: int) -> int:
        """Milliseconds until the first entry is due, at most `most_ms`."""
        next_at = self.next_at()
        if next_at is None:
            return most_ms
        # Rounded up: waking a fraction of a millisecond early would only turn a loop again.
        return min(most_ms, max(0, int((next_at - now) * 1000 + 0.999)))

    def take_due(self, now: float) -> list[Action]:
        """Removes and returns the actions due by `now`, in order of time."""
        due: list[Action] = []
        while (when := self.next_at()) is not None and when <= now:
            timer = heapq.heappop(self._heap)
            due.append(timer[2])
            timer[2] = None
        return due


def run_all(actions: Iterable[Action]) -> None:
    """Does all of them, then raises the first error that one raised."""
    raised: BaseException | None = None
    for action in actions:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 (raised again below)
            raised = raised or error
    if raised is not None:
        raise raised
