"""How long a worker sleeps between two turns, and what wakes it earlier.

A turn costs nearly the same for one record as for hundreds. So while records keep coming and nobody
waits for them, a worker rests after a turn until some time has passed or much has come. A record
that comes after a quiet time is taken at once, and so is every record that a reader waits for. The
longer the log is quiet, the longer a worker sleeps, until the writer wakes it
(`node.runtime.wakeup`). `TurnPace` decides, purely: no clock, no I/O.
"""

import select
from dataclasses import dataclass
from typing import NamedTuple

from node.runtime.state_page import NEVER, WorkerPage
from node.runtime.wakeup import RINGS_AT_ONCE, Wakeup, quiet_sleep_s

IDLE_S = 0.005
"""How long a worker sleeps after its rest when nobody rings; more when the log stays quiet."""
SHORT_BYTES = 16 << 10
"""Log for a turn that takes about a millisecond."""
LATE_BYTES = 16 << 20
"""A worker for which more of the log waits is late."""


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


def gives_way(waiting_bytes: int) -> bool:
    """Whether a turn for so much of the log lets those that clients wait for run first.

    A short one is soon over, and a late worker might never keep up.
    """
    return SHORT_BYTES < waiting_bytes <= LATE_BYTES


class WorkerSleep:
    """The worker's sleep: the writer's ring, or the wish to stop, ends it early."""

    def __init__(self, wakeup: Wakeup, page: WorkerPage, stop_descriptor: int) -> None:
        self._page = page
        self._wakeup = wakeup
        self._poll = select.poll()
        self._poll.register(wakeup.watched, select.POLLIN)
        self._poll.register(stop_descriptor, select.POLLIN)

    def begin(self, sleep: Sleep) -> None:
        """Has the writer ring when the log reaches `wake_at`: look once more, then `wait`."""
        self._page.publish(wake_at=sleep.wake_at)

    def wait(self, seconds: float) -> None:
        """Sleeps so long at most."""
        events = self._poll.poll(max(1, round(seconds * 1000)))
        self.end()
        if events:
            self._wakeup.hush(RINGS_AT_ONCE)

    def end(self) -> None:
        """Awake: nobody needs to ring."""
        self._page.publish(wake_at=NEVER)

    def close(self) -> None:
        """Gives the socket back."""
        self._wakeup.close()
