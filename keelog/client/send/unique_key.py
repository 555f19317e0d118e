"""Unique keys (UNIQ_KEY), made as RocketMQ's client makes them (MessageClientIDSetter)."""

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import overload
from urllib.parse import urlsplit

from protocol.ids import unique_key
from protocol.record.encode import unique_key_at

UNIQUE_KEY_CHARS = 32
"""Of a key with an IPv4 address."""


class KeyRun(Sequence[str]):
    """Unique keys in a row: what they all begin with, and the number that the first one ends in."""

    __slots__ = ("_count", "counter", "stem")

    def __init__(self, stem: str, counter: int, size: int) -> None:
        self.stem = stem
        self.counter = counter
        self._count = size

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        rows = range(self._count)[index]
        if isinstance(rows, range):
            return [unique_key_at(self.stem, self.counter + row) for row in rows]
        return unique_key_at(self.stem, self.counter + rows)

    def __iter__(self) -> Iterator[str]:
        counter = self.counter
        numbers = [number & 0xFFFF for number in range(counter, counter + self._count)]
        return hex_after(self.stem, ">%dH", numbers)


def hex_after(start: str, form: str, numbers: Sequence[int]) -> Iterator[str]:
    """Each number in upper-case hex after `start`; `form` packs all of them with struct."""
    packed = struct.pack(form % len(numbers), *numbers)
    width = len(packed) // len(numbers)
    return map(start.__add__, packed.hex(" ", width).upper().split(" "))


class UniqueKeys:
    """Makes keys for one client: address, process, client, ms since the month began, counter.

    Safe for many threads. Two keys are equal only when one client makes 65,536 of them within a
    millisecond. Runs have a client number and a counter of their own: a lock for each single key
    would cost a thirtieth of its send.
    """

    def __init__(self, ip: bytes) -> None:
        self._prefix, self._run_prefix = _new_prefix(ip), _new_prefix(ip)
        self._singles = count(secrets.randbits(16))
        self._lock = threading.Lock()
        self._counter = secrets.randbits(16)
        self._month = _month_around(time.time())

    def next(self, now: float | None = None) -> str:
        """A new key; `now` is in seconds since 1970."""
        return self.finish(self.start(time.time() if now is None else now))

    def run(self, size: int) -> KeyRun:
        """`size` new keys."""
        with self._lock:
            first = self._counter
            self._counter = first + size
        return KeyRun(self._run_prefix + self._moment(time.time()), first, size)

    def start(self, now: float) -> str:
        """The common beginning of all single keys of a millisecond; `now` is in seconds since
        1970."""
        return self._prefix + self._moment(now)

    def _moment(self, now: float) -> str:
        begin, end = self._month
        if now >= end:
            self._month = begin, _ = _month_around(now)
        # A clock that was set back gives 0, as in Java.
        since = max(0, int((now - begin) * 1000)) & 0xFFFFFFFF
        return f"{since:08X}"

    def finish(self, start: str) -> str:
        """A new key from what `start` gave."""
        return f"{start}{next(self._singles) & 0xFFFF:04X}"


def _new_prefix(ip: bytes) -> str:
    """Of the keys of one more client of this process."""
    return unique_key(ip, os.getpid(), secrets.randbits(32), 0, 0)[:-12]


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
