"""The damaged places that a reader meets, gathered for its reports to the supervisor."""

from collections.abc import Callable
from pathlib import Path

from node.runtime.process import DamageReport
from protocol.wire.frames import Header

PLACES_MAX = 64
"""Places that wait for the next report; of further ones only the number of meetings is kept."""
REPORT_S = 0.5
"""The time between reports: clients may meet the same place a thousand times in a second."""


class DamageReporter:
    """`send` reports one place; it returns False where it has to be tried again."""

    def __init__(self, root: Path, send: Callable[[DamageReport], bool]) -> None:
        self._root = root
        self._send = send
        self._met: dict[tuple[str, int], DamageReport] = {}
        self._due_at = 0.0

    def note(self, error: Header) -> None:
        """Notes the error of a refusal, one of damage."""
        damage = DamageReport.of(error["where"], error["offset"], error["found"], self._root)
        key = damage.file, damage.offset
        if key not in self._met and len(self._met) >= PLACES_MAX:
            damage = damage._replace(file="", offset=0, found="")
            key = "", 0
        before = self._met.get(key)
        if before is not None:
            damage = damage._replace(times=before.times + 1, first_ms=before.first_ms)
        self._met[key] = damage

    def turn(self, now: float) -> None:
        """Sends what was noted, if it is time."""
        if not self._met or now < self._due_at:
            return
        self._due_at = now + REPORT_S
        for key, damage in list(self._met.items()):
            if not self._send(damage):
                return
            del self._met[key]
