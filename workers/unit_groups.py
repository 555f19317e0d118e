"""A batch's queue units, queue by queue: by the compiled loader, or as columns."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.kernel_dispatch import GroupedUnits, group_queues, queue_units
from protocol.derived.multi_dispatch import lmq_batches
from protocol.derived.queue_build import QueueEnd, QueuePlan, UnitBatch, plan_units
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.kernel import loader
from protocol.kernel.loader import Kernel

Own = Callable[[bytes, int], Queue | None]
"""The queue of a topic as stored and a number, if units are to be made for it."""


class UnitGroup(NamedTuple):
    """One queue's units in log order, and what is known of them together.

    `follows` is the queue offset of the first when the others follow it one by one, else None;
    `physical_start` and `physical_end` are the ends of the first and the last one's record. Only
    the compiled loader knows these facts: units that were made as columns have None and zeros.
    """

    queue: Queue
    batch: UnitBatch
    follows: int | None = None
    physical_start: int = 0
    physical_end: int = 0

    def plan(self, state: QueueEnd, units_per_file: int) -> QueuePlan:
        """Where the units go: at the queue's end, all of them, if they just go on there."""
        if self.follows is None or self.follows != state.end:
            return plan_units(state, units_per_file, self.batch)
        if self.physical_start <= state.physical_end:
            return plan_units(state, units_per_file, self.batch)
        units = self.batch.units
        end = QueueEnd(state.end + len(units), self.physical_end)
        return QueuePlan(state.end, units, end, 0, False)


def unit_groups(
    requests: DispatchRequests, own: Own, removed: Removed = NOTHING_REMOVED
) -> Iterator[UnitGroup]:
    """The units of the batch's records in queues of their topics; removed topics get none."""
    columns = removed.dispatched(requests.columns)
    if columns is not requests.columns:
        requests = DispatchRequests(columns, requests.delay_levels_ms)
        if not len(columns):
            return iter(())
    compiled = loader.active()
    if compiled is not None:
        found = _compiled(compiled, requests, own)
        if found is not None:
            return _groups(*found)
    return unit_groups_numpy(requests, own)


def lmq_groups(requests: DispatchRequests, own: Own, removed: Removed) -> Iterator[UnitGroup]:
    """The units of the batch's records in light queues that they name."""
    columns = removed.dispatched(requests.columns)
    for queue, batch in lmq_batches(DispatchRequests(columns, requests.delay_levels_ms)):
        owned = own(queue.topic.encode(), queue.queue_id)
        if owned is not None:
            yield UnitGroup(owned, batch)


def _compiled(
    compiled: Kernel, requests: DispatchRequests, own: Own
) -> tuple[list[Queue | None], GroupedUnits] | None:
    columns = requests.columns
    found = group_queues(compiled, columns)
    data = columns.data.data
    starts = columns.topic_start[found.first]
    places = (starts, starts + columns.topic_length[found.first], columns.queue_id[found.first])
    queues = [
        own(bytes(data[start:end]), number)
        for start, end, number in zip(*(place.tolist() for place in places), strict=True)
    ]
    wanted = np.array([queue is not None for queue in queues], np.bool_)
    units = queue_units(compiled, columns, found, wanted, requests.delay_levels_ms)
    return None if units is None else (queues, units)


def _groups(queues: list[Queue | None], found: GroupedUnits) -> Iterator[UnitGroup]:
    first = found.place
    last = np.maximum(first + found.count - 1, 0)
    if not len(found.units):
        return
    facts = (
        found.place,
        found.count,
        found.is_run,
        found.queue_offset[first],
        found.end[first],
        found.end[last],
    )
    units, offsets = found.units, found.queue_offset
    for queue, start, count, is_run, offset, begin, end in zip(
        queues, *(fact.tolist() for fact in facts), strict=True
    ):
        if queue is not None and count:
            stop = start + count
            batch = UnitBatch(units[start:stop], offsets[start:stop])
            yield UnitGroup(queue, batch, offset if is_run else None, begin, end)


def unit_groups_numpy(requests: DispatchRequests, own: Own) -> Iterator[UnitGroup]:
    """As `unit_groups`."""
    rows = np.flatnonzero(requests.is_queued)
    if not len(rows):
        return
    columns = requests.columns
    key = (requests.topic_id[rows] << 32) + columns.queue_id[rows]
    order = np.argsort(key, kind="stable")
    key, rows = key[order], rows[order]
    cuts = np.flatnonzero(key[1:] != key[:-1]) + 1
    units, offsets = requests.units(rows), columns.queue_offset[rows]
    starts = [0, *cuts.tolist()]
    for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
        row = rows[start]
        topic = requests.topics[int(requests.topic_id[row])]
        queue = own(topic.encode(), int(columns.queue_id[row]))
        if queue is not None:
            yield UnitGroup(queue, UnitBatch(units[start:stop], offsets[start:stop]))
