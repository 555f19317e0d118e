"""Damaged bytes of the log, and the units that take the places of their messages in queues."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.log.reader import Damage
from protocol.derived.queue_build import QueueEnd, UnitBatch, unit_array

HOLES_MAX = 1_000
"""Beyond it the newest two count as one."""
_INT32 = 2**31 - 1


class _Hole(NamedTuple):
    start: int
    stop: int


class MissingMessages(NamedTuple):
    """So many messages of a queue have no record between these two log offsets."""

    begin: int
    end: int
    missing: int


def gap_before(state: QueueEnd, batch: UnitBatch) -> MissingMessages | None:
    """The gap between a queue's end and its next message."""
    if state.end is None:
        return None
    places = batch.units["physical_offset"].astype(np.int64)
    row = int(np.searchsorted(places, state.physical_end))
    missing = int(batch.queue_offset[row]) - state.end if row < len(places) else 0
    return MissingMessages(state.physical_end, int(places[row]), missing) if missing > 0 else None


class Holes:
    """Those that a worker has passed over, in log order."""

    def __init__(self) -> None:
        self._holes: list[_Hole] = []

    def add(self, damage: Damage) -> None:
        """One more, or one that is known."""
        hole = _Hole(damage.torn.position, damage.resumed_at)
        if hole in self._holes:
            return
        self._holes = sorted([*self._holes, hole])
        if len(self._holes) > HOLES_MAX:
            last, before = self._holes.pop(), self._holes.pop()
            self._holes.append(_Hole(before.start, max(before.stop, last.stop)))

    def units(self, gap: MissingMessages) -> NDArray[Any] | None:
        """The units of the messages that are missing; None where no damage explains them.

        Each names a part of the damage between the records before and after: a pull of it says
        where that is, and their order in the log is that of the queue.
        """
        between = [one for one in self._holes if gap.begin <= one.start and one.stop <= gap.end]
        size = (between[-1].stop - between[0].start) // gap.missing if between else 0
        if not size:
            return None
        numbers = np.arange(gap.missing, dtype=np.int64)
        sizes = np.full(gap.missing, min(size, _INT32))
        return unit_array(between[0].start + numbers * size, sizes, np.zeros_like(numbers))
