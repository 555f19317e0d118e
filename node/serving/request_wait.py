"""Where a server's loop sleeps: until a request, or another thread, has something for it."""

from collections.abc import Iterable
from typing import Any

import zmq


class RequestWait:
    """Watches ZeroMQ sockets and descriptors. For the one thread that has the sockets."""

    def __init__(self, watched: "Iterable[zmq.Socket[bytes] | int]") -> None:
        # What a zmq.Poller asks; the list is made once.
        self._watched: list[tuple[Any, int]] = [(one, int(zmq.POLLIN)) for one in watched]

    def poll(self, timeout_ms: int) -> None:
        """Returns when there may be something to do, at the latest after the time."""
        zmq.zmq_poll(self._watched, timeout_ms)
