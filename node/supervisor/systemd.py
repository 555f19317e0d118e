"""What systemd wants to hear of a service of `Type=notify` (sd_notify(3))."""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self

EXTENSION_S = 60
"""A start that still goes on may take so much longer."""
STATUS_CHARS_MAX = 1_000
_EXTEND_EACH_S = 10.0


class ServiceManager:
    """Tells the one that started us how we are; without one it tells nobody."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_each_s = watchdog_s / 2
        self._said = ""
        self._is_ready = False
        self._extend_at = 0.0
        self._watchdog_at = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """Takes the variables out: they are for this process alone."""
        address = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        interval_us = environment.pop("WATCHDOG_USEC", "")
        is_ours = interval_us.isdecimal() and pid == str(os.getpid())
        return cls(address, int(interval_us) / 1e6 if is_ours else 0.0)

    def turn(self, now: float, has_started: bool, state: str) -> None:
        """To be called in each turn of the loop: READY once, the watchdog, a start's patience."""
        if not self._address:
            return
        said = []
        if has_started and not self._is_ready:
            self._is_ready = True
            said.append("READY=1")
        if not has_started and not self._is_ready and now >= self._extend_at:
            self._extend_at = now + _EXTEND_EACH_S
            said.append(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")
        if self._watchdog_each_s and now >= self._watchdog_at:
            self._watchdog_at = now + self._watchdog_each_s
            said.append("WATCHDOG=1")
        if state != self._said:
            self._said = state
            said.append(f"STATUS={' '.join(state.split())[:STATUS_CHARS_MAX]}")
        self._send(said)

    def stopping(self) -> None:
        """The stop has begun."""
        self._send(["STOPPING=1"])

    def _send(self, said: list[str]) -> None:
        if not said or not self._address:
            return
        # A manager that is gone, or does not read, is no reason to stop serving.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(said).encode(), self._address)
