"""Looking for what comes, instead of sleeping: a wake-up costs as much as the rest of a request."""

import os
import sys
from collections.abc import Callable
from time import monotonic

ASLEEP_LOOKS = 15
"""After a look in vain this many fall out: who waits for something slow sleeps at once."""


class AwakeLook:
    """One for each place where something is waited for; for one thread."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: how long a look lasts at most."""
        self._seconds = seconds
        # On one processor a look would keep the other side from its answer.
        self._asleep_looks = 0 if len(os.sched_getaffinity(0)) > 1 else sys.maxsize

    def until(self, is_there: Callable[[], object]) -> None:
        """Looks until it is there or the time is over. Other processes run first."""
        if self._asleep_looks:
            self._asleep_looks -= 1
            return
        end = monotonic() + self._seconds
        while True:
            os.sched_yield()
            if is_there():
                return
            if monotonic() > end:
                self._asleep_looks = ASLEEP_LOOKS
                return
