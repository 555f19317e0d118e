"""How far a recovery is, for people and for the supervisor: now and then, not for each window."""

import time
from collections.abc import Callable

from node.runtime.event_log import stderr

LINE_EVERY_S = 1.0
REPORT_EVERY_S = 0.2
_MIB = 1024 * 1024


class RecoveryProgress:
    """Called with (done, total) log bytes; says a line on stderr each second, reports more often.

    A recovery that is over within a second says nothing.
    """

    def __init__(
        self,
        report: Callable[[int, int], None],
        say: Callable[[str], object] = stderr.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._say = say
        self._clock = clock
        self._begun: tuple[float, int] | None = None
        self._said_at = self._reported_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if self._begun is None:
            self._begun = now, done
            self._said_at = now
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._report(done - self._begun[1], total - self._begun[1])
        if now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            began_at, base = self._begun
            self._say(progress_line(done - base, total - base, now - began_at) + "\n")


def progress_line(done: int, total: int, elapsed_s: float) -> str:
    """`recovering: 34 % of 1200 MiB of the log, about 7 s left`; bytes since the walk began."""
    total = max(total, done, 1)
    left_s = elapsed_s * (total - done) / done if done else None
    eta = "" if left_s is None else f", about {left_s:.0f} s left"
    return f"recovering: {done / total:.0%} of {total / _MIB:.0f} MiB of the log{eta}"
