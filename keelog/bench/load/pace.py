"""The time at which each request is due: now at full speed, else by a plan that slow replies do not
change.

The plan makes the load an open loop. A request that goes out late, since all callers were busy,
has waited in the latency that is counted from its intended time: no omission is coordinated.
"""

import ctypes
import itertools
import time

_PR_SET_TIMERSLACK = 29
_LAST_NS = 1 << 62


class LoadPace:
    """Hands out moments on the monotonic clock, in ns; safe for threads.

    `interval_ns` lies between two requests of this process, 0 is full speed. It ends after
    `count` requests (None: no such limit) or at `end_ns`.
    """

    def __init__(
        self, start_ns: int, interval_ns: float, end_ns: int | None, count: int | None
    ) -> None:
        self._start_ns = start_ns
        self._interval_ns = interval_ns
        self._end_ns = _LAST_NS if end_ns is None else end_ns
        self._count = _LAST_NS if count is None else count
        self._taken = itertools.count()

    def next(self) -> int | None:
        """When the next request is to go out; None: no more."""
        number = next(self._taken)
        if number >= self._count:
            return None
        if not self._interval_ns:
            now = time.monotonic_ns()
            return now if now < self._end_ns else None
        due = self._start_ns + int(number * self._interval_ns)
        # A plan that is late ends in time all the same: the achieved rate shows it.
        return due if max(due, time.monotonic_ns()) < self._end_ns else None


def sleep_until(due_ns: int) -> None:
    """Returns at `due_ns`, or at once."""
    left = due_ns - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


def wake_up_in_time() -> None:
    """Has the system wake this thread, and those it starts, without the usual 50 µs of slack.

    Where it cannot, sleeping is less exact, which the lateness in the result shows.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
