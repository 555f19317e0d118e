"""UNIQ_KEYs, made as RocketMQ's client makes them (MessageClientIDSetter)."""

import os
import secrets
import socket
import threading
import time
from itertools import count
from urllib.parse import urlsplit

from protocol.message_id import unique_key

UNIQUE_KEY_CHARS = 32
"""Of a key with an IPv4 address."""


class UniqueKeys:
    """Makes keys for one client: address, process, client, ms since the month began, counter.

    Any number of threads may ask. Two keys are equal only when one client makes 65,536 of them
    within a millisecond.
    """

    def __init__(self, ip: bytes) -> None:
        instance = secrets.randbits(32)
        self._prefix = unique_key(ip, os.getpid(), instance, 0, 0)[:-12]
        self._counter = count(secrets.randbits(16))
        self._month = _month_around(time.time())

    def next(self, now: float | None = None) -> str:
        """A new key; `now` is in seconds since 1970."""
        return self.finish(self.start(time.time() if now is None else now))

    def start(self, now: float) -> str:
        """What all keys of a millisecond begin with; `now` is in seconds since 1970."""
        begin, end = self._month
        if now >= end:
            self._month = begin, _ = _month_around(now)
        # A clock that was set back gives 0, as in Java.
        since = max(0, int((now - begin) * 1000)) & 0xFFFFFFFF
        return f"{self._prefix}{since:08X}"

    def finish(self, start: str) -> str:
        """A new key from what `start` gave."""
        return f"{start}{next(self._counter) & 0xFFFF:04X}"


class UniqueKeyRuns:
    """As `UniqueKeys`, for whole batches; with an instance number, and so keys, of its own."""

    def __init__(self, ip: bytes) -> None:
        self._keys = UniqueKeys(ip)
        self._lock = threading.Lock()
        self._next = 0

    def take(self, count: int) -> tuple[str, int]:
        """What `count` new keys begin with, and the number that the first of them ends in."""
        with self._lock:
            first, self._next = self._next, self._next + count
        return self._keys.start(time.time()), first


def _month_around(moment: float) -> tuple[float, float]:
    """Begin and end of the month, local time, in seconds since 1970."""
    year, month = time.localtime(moment)[:2]
    begin = time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    end = time.mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return begin, end


def local_ip(endpoint: str) -> bytes:
    """The IPv4 address of this machine towards a node; without one, four bytes of the clock.

    No packet is sent: connecting a datagram socket only chooses the address.
    """
    parts = urlsplit(endpoint)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname or "127.0.0.1", parts.port or 9))
            return socket.inet_aton(probe.getsockname()[0])
    except (OSError, ValueError):
        return (int(time.time() * 1000) & 0xFFFFFFFF).to_bytes(4, "big")
