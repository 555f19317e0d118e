"""Where a server's loop sleeps: until a request, or another thread, has something for it."""

import select
from collections.abc import Iterable

import zmq

_EVENTS, _POLLIN = zmq.EVENTS, int(zmq.POLLIN)


class RequestWait:
    """Watches a socket for requests, and descriptors. For the one thread that has the socket."""

    def __init__(self, socket: "zmq.Socket[bytes]", descriptors: Iterable[int]) -> None:
        self._socket = socket
        self._poll = select.poll()
        for descriptor in (int(socket.getsockopt(zmq.FD)), *descriptors):
            self._poll.register(descriptor, select.POLLIN)

    def poll(self, timeout_ms: int) -> None:
        """Returns when there may be something to do, at the latest after the time."""
        # The socket's descriptor tells only of what came since the socket was looked at last.
        if not int(self._socket.getsockopt(_EVENTS)) & _POLLIN:
            self._poll.poll(timeout_ms)
