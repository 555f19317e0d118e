"""Where the units of a queue go: RocketMQ's ConsumeQueue#putMessagePositionInfo, planned.

Pure planning for one queue and one batch; the queue worker carries it out.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.derived.file_layouts import FILLER_SIZE, QUEUE_UNIT

Ints = NDArray[np.int64]


class QueueEnd(NamedTuple):
    """Where a queue ends. Positions count units from queue offset 0.

    `end` is where the next unit goes, None for a queue without files; `physical_end` is the log
    offset after the last unit's record.
    """

    end: int | None = None
    physical_end: int = -1


class UnitBatch(NamedTuple):
    """Records of one queue in log order: their units, and the QUEUEOFFSET of each."""

    units: NDArray[Any]
    queue_offset: Ints


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """`units` go to position `start` and on, fillers included; the queue then ends at `end`.

    `repeated` records at the batch's head are indexed already (their ends are not above the
    queue's); `has_gap` when an offset lies ahead of it, where RocketMQ only logs an error.
    """

    start: int
    units: NDArray[Any]
    end: QueueEnd
    repeated: int
    has_gap: bool


def unit_array(physical_offset: Ints, size: Ints, tags_code: Ints) -> NDArray[Any]:
    """Columns as units."""
    units = np.empty(len(physical_offset), QUEUE_UNIT.dtype)
    units["physical_offset"] = physical_offset
    units["size"] = size
    units["tags_code"] = tags_code
    return units


def filler_units(count: int) -> NDArray[Any]:
    """The units before the first one of a queue that does not begin at offset 0."""
    units = np.zeros(count, QUEUE_UNIT.dtype)
    units["size"] = FILLER_SIZE
    return units


def plan_units(state: QueueEnd, units_per_file: int, batch: UnitBatch) -> QueuePlan:
    """Plans a whole batch, in log order."""
    ends = batch.units["physical_offset"].astype(np.int64) + batch.units["size"]
    repeated = int(np.searchsorted(ends, state.physical_end, "right"))
    offsets, units = batch.queue_offset[repeated:], batch.units[repeated:]
    start = state.end or 0
    if not len(units):
        return QueuePlan(start, units, state, repeated, False)
    filler = 0
    if state.end is None:
        filler = int(offsets[0]) % units_per_file
        start = int(offsets[0]) - filler
    position = start + filler
    has_gap = False
    if not np.array_equal(offsets, np.arange(position, position + len(offsets))):
        kept, has_gap = _kept_rows(position, offsets)
        units, ends = units[kept], ends[repeated:][kept]
    if filler:
        # Not np.concatenate, which returns the machine's byte order.
        placed = filler_units(filler + len(units))
        placed[filler:] = units
        units = placed
    after = state if not len(units) else QueueEnd(start + len(units), int(ends[-1]))
    return QueuePlan(start, units, after, repeated, has_gap)


def _kept_rows(position: int, offsets: Ints) -> tuple[list[int], bool]:
    """The rows that get a unit, one after the other from `position`; offset 0 is never checked."""
    kept: list[int] = []
    has_gap = False
    for row, offset in enumerate(offsets.tolist()):
        if offset != 0 and offset < position:
            continue
        has_gap |= offset > position
        kept.append(row)
        position += 1
    return kept, has_gap
