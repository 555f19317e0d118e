"""Notifies systemd, as a service of `Type=notify` must (sd_notify(3))."""

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self

EXTENSION_S = 60
"""The extra time that a start asks for while it goes on."""
STATUS_CHARS_MAX = 1_000
_EXTEND_EACH_S = 10.0


class ServiceManager:
    """Sends the state of the node to the service manager that started it, if one did."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_each_s = watchdog_s / 2
        self._said = ""
        self._is_ready = False
        self._extend_at = 0.0
        self._watchdog_at = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """Takes the variables out of the environment: they are not for child processes."""
        address = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        interval_us = environment.pop("WATCHDOG_USEC", "")
        is_ours = interval_us.isdecimal() and pid == str(os.getpid())
        return cls(address, int(interval_us) / 1e6 if is_ours else 0.0)

    def turn(self, now: float, has_started: bool, state: str) -> None:
        """Sends READY once, the watchdog, and more time for a start; call it in each turn."""
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
        """Announces the stop."""
        self._send(["STOPPING=1"])

    def _send(self, said: list[str]) -> None:
        if not said or not self._address:
            return
        # A manager that is gone, or does not read, must not stop the node.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(said).encode(), self._address)
