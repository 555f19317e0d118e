"""Looks up names of hosts in threads of their own: that may take seconds, and nobody shall wait.

ZeroMQ looks up the names that it connects to by itself. The addresses that are found here are for
connections that their owner carries, and the errors say why nothing is reached.
"""

import socket
import threading
from time import monotonic

from protocol.addresses import at_host, host_of, is_numeric

FRESH_S = 30.0
"""An older result is looked up again; it counts until that is done."""


class _LookUp:
    """The addresses of one name, once they are known, or why there is none."""

    def __init__(self, host: str, known: tuple[str, ...]) -> None:
        """`known`: the addresses of an earlier look-up, which count until this one is done."""
        self.addresses = known
        self.error = ""
        self.began = monotonic()
        self._host = host
        threading.Thread(target=self._run, name="keelog-names", daemon=True).start()

    def _run(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            self.error = f"the name {self._host} does not resolve: {why}"
            return
        # IPv4 first, as ZeroMQ does.
        places = sorted(found, key=lambda one: one[0] != socket.AF_INET)
        self.addresses = tuple(
            str(place[0]) if family == socket.AF_INET else f"[{place[0]}]"
            for family, *_, place in places
        )


class HostNames:
    """All names that one client uses. Any thread may call it."""

    def __init__(self) -> None:
        self._found: dict[str, _LookUp] = {}

    def look_up(self, endpoint: str) -> None:
        """Begins to look up the host of an endpoint, if it has a name."""
        host = host_of(endpoint)
        if is_numeric(host):
            return
        known = self._found.get(host)
        if known is None or monotonic() - known.began > FRESH_S:
            self._found[host] = _LookUp(host, () if known is None else known.addresses)

    def numeric(self, endpoint: str, attempt: int) -> str:
        """The endpoint by one of its addresses, another one at each attempt. Raises ValueError
        while there is none."""
        host = host_of(endpoint)
        if is_numeric(host):
            return endpoint
        self.look_up(endpoint)
        addresses = self._found[host].addresses
        if not addresses:
            raise ValueError(f"{host} has no address yet")
        return at_host(endpoint, addresses[attempt % len(addresses)])

    def error(self, endpoint: str) -> str:
        """Why the host of an endpoint has no address; empty if it has, or nobody knows yet."""
        known = self._found.get(host_of(endpoint))
        return "" if known is None else known.error
