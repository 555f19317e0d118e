"""The damaged places that the processes of a node have met since it started.

A process reports a place when it meets one, and then how often it met it (`DamageReport`). The
list is the supervisor's: it outlives the processes, and is empty after a start of the node.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.runtime.event_log import fields
from node.runtime.process import DamageReport

log = logging.getLogger("keelog.supervisor")

PLACES_MAX = 100
"""Places that are listed; of further ones only the number of meetings is kept."""


@dataclass(frozen=True, slots=True)
class ListedDamage:
    """A place, and which process met it last."""

    damage: DamageReport
    process: str


class DamageList:
    """Written by the supervisor's thread, read by others."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], ListedDamage] = {}
        self._others = 0
        self.meetings = 0
        """Reads of all processes that met damage."""

    def note(self, process: str, damage: DamageReport, logs: bool = True) -> None:
        """Adds a report; `logs`: a place that is new is a line of the node's log."""
        self.meetings += damage.times
        key = damage.file, damage.offset
        known = self._places.get(key)
        if known is None and (len(self._places) >= PLACES_MAX or not damage.file):
            self._others += damage.times
            return
        if known is None and logs:
            found = fields(
                process=process, file=damage.file, offset=damage.offset, found=damage.found
            )
            log.error("damage was found", extra=found)
        if known is not None:
            times = known.damage.times + damage.times
            damage = damage._replace(times=times, first_ms=known.damage.first_ms)
        self._places[key] = ListedDamage(damage, process)

    def shape(self, store: Path) -> Mapping[str, Any]:
        """As `keelog status --json` shows it, the place that was met last first."""
        places = sorted(self._places.values(), key=lambda place: -place.damage.last_ms)
        rows = [
            {
                "file": str(store / place.damage.file),
                "offset": place.damage.offset,
                "found": place.damage.found,
                "count": place.damage.times,
                "first_ms": place.damage.first_ms,
                "last_ms": place.damage.last_ms,
                "process": place.process,
            }
            for place in places
            if not self._is_gone(store, place.damage.file)
        ]
        return {"places": rows, "others": self._others}

    def text(self, store: Path) -> str:
        """The list in a line, for health; empty without damage."""
        shape = self.shape(store)
        rows, others = shape["places"], shape["others"]
        if not rows and not others:
            return ""
        count = sum(row["count"] for row in rows) + others
        places = f"{len(rows)}{' listed' if others else ''}"
        last = f", the last one at {rows[0]['file']}, offset {rows[0]['offset']}" if rows else ""
        return (
            f"damaged places: {places}, met {count} times{last}; on the node's machine:"
            f" keelog store verify {store} --deep"
        )

    @staticmethod
    def _is_gone(store: Path, file: str) -> bool:
        """True if the file was deleted since, by retention, in a store that is still there."""
        return store.exists() and not (store / file).exists()
