"""Looking for what comes, instead of sleeping: a wake-up costs as much as the rest of a request.

One rule for both ends of a connection. Clock and processor are the owner's.
"""

from collections.abc import Callable
from math import inf

ASLEEP_LOOKS = 15
"""After a look in vain this many fall out: who waits for something slow sleeps at once."""
ASLEEP_LOOKS_MAX = 1_023
"""After each further look in vain it is twice as many and one, up to this number."""


class AwakeLook:
    """One for each place where something is waited for; for one thread."""

    def __init__(
        self,
        seconds: float,
        processors: int,
        clock: Callable[[], float],
        give_way: Callable[[], object],
    ) -> None:
        """`seconds` of `clock` is how long a look lasts at most. `give_way` lets other processes
        run first."""
        self._seconds = seconds
        self._clock = clock
        self._give_way = give_way
        # On one processor a look would keep the other side from its part.
        self._asleep_looks: float = 0 if processors > 1 else inf
        self._next_asleep_looks = ASLEEP_LOOKS

    @property
    def is_awake(self) -> bool:
        """Whether the next look takes place."""
        return not self._asleep_looks

    def until(self, is_there: Callable[[], object]) -> bool:
        """Looks until it is there or the time is over; returns whether it is there."""
        if self._asleep_looks:
            self._asleep_looks -= 1
            return False
        end = self._clock() + self._seconds
        while True:
            self._give_way()
            if is_there():
                self._next_asleep_looks = ASLEEP_LOOKS
                return True
            if self._clock() > end:
                self._asleep_looks = self._next_asleep_looks
                self._next_asleep_looks = min(2 * self._next_asleep_looks + 1, ASLEEP_LOOKS_MAX)
                return False
