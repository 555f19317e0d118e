"""How long a worker sleeps between two turns, and what wakes it earlier. Pure: no clock, no I/O.

A turn costs nearly the same for one record as for hundreds. So while records keep coming and nobody
waits for them, a worker rests after a turn until some time has passed or much has come. A record
that comes after a quiet time is taken at once, and so is every record that a reader waits for.
"""

from dataclasses import dataclass
from typing import NamedTuple

IDLE_S = 0.005
"""How long a worker sleeps at most when nobody rings: so late it is where a ring was lost."""


class Sleep(NamedTuple):
    """For `seconds` at most, or until the log reaches `wake_at`."""

    seconds: float
    wake_at: int


@dataclass(slots=True)
class TurnPace:
    """Of one worker: it rests for `rest_s` between turns, or until `batch_bytes` of log have come;
    in quiet times for `idle_s`, or until `idle_bytes` have come. Times are of one clock."""

    rest_s: float = 0.1
    batch_bytes: int = 256 * 1024
    idle_s: float = IDLE_S
    idle_bytes: int = 1
    busy_until: float = float("-inf")

    def worked(self, now: float) -> None:
        """A turn found something, and has ended now."""
        self.busy_until = now + self.rest_s

    def sleep(self, done: int, now: float, is_waited_for: bool) -> Sleep:
        """What to do after a turn that came to log offset `done`."""
        if is_waited_for or now >= self.busy_until:
            return Sleep(self.idle_s, done + self.idle_bytes)
        return Sleep(self.busy_until - now, done + self.batch_bytes)
