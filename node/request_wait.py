"""Where a server's loop sleeps: until a request, or another thread, has something for it."""

from collections.abc import Iterable
from typing import Any

import zmq


class RequestWait:
    """Watches a socket for requests, and descriptors. For the one thread that has the socket."""

    def __init__(self, socket: "zmq.Socket[bytes]", descriptors: Iterable[int]) -> None:
        # What a zmq.Poller asks; the list is made once.
        self._watched: list[tuple[Any, int]] = [
            (watched, int(zmq.POLLIN)) for watched in (socket, *descriptors)
        ]

    def poll(self, timeout_ms: int) -> None:
        """Returns when there may be something to do, at the latest after the time."""
        zmq.zmq_poll(self._watched, timeout_ms)
