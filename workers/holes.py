"""Damaged bytes of the log, and the units that take the places of their messages in queues."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.log.damage import Damage
from protocol.derived.queue_build import QueueEnd, UnitBatch, unit_array

HOLES_MAX = 1_000
"""Beyond it the newest two count as one."""
_INT32 = 2**31 - 1


class _Hole(NamedTuple):
    start: int
    stop: int


class Holes:
    """Those that a worker has passed over, in log order."""

    def __init__(self) -> None:
        self._holes: list[_Hole] = []

    def add(self, damage: Damage) -> None:
        """One more, or one that is known."""
        hole = _Hole(damage.torn.position, damage.resumed_at)
        if hole in self._holes:
            return
        if len(self._holes) >= HOLES_MAX:
            hole = _Hole(min(self._holes.pop().start, hole.start), hole.stop)
        self._holes = sorted([*self._holes, hole])

    def units(self, state: QueueEnd, batch: UnitBatch) -> NDArray[Any] | None:
        """The units between a queue's end and its next message; None where nothing is missing, or
        no damage explains it.

        Each names a part of the damage between the records before and after: a pull of it says
        where that is, and their order in the log is that of the queue.
        """
        if not self._holes or state.end is None:
            return None
        places = batch.units["physical_offset"].astype(np.int64)
        row = int(np.searchsorted(places, state.physical_end))
        if row == len(places):
            return None
        return self.units_before(state, int(batch.queue_offset[row]), int(places[row]))

    def units_before(self, state: QueueEnd, position: int, end: int) -> NDArray[Any] | None:
        """As `units`, for a queue whose message of this position is at the log offset `end`, or
        comes after it."""
        begin, missing = state.physical_end, position - (state.end or 0)
        if missing <= 0:
            return None
        between = [hole for hole in self._holes if begin <= hole.start and hole.stop <= end]
        size = (between[-1].stop - between[0].start) // missing if between else 0
        if not size:
            return None
        numbers = np.arange(missing, dtype=np.int64)
        sizes = np.full(missing, min(size, _INT32))
        return unit_array(between[0].start + numbers * size, sizes, np.zeros_like(numbers))
