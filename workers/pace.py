"""How long a worker sleeps between two turns, what wakes it earlier, and when it gives way.

Pure: no clock, no I/O.

A turn costs nearly the same for one record as for hundreds. So while records keep coming and nobody
waits for them, a worker rests after a turn until some time has passed or much has come. A record
that comes after a quiet time is taken at once, and so is every record that a reader waits for. The
longer the log is quiet, the longer a worker sleeps: the writer's ring wakes it.
"""

from dataclasses import dataclass
from typing import NamedTuple

from node.runtime.wakeup import quiet_sleep_s

IDLE_S = 0.005
"""How long a worker sleeps after its rest when nobody rings; more when the log stays quiet."""
SHORT_BYTES = 16 << 10
"""Log for a turn that takes about a millisecond."""
LATE_BYTES = 16 << 20
"""A worker for which more of the log waits is late."""


def gives_way(waiting_bytes: int) -> bool:
    """Whether a turn for so much of the log lets those that clients wait for run first.

    A short one is soon over, and a late worker might never keep up.
    """
    return SHORT_BYTES < waiting_bytes <= LATE_BYTES


class Sleep(NamedTuple):
    """For `seconds` at most, or until the log reaches `wake_at`."""

    seconds: float
    wake_at: int


@dataclass(slots=True)
class TurnPace:
    """Of one worker: it rests for `rest_s` between turns, or until `batch_bytes` of log have come;
    then for `idle_s`, or until `idle_bytes` have come; in quiet times for longer, or until anything
    has come. Times are of one clock."""

    rest_s: float = 0.1
    batch_bytes: int = 256 * 1024
    idle_s: float = IDLE_S
    idle_bytes: int = 1
    busy_until: float = float("-inf")
    quiet_since: float | None = None
    """When the log grew last, or the first sleep began."""

    def worked(self, now: float) -> None:
        """A turn found something, and has ended now."""
        self.busy_until = now + self.rest_s
        self.quiet_since = now

    def stay_awake(self, now: float) -> None:
        """Others wait for what this worker does by the clock: its next sleep is short."""
        self.quiet_since = now

    def sleep(self, done: int, now: float, is_waited_for: bool) -> Sleep:
        """What to do after a turn that came to log offset `done`."""
        if self.quiet_since is None:
            self.quiet_since = now
        if not is_waited_for and now < self.busy_until:
            return Sleep(self.busy_until - now, done + self.batch_bytes)
        seconds = quiet_sleep_s(now - self.quiet_since, self.idle_s)
        return Sleep(seconds, done + (self.idle_bytes if seconds == self.idle_s else 1))
