"""Those who fail to log in: beyond a number of failures they hear of it late, then not at all.

Failures are counted by address, an IPv6 one by its network: whoever has one address of it has all.
They never count against a user. To lock users who had too many would be an attack by itself, and
whoever knows the secret is never late.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

from keelog.gateway.connection import EndReason, RemotingConnection
from node.runtime.settings import Settings

WINDOW_S = 60.0
END_FACTOR = 5
"""Beyond this many times `auth_failures_max`, each further failure ends its connection."""
LATE_MAX = 1_024
"""Refusals that wait to be sent: instead of a further one its connection ends."""
ADDRESSES_MAX = 10_000
"""With failures that are counted: the oldest are forgotten."""
_NETWORK_BYTES = 8
"""Of an IPv6 address."""


class AnswerPace(Enum):
    """How a failure is answered."""

    AT_ONCE = auto()
    LATE = auto()
    NEVER = auto()


class LoginFailures:
    """One for each gateway. Times are seconds of the caller's monotonic clock."""

    def __init__(self, settings: Settings) -> None:
        self._max = settings.auth_failures_max
        self._delay_s = settings.auth_delay_ms / 1000
        self._counts: dict[bytes, tuple[float, int]] = {}
        """By address: since when, and how many."""
        self.late = 0
        """Refusals that wait."""

    def pace(self, ip: bytes, now: float) -> AnswerPace:
        """Counts a failure of an address, and says how it is answered."""
        place = ip if len(ip) < _NETWORK_BYTES else ip[:_NETWORK_BYTES]
        since, count = self._counts.get(place, (now, 0))
        if now - since > WINDOW_S:
            since, count = now, 0
        if place not in self._counts and len(self._counts) >= ADDRESSES_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[place] = since, count + 1
        if count < self._max:
            return AnswerPace.AT_ONCE
        return AnswerPace.LATE if count < END_FACTOR * self._max else AnswerPace.NEVER

    def answer(
        self, connection: RemotingConnection, refuse: Callable[[], None], now: float
    ) -> None:
        """Counts a failure on a connection. `refuse` answers it: at once, late, or not at all."""
        pace = self.pace(connection.peer.ip, now)
        if pace is AnswerPace.AT_ONCE:
            refuse()
        elif pace is AnswerPace.LATE and self.late < LATE_MAX:
            self.late += 1
            asyncio.get_running_loop().call_later(self._delay_s, self._refuse, refuse)
        else:
            connection.end(EndReason.LOGIN, "too many requests failed to prove who sent them")

    def _refuse(self, refuse: Callable[[], None]) -> None:
        self.late -= 1
        refuse()
