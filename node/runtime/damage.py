"""The damaged places that this process meets, gathered for its reports to the supervisor.

Every read notes them here, also one that goes on as if nothing were there.
"""

from collections.abc import Callable
from pathlib import Path

from node.runtime.process import DamageReport
from protocol.errors import CorruptError

PLACES_MAX = 64
"""Places that wait for the next report; of further ones only the number of meetings is kept."""
REPORT_S = 0.5
"""The time between reports: clients may meet the same place a thousand times in a second."""
Send = Callable[[DamageReport], bool]
"""Reports one place; returns False where it has to be tried again."""


class DamageReporter:
    """For the one thread of a process that reads; its heart-beat calls `turn`."""

    def __init__(self, root: Path = Path("/"), send: Send = lambda _: False) -> None:
        self._root = root
        self._send = send
        self._met: dict[tuple[str, int], DamageReport] = {}
        self._due_at = 0.0

    def report_to(self, root: Path, send: Send) -> None:
        """From now on places are those of the store at `root`, and are reported by `send`."""
        self._root, self._send = root, send

    def note(self, error: CorruptError) -> None:
        """Notes damage that a read has met."""
        self.note_place(error.where, error.offset, error.found)

    def note_place(self, where: str, offset: int, found: str) -> None:
        """As `note`, for the parts of the error."""
        damage = DamageReport.of(where, offset, found, self._root)
        key = damage.file, damage.offset
        if key not in self._met and len(self._met) >= PLACES_MAX:
            damage = damage._replace(file="", offset=0, found="")
            key = "", 0
        before = self._met.get(key)
        if before is not None:
            damage = damage._replace(times=before.times + 1, first_ms=before.first_ms)
        self._met[key] = damage

    def turn(self, now: float) -> None:
        """Sends what was noted, if it is time; `now` in seconds."""
        if not self._met or now < self._due_at:
            return
        self._due_at = now + REPORT_S
        for key, damage in list(self._met.items()):
            if not self._send(damage):
                return
            del self._met[key]


met_damage = DamageReporter()
"""This process's. `run_process` connects it with the supervisor; without one places are kept."""
