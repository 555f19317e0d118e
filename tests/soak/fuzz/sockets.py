"""Connections that keep no rule of ZeroMQ's: for `fuzz_frames.py`, in a thread of its own."""

import random
import socket
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
READY = bytes([4, len(_READY)]) + _READY
SILENT_MAX = 100
"""Half-open connections at a time."""
TIMEOUT_S = 3.0
PAUSE_S = 0.01
OVER_THE_LIMIT = 5 * 1024 * 1024
"""No process of a node takes so large a frame."""


class BadPeers(threading.Thread):
    """Opens one bad connection after the other until `stop`; `counts` says of which kinds."""

    def __init__(self, endpoints: Sequence[str], seed: int) -> None:
        super().__init__(name="bad-peers", daemon=True)
        self.counts: Counter[str] = Counter()
        self._places = [(urlsplit(one).hostname, urlsplit(one).port) for one in endpoints]
        self._random = random.Random(seed)
        self._stop_wish = threading.Event()
        self._silent: list[socket.socket] = []

    def run(self) -> None:
        """Until `stop`."""
        kinds = (
            self._garbage, self._bad_greeting, self._bad_frames, self._lying_length,
            self._endless, self._over_the_limit, self._half_open, self._half_open, self._cut_off,
        )  # fmt: skip
        try:
            while not self._stop_wish.wait(PAUSE_S):
                kind = self._random.choice(kinds)
                # That the other side hangs up is the wished-for answer.
                with suppress(ConnectionError, TimeoutError):
                    kind()
                self.counts[kind.__name__.strip("_")] += 1
        finally:
            for one in self._silent:
                one.close()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop_wish.set()
        self.join()

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._random.choice(self._places), timeout=TIMEOUT_S)

    def _shake_hands(self, peer: socket.socket) -> None:
        peer.sendall(GREETING)
        peer.recv(len(GREETING), socket.MSG_WAITALL)
        peer.sendall(READY)

    def _garbage(self) -> None:
        with self._connect() as peer:
            peer.sendall(self._random.randbytes(self._random.choice((1, 9, 64, 4_000))))

    def _bad_greeting(self) -> None:
        greeting = bytearray(GREETING)
        greeting[self._random.randrange(len(greeting))] ^= 1 << self._random.randrange(8)
        with self._connect() as peer:
            peer.sendall(bytes(greeting) + READY + b"\0\0")

    def _bad_frames(self) -> None:
        with self._connect() as peer:
            self._shake_hands(peer)
            peer.sendall(self._random.randbytes(300))

    def _lying_length(self) -> None:
        with self._connect() as peer:
            self._shake_hands(peer)
            length = self._random.choice((2**62, 2**36, 2**31, 2**63 + 1))
            peer.sendall(b"\x02" + length.to_bytes(8, "big") + bytes(1_000))

    def _endless(self) -> None:
        """A message of many frames that never ends."""
        with self._connect() as peer:
            self._shake_hands(peer)
            peer.sendall(b"\x01\x00" * 20_000)

    def _over_the_limit(self) -> None:
        with self._connect() as peer:
            self._shake_hands(peer)
            peer.sendall(b"\x02" + OVER_THE_LIMIT.to_bytes(8, "big") + bytes(OVER_THE_LIMIT))

    def _half_open(self) -> None:
        """Says nothing, or half a greeting, and stays."""
        peer = self._connect()
        peer.sendall(GREETING[: self._random.choice((0, 1, 10, 12, 40))])
        self._silent.append(peer)
        if len(self._silent) > SILENT_MAX:
            self._silent.pop(0).close()

    def _cut_off(self) -> None:
        """Goes away in the middle of a frame."""
        with self._connect() as peer:
            self._shake_hands(peer)
            peer.sendall(b"\x02" + (100_000).to_bytes(8, "big") + bytes(50_000))
