"""The messages of the seconds that come next, as numbers: which of them is due when.

Values in, values out; `gateway.tasks.timers.timers` owns it.
"""

import heapq
from typing import NamedTuple

import numpy as np

from keelog.gateway.tasks.timers.timer_files import effective_due
from keelog.gateway.tasks.timers.timer_log import Positions, Units
from protocol.derived.file_layouts import TIMER_DELETE, TIMER_ROLL


class DueUnit(NamedTuple):
    """A message that is due. `written_ms`: when its unit was written."""

    due_ms: int
    position: int
    physical_offset: int
    written_ms: int
    magic: int


class LoadedSecond:
    """One second: its messages in the order in which they are due."""

    def __init__(self, second: int) -> None:
        self.second = second
        self.taken_back: set[str] = set()
        """The keys of messages that are not to be delivered."""
        self.under_way: dict[int, int] = {}
        """How many messages were taken, and have no outcome yet, by the time when the first of
        those that were taken with them was due."""
        self.is_loading = False
        self._due = self._positions = np.empty(0, np.int64)
        self._units: Units | None = None
        self._at = 0
        self._late: list[DueUnit] = []
        """A heap of those that came after it was loaded."""

    def __len__(self) -> int:
        """The messages that nobody has taken."""
        return len(self._due) - self._at + len(self._late)

    def load(
        self, positions: Positions, units: Units, delivered_ms: int = 0, delivered_end: int = 0
    ) -> list[int]:
        """Takes the units of the second, without those below `delivered_end` that were due by
        `delivered_ms`; returns the log offsets of those that take others back."""
        magic = units["magic"]
        is_marker = ((magic & TIMER_DELETE) != 0) & ((magic & TIMER_ROLL) == 0)
        markers: list[int] = units["physical_offset"][is_marker].tolist()
        positions, units = positions[~is_marker], units[~is_marker]
        due = effective_due(units, self.second)
        left = np.flatnonzero((due > delivered_ms) | (positions >= delivered_end))
        due, positions, units = due[left], positions[left], units[left]
        order = np.lexsort((positions, due))
        self._due, self._positions, self._units = due[order], positions[order], units[order]
        self._at = 0
        return markers

    def add(self, unit: DueUnit) -> None:
        """Takes a message that came later."""
        heapq.heappush(self._late, unit)

    def next_ms(self) -> int | None:
        """When the next message is due; None without one."""
        first = int(self._due[self._at]) if self._at < len(self._due) else None
        if self._late and (first is None or self._late[0].due_ms < first):
            return self._late[0].due_ms
        return first

    def take(self, now_ms: int, count_max: int) -> list[DueUnit]:
        """Takes messages that are due, `count_max` at most."""
        end = min(int(np.searchsorted(self._due, now_ms, "right")), self._at + count_max)
        found: list[DueUnit] = []
        if end > self._at and self._units is not None:
            rows, part = slice(self._at, end), self._units[self._at : end]
            found = [
                DueUnit(*row)
                for row in zip(
                    self._due[rows].tolist(),
                    self._positions[rows].tolist(),
                    part["physical_offset"].tolist(),
                    part["written_ms"].tolist(),
                    part["magic"].tolist(),
                    strict=True,
                )
            ]
            self._at = end
        while self._late and self._late[0].due_ms <= now_ms and len(found) < count_max:
            found.append(heapq.heappop(self._late))
        found.sort()
        if found:
            due_ms = found[0].due_ms
            self.under_way[due_ms] = self.under_way.get(due_ms, 0) + len(found)
        return found

    def delivered(self, units: list[DueUnit]) -> None:
        """These, which were taken together, have their outcome."""
        due_ms = units[0].due_ms
        self.under_way[due_ms] -= len(units)
        if not self.under_way[due_ms]:
            del self.under_way[due_ms]

    def first_ms(self) -> int | None:
        """When the first message was or is due that has no outcome; None without one."""
        next_ms = self.next_ms()
        waiting = [*self.under_way, *([] if next_ms is None else [next_ms])]
        return min(waiting, default=None)

    @property
    def is_done(self) -> bool:
        """Whether all its messages have their outcome."""
        return not (self.is_loading or self.under_way or len(self))
