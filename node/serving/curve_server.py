"""A server whose clients come with keys, where the node has some: else the plain one, unchanged."""

from typing import Any

import zmq

from node.access.curve import KEY_PROPERTY, Context, CurveGate, ZapHandler, ask_for_keys
from node.serving.request_server import BadFrames, Received, Server
from protocol.errors import NotAllowed
from protocol.wire.frames import id_within


def open_server(gate: CurveGate | None, context: Context, endpoint: str, **more: Any) -> Server:
    """A server at `endpoint`; see `Server` for the rest. Without a gate nobody needs a key.

    Raises as `Server`, and ServiceNotAvailable where nobody could look at keys.
    """
    if gate is None:
        return Server(context, endpoint, **more)
    return CurveServer(gate, context, endpoint, **more)


class CurveServer(Server):
    """What comes over TCP is encrypted, and from a user with a key. Local sockets need none."""

    def __init__(self, gate: CurveGate, context: Context, endpoint: str, **more: Any) -> None:
        """See `open_server`."""
        self._gate = gate
        # Before the socket is there: no connection comes to it that nobody would look at.
        self._zap = ZapHandler(context, gate)
        try:
            super().__init__(context, endpoint, **more)
        except BaseException:
            self._zap.close()
            raise

    def _guard(self, socket: "zmq.Socket[bytes]") -> None:
        ask_for_keys(socket, self._gate.keys)

    @property
    def watched(self) -> "tuple[zmq.Socket[bytes] | int, ...]":
        """As that of `Server`, and what becomes readable when a client connects."""
        return (*super().watched, self._zap.socket)

    def receive(self) -> Received | BadFrames | None:
        """As that of `Server`. Lets in the clients that wait, first."""
        self._zap.turn()
        return super().receive()

    def _receive_remote(self) -> Received | BadFrames | None:
        """The user is that of the key, as it is now: the key may have been taken away, or given to
        another user, since the client connected."""
        received = super()._receive_remote()
        if not isinstance(received, Received) or received.frame is None:
            return received
        try:
            key = str(received.frame.get(KEY_PROPERTY))
        except zmq.ZMQError:
            key = ""  # each connection that was let in has one
        user = self._gate.user_of_key(key)
        if user is None:
            error = NotAllowed(
                "the key of this client is nobody's any more", "ask whoever runs the node"
            )
            return BadFrames(received.peer, id_within(received.header), error)
        return received._replace(user=user, key=key)

    def close(self, *arguments: int) -> None:
        """As that of `Server`."""
        super().close(*arguments)
        self._zap.close()
