"""The selector of the gateway's loop: it can look for the next event before it sleeps.

A client that waits for each reply sends its next request at once, so the loop would go to sleep
just before that comes (docs/decisions/0027-who-is-waited-for-goes-first.md).
"""

import os
import select
from collections.abc import Callable
from selectors import EpollSelector, SelectorKey
from time import monotonic

from protocol.wire.awake import AwakeLook

AWAKE_S = 0.0003
"""How long it looks: longer than a client takes from a reply to its next request."""


class AwakeSelector(EpollSelector):
    """As the selector that asyncio takes by itself, for one thread."""

    def __init__(self, give_way: Callable[[], object] = os.sched_yield) -> None:
        super().__init__()
        self._look = AwakeLook(AWAKE_S, len(os.sched_getaffinity(0)), monotonic, give_way)
        self._looks = False
        self._events = select.poll()
        self._events.register(self.fileno(), select.POLLIN)

    @property
    def is_awake(self) -> bool:
        """Whether its looks bring something: a client sends its next request at once."""
        return self._look.is_awake

    def look_once(self) -> None:
        """Lets it look before the next sleep: a client has its reply, and nobody else waits."""
        self._looks = True

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """As that of `EpollSelector`."""
        if self._looks and (timeout is None or timeout > 0):
            self._looks = False
            if not self._is_ready():
                self._look.until(self._is_ready)
        return super().select(timeout)

    def _is_ready(self) -> bool:
        return bool(self._events.poll(0))
