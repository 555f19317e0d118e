"""Hints between the processes of a node: they shorten a sleep, losing them costs latency alone.

Sockets are relative to `keelog/run`, where each process goes first: their paths must be short.
"""

import msgpack
import zmq

from protocol.ids import Queue

LOG_HINTS = "ipc://log.ipc"
HINTED_QUEUES_MAX = 1000
"""More queues than this are told as an empty list, which means all."""
HINTS_HIGH_WATER_MARK = 256
"""Hints kept for a reader that does not listen: it notices that some are missing."""


class LogHints:
    """The writer's 'log grew', or the wish to stop: whatever comes first ends the sleep."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", stop_descriptor: int) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.CONFLATE, 1)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.connect(LOG_HINTS)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(stop_descriptor, zmq.POLLIN)

    def wait(self, seconds: float) -> None:
        """Sleeps so long at most."""
        if self._socket in dict(self._poller.poll(int(seconds * 1000))):
            self._socket.recv(zmq.NOBLOCK)


class GrowthHints:
    """Tells readers which queues have grown: [sequence, dispatched, [[topic, queue], ...]]."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", slot: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, HINTS_HIGH_WATER_MARK)
        self._socket.bind(f"ipc://{slot}.ipc")
        self._sequence = 0

    def send(self, dispatched: int, grown: set[Queue]) -> int:
        """One hint for all queues that have grown since the last; answers its number."""
        self._sequence += 1
        queues = sorted(grown) if len(grown) <= HINTED_QUEUES_MAX else []
        self._socket.send(msgpack.packb([self._sequence, dispatched, queues]), zmq.NOBLOCK)
        return self._sequence
