"""Lines that would repeat: one for each peer, and again only after some time."""

from collections.abc import Hashable

REPEAT_S = 60.0
KEYS_MAX = 256


class Seldom:
    """Knows what was said lately. For one thread; times are of the monotonic clock."""

    def __init__(self, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._said: dict[Hashable, float] = {}

    def is_due(self, key: Hashable, now: float) -> bool:
        """Whether it is to be said now, which counts as said."""
        if now - self._said.get(key, -self._repeat_s) < self._repeat_s:
            return False
        if len(self._said) >= KEYS_MAX:
            self._said.clear()
        self._said[key] = now
        return True
