"""`config/delayOffset.json`: up to where each delay level is delivered (ScheduleMessageService).

An entry `level` has the offset of the next message of the level's queue. The process that delivers
holds the table and saves it; a crash repeats the deliveries of about a second.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from node.runtime.event_log import fields
from node.store.config.config_table import ConfigTable
from protocol.names import DELAY_OFFSETS_FILE

log = logging.getLogger("keelog.tasks")


class DelayOffsets:
    """The table in memory. All methods are for one thread."""

    def __init__(self, root: Path, now_ms: Callable[[], int]) -> None:
        """Raises StoreDamaged."""
        self._file = ConfigTable(root / DELAY_OFFSETS_FILE, "offsetTable", now_ms, of_objects=False)
        self._file.check_readable()

    def lower(self, ends: Callable[[int], int]) -> None:
        """No entry stays above the end of its level's queue, which `ends` returns: as after a power
        loss, the next messages get these offsets, and must not be passed over."""
        above = {
            level: end
            for level in self._file.entries
            if level.isdigit() and (end := ends(int(level))) < self.get(int(level))
        }
        if above:
            extra = fields(file=self._file.path, levels=",".join(sorted(above, key=int)))
            log.warning("what is delivered lies beyond the queues, and is lowered", extra=extra)
            self._file.entries.update(above)
            self._file.touch()
            self._file.save()

    def get(self, level: int) -> int:
        """The offset of the level's next message."""
        found = self._file.entries.get(str(level), 0)
        return found if type(found) is int and found >= 0 else 0

    def note(self, level: int, offset: int) -> None:
        """All messages of the level before this one are delivered."""
        if self.get(level) != offset:
            self._file.entries[str(level)] = offset
            self._file.touch()

    def turn(self, now: float) -> None:
        """Saves when that is due."""
        self._file.turn(now)

    def close(self) -> None:
        """Saves what is not saved."""
        self._file.close()
