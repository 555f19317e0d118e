"""Makes in memory, as a queue worker would, the queue units that the files lack.

A stopped store may lack units: its owner was killed, or somebody removed `consumequeue/`. The walk
over the log begins where units may be missing; it is skipped if none is.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.log.damage import Damage, columns_past_damage
from node.store.log.reader import LogReader
from node.store.queues.files import Units
from node.store.queues.reader import DerivedUnits
from node.store.shutdown_state import Condition
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.queue_build import QueueEnd, UnitBatch, filler_units, plan_units, unit_array
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.record.columns import RecordColumns

_GAP_UNITS_MAX = 1_000_000


class Covered(NamedTuple):
    """The extent of a queue's files: the next number, and the end of the last unit's record."""

    next_number: int
    log_end: int


NOT_COVERED = Covered(-1, -1)
"""For a queue without units on disk."""


class _Rows(NamedTuple):
    """Units of one queue from one window of the log."""

    number: NDArray[Any]
    physical_offset: NDArray[Any]
    size: NDArray[Any]
    tags_code: NDArray[Any]


def walk_start(
    log: LogReader, condition: Condition, covered: Mapping[Queue, Covered], recovery_start: int
) -> int:
    """The log offset below which no unit can be missing.

    `recovery_start`: where the walk to the log's end began. After a crash a broker dispatches all
    records from there on again.
    """
    if not any(queue.log_end > 0 for queue in covered.values()):
        return log.min_offset
    if condition.tails is not None:
        for queue, number in condition.tails.next_offset.items():
            if number > max(covered.get(queue, NOT_COVERED).next_number, 0):
                return log.min_offset
    if condition.queues_done is not None:
        return max(condition.queues_done, log.min_offset)
    if condition.is_clean:
        return max(log.min_offset, *(queue.log_end for queue in covered.values()))
    return max(recovery_start, log.min_offset)


def derive_units(
    log: LogReader,
    start: int,
    covered: Callable[[Queue], Covered],
    units_per_file: int,
    delay_levels_ms: tuple[int, ...],
    removed: Removed = NOTHING_REMOVED,
) -> dict[Queue, DerivedUnits]:
    """Walks the log from `start` and returns what each queue's files lack.

    Damaged records get fillers, which no pull takes. If retention deleted records of a queue before
    they were dispatched, the units here replace those in the queue's files.
    """
    log_start = log.min_offset
    rows: dict[Queue, list[_Rows]] = {}
    for item in columns_past_damage(log, start):
        if isinstance(item, Damage):
            continue
        for queue, found in _by_queue(removed.dispatched(item), delay_levels_ms):
            rows.setdefault(queue, []).append(found)
    derived = {
        queue: _place(found, covered(queue), units_per_file, log_start)
        for queue, found in sorted(rows.items())
    }
    return {queue: units for queue, units in derived.items() if len(units.units)}


def _by_queue(
    columns: RecordColumns, delay_levels_ms: tuple[int, ...]
) -> list[tuple[Queue, _Rows]]:
    requests = DispatchRequests(columns, delay_levels_ms)
    queued = np.flatnonzero(requests.is_queued)
    if not len(queued):
        return []
    topic_id, queue_id = requests.topic_id[queued], columns.queue_id[queued]
    order = np.lexsort((queue_id, topic_id))
    topic_id, queue_id, queued = topic_id[order], queue_id[order], queued[order]
    changes = np.flatnonzero((np.diff(topic_id) != 0) | (np.diff(queue_id) != 0)) + 1
    answer = []
    for group in np.split(queued, changes):
        row = int(group[0])
        queue = Queue(requests.topics[int(requests.topic_id[row])], int(columns.queue_id[row]))
        found = _Rows(
            columns.queue_offset[group],
            columns.physical_offset[group],
            columns.size[group],
            requests.tags_code[group],
        )
        answer.append((queue, found))
    return answer


def _place(
    parts: list[_Rows], covered: Covered, units_per_file: int, log_start: int
) -> DerivedUnits:
    """Places units by their numbers as a queue worker does, except where there is a gap."""
    rows = _Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    state = QueueEnd() if covered is NOT_COVERED else QueueEnd(*covered)
    units = unit_array(rows.physical_offset, rows.size, rows.tags_code)
    batch = UnitBatch(units, rows.number)
    plan = plan_units(state, units_per_file, batch)
    # As a queue worker: the log no longer has a record of any unit in the files.
    begins_anew = plan.has_gap and state.end is not None and state.physical_end <= log_start
    if begins_anew:
        plan = plan_units(QueueEnd(), units_per_file, batch)
    if plan.has_gap:
        state = QueueEnd() if begins_anew else state
        return _place_with_gaps(rows.number, units, state)._replace(replaces_files=begins_anew)
    return DerivedUnits(plan.start, plan.units, begins_anew)


def _place_with_gaps(number: NDArray[Any], units: Units, state: QueueEnd) -> DerivedUnits:
    """Puts fillers into the gaps of damaged records, so that all later units keep their numbers.

    Drops units that the files have, and units whose numbers do not rise.
    """
    ends = units["physical_offset"] + units["size"].astype(np.int64)
    begin = -1 if state.end is None else state.end - 1
    seen = np.maximum.accumulate(np.concatenate([[begin], number]))[:-1]
    new = (ends > state.physical_end) & (number > seen)
    number, units = number[new], units[new]
    first = int(number[0]) if state.end is None and len(number) else state.end or 0
    if not len(number):
        return DerivedUnits(first, units)
    position = number - first
    if position[-1] > 4 * len(position) + _GAP_UNITS_MAX:
        position = np.arange(len(position))
    placed = filler_units(int(position[-1]) + 1)
    placed[position] = units
    return DerivedUnits(first, placed)
