"""Those who fail to log in: beyond a number of failures they hear of it late, then not at all.

Failures are counted by address, an IPv6 one by its network: whoever has one address of it has all.
They never count against a user. To lock users who had too many would be an attack by itself, and
whoever knows the secret is never late.
"""

from enum import Enum, auto

from node.runtime.settings import Settings

WINDOW_S = 60.0
END_FACTOR = 5
"""Beyond this many times `auth_failures_max`, each further failure ends its connection."""
ADDRESSES_MAX = 10_000
"""With failures that are counted: the oldest are forgotten."""
_NETWORK_BYTES = 8
"""Of an IPv6 address."""


class AnswerPace(Enum):
    """How a failure is answered."""

    AT_ONCE = auto()
    LATE = auto()
    NEVER = auto()


class FailureCounts:
    """One for each end that users log in to, for one thread. Times are seconds of the caller's
    monotonic clock."""

    def __init__(self, settings: Settings) -> None:
        self._max = settings.auth_failures_max
        self.delay_s = settings.auth_delay_ms / 1000
        """How late a late answer comes."""
        self._counts: dict[bytes, tuple[float, int]] = {}
        """By address: since when, and how many."""

    def pace(self, ip: bytes, now: float) -> AnswerPace:
        """Counts a failure of an address, of 4 or 16 bytes, and says how it is answered."""
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
