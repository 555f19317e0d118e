"""One connection to one process of the node. Only the I/O thread touches it.

ZMQ_IMMEDIATE keeps requests out of ZeroMQ's queues while there is no connection: what waits in
`pending` was certainly not sent, what the exchange has under way may have been.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator

import msgpack
import zmq

from keelog.client.transport.exchange import Call, Decision, Exchange
from protocol.addresses import DEFAULT_NODE, host_of, is_numeric
from protocol.errors import BadRequest, MqError, NotConnected
from protocol.wire import zmtp
from protocol.wire.frames import HeaderPacker, unpack_answer

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
)


class ZmqConnection:
    """A DEALER socket, the calls that wait for it, and those that wait for its replies."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, exchange: Exchange
    ) -> None:
        """Starts to connect. Raises BadRequest for an address that cannot be, NotConnected where
        the process may open no more sockets."""
        self.endpoint = endpoint
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
            self._set_options(socket)
            return socket, socket.get_monitor_socket(_EVENTS)
        except zmq.ZMQError as error:
            socket.disable_monitor()
            socket.close(0)
            raise _none_left(error) from None

    def _set_options(self, socket: "zmq.Socket[bytes]") -> None:
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
                found = self._receive_one(now)
            except zmq.Again:
                return
            if found is not None:
                yield found

    def _receive_one(self, now: float) -> tuple[Call, Decision] | None:
        """The next call that was answered; None for other frames. Raises zmq.Again."""
        frame = self.socket.recv(NOBLOCK, copy=False)
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
            return None
        return self.exchange.answered(header, payload, now)

    def news(self) -> tuple[bool, bool, bool]:
        """Reads what the monitor has seen: whether it came up, was refused, and was lost."""
        up = refused = lost = False
        while self.monitor.poll(0):
            event = zmtp.parse_socket_event(self.monitor.recv_multipart()[0]).event
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
        """The calls that were certainly not sent."""
        waiting = [call for call in self.pending if not call.finished]
        self.pending.clear()
        return waiting

    def close(self) -> None:
        """Ends the connection; what was handed to ZeroMQ is still sent, for a moment."""
        self.closed = True
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


def wake_fd() -> int:
    """A descriptor that wakes the polling thread. Raises NotConnected."""
    try:
        return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    except OSError as error:
        raise _none_left(error) from None


def _none_left(error: zmq.ZMQError | OSError) -> NotConnected:
    return NotConnected(
        f"no socket can be opened: {error.strerror}",
        "one client serves all threads of a program; else raise the limit: ulimit -n",
    )
