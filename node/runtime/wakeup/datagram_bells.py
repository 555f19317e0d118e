"""Bells of readers: datagrams of a local socket, as consumers wait for what they tell.

ZeroMQ takes a ring through a thread of its own at either end. Waking those up was a fifth of a
message's way from its producer to a consumer that waits.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

from node.runtime import disk
from node.runtime.wakeup.rules import RING_BYTES_MAX, RINGS_AT_ONCE, bell_file


class DatagramBell:
    """The sleeper's end. The current folder must be `keelog/run`, and the slot's lock be held."""

    def __init__(self, slot: str) -> None:
        """Takes the place of a predecessor's."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        # A local socket is a file, and only its owner may write to it.
        mask = os.umask(0o077)
        try:
            disk.unlink(Path(bell_file(slot)), missing_ok=True)
            self._socket.bind(bell_file(slot))
        finally:
            os.umask(mask)
        self.watched = self._socket.fileno()
        """What can be read from when it has rung."""

    def rings(self) -> list[bytes]:
        """What was sent with each ring since the last look; RINGS_AT_ONCE at most."""
        heard: list[bytes] = []
        with suppress(BlockingIOError):
            while len(heard) < RINGS_AT_ONCE:
                heard.append(self._socket.recv(RING_BYTES_MAX))
        return heard

    def close(self) -> None:
        """Nobody hears anything from now on."""
        self._socket.close()


class DatagramRinger:
    """The other end, to one sleeper, who may come later. The current folder must be
    `keelog/run`."""

    def __init__(self, slot: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._file = bell_file(slot)

    def ring(self, message: bytes = b"") -> None:
        """Never waits: lost where nobody is there, or more wait for it than the system keeps."""
        with suppress(OSError):
            self._socket.sendto(message, self._file)

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()
