"""Bounds the answers that peers have not read yet."""

from collections import deque
from typing import NamedTuple

import zmq

from node.serving.unix_server import Payload
from protocol.wire.zmtp import KeptMessage

OWED_BYTES_MAX = 256 * 1024 * 1024
OWED_BYTES_MAX_OF_PEER = 32 * 1024 * 1024
"""Bounds large payloads on their way: a peer over its bound is refused until it has read."""


class Unsent(NamedTuple):
    header: bytes
    payload: Payload | None

    @property
    def size(self) -> int:
        return len(self.header) + (0 if self.payload is None else len(self.payload))


class Behind:
    """The answers kept for one slow peer, and since when it has read nothing."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.answers: deque[Unsent] = deque()


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
