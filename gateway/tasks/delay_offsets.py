"""`config/delayOffset.json`: up to where each delay level is delivered (ScheduleMessageService).

An entry `level` has the offset of the next message of the level's queue. The process that delivers
holds the table and saves it; a crash repeats the deliveries of about a second.
"""

from collections.abc import Callable
from pathlib import Path

from node.store.config.config_table import ConfigTable
from protocol.names import DELAY_OFFSETS_FILE


class DelayOffsets:
    """The table in memory. All methods are for one thread."""

    def __init__(self, root: Path, now_ms: Callable[[], int]) -> None:
        """Raises StoreDamaged."""
        self._file = ConfigTable(root / DELAY_OFFSETS_FILE, "offsetTable", now_ms, of_objects=False)
        self._file.check_readable()

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
