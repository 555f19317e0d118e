"""The units that the log calls for, queue by queue: of a batch, of what is missing, of damage.

A batch's units are grouped by the compiled kernel, or as columns. Damaged bytes of the log get
units that take the places of their messages in queues.

Queues may lack units at their end or before their first file. Progress vouches for files as they
were synced. A deletion by hand leaves no trace in the files that stay: where the files of a queue
begin and end is held against the log.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.checkpoints import Tails, load_tails
from node.store.config.topics_file import TopicsFile
from node.store.log.reader import Damage
from protocol.derived.dispatch_request import (
    DispatchRequests,
    GroupedUnits,
    lmq_batches,
    queue_units,
)
from protocol.derived.queue_build import QueueEnd, QueuePlan, UnitBatch, plan_units, unit_array
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.names import is_folder_name
from workers.feed import Feed

Own = Callable[[bytes, int], Queue | None]
"""The queue of a topic as stored and a number, if units are to be made for it."""

HOLES_MAX = 1_000
"""Beyond it the newest two count as one."""
_INT32 = 2**31 - 1


class UnitGroup(NamedTuple):
    """One queue's units in log order, and what is known of them together.

    `follows` is the queue offset of the first when the others follow it one by one, else None;
    `physical_start` and `physical_end` are the ends of the first and the last one's record. Only
    the compiled kernel knows these facts: units that were made as columns have None and zeros.
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
    compiled = loader.kernel
    found = None if compiled is None else _compiled(compiled, requests, own)
    return _plain(requests, own) if found is None else _groups(*found)


def _plain(requests: DispatchRequests, own: Own) -> Iterator[UnitGroup]:
    for queue, rows in requests.by_queue():
        owned = own(queue.topic.encode(), queue.queue_id)
        if owned is not None:
            batch = UnitBatch(requests.units(rows), requests.columns.queue_offset[rows])
            yield UnitGroup(owned, batch)


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
    starts, lengths, queue_ids = columns.topic_start, columns.topic_length, columns.queue_id
    numbers, first = compiled.group(columns.data, starts, lengths, queue_ids, columns.sys_flag)
    data = columns.data.data
    places = (starts[first], (starts + lengths)[first], queue_ids[first])
    queues = [
        own(bytes(data[start:end]), number)
        for start, end, number in zip(*(place.tolist() for place in places), strict=True)
    ]
    wanted = np.array([queue is not None for queue in queues], np.bool_)
    units = queue_units(compiled, requests, numbers, wanted)
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


class MissingUnits:
    """Looks for them in one worker's queues: those that `own` returns."""

    def __init__(
        self, root: Path, feed: Feed, own: Own, note: Callable[[Damage], None] = lambda _: None
    ) -> None:
        """`note` gets the damage that is met."""
        self._root = root
        self._feed = feed
        self._own = own
        self._note = note

    def at_ends(self, place: int, ends: Mapping[Queue, QueueEnd]) -> dict[Queue, str]:
        """Queues with fewer units than the log had records for them when it ended at `place`,
        and a text that says so.

        A queue without any file counts only while its topic exists: `topic rm` leaves the others.
        """
        tails = load_tails(self._root)
        if tails is None:
            return {}
        next_offset = self._feed.removed.next_offsets(tails.at, tails.next_offset)
        tails = tails._replace(next_offset=next_offset)
        topics = TopicsFile(self._root).topics
        short: dict[Queue, str] = {}
        for queue, known in self._known_ends(tails, place, ends).items():
            end = _end(queue, ends)
            if end < known and (queue in ends or queue.topic in topics):
                short[queue] = f"ends at {end}, {known} is known"
        hidden = self._hidden(short.keys(), place, ends)
        return {queue: why for queue, why in short.items() if queue not in hidden}

    def _hidden(self, short: Set[Queue], place: int, ends: Mapping[Queue, QueueEnd]) -> set[Queue]:
        """Those of some queues whose last messages are damaged: the log has none of their records
        after their last unit that can be read, but damage. Made anew they would end there, too."""
        begin = self._feed.limits().min_offset
        after = {queue: max(begin, ends.get(queue, QueueEnd()).physical_end) for queue in short}
        hidden: set[Queue] = set()
        if not after:
            return hidden
        for part in self._feed.past_damage(min(after.values()), place):
            if isinstance(part, Damage):
                self._note(part)
                hidden |= {queue for queue, end in after.items() if end <= part.torn.position}
                continue
            for group in unit_groups(DispatchRequests(part), self._own, self._feed.removed):
                end = after.get(group.queue, place)
                if int(group.batch.units["physical_offset"][-1]) >= end:
                    del after[group.queue]
                    hidden.discard(group.queue)
            if not after:
                break
        return hidden

    def before_first(self, first_units: Mapping[Queue, int]) -> dict[Queue, str]:
        """Those of some queues that have older records in the log than that of their first unit.

        `first_units`: the log offset that the first unit of each names, 0 in a filler, which only
        a queue that was made so begins with. Retention takes a queue's first files when all their
        records are gone: most first units then name a record that is gone too, and for the others
        the log is read up to the first record of each.
        """
        begin = self._feed.limits().min_offset
        suspects = {queue: first for queue, first in first_units.items() if first >= max(begin, 1)}
        lacking: dict[Queue, str] = {}
        if not suspects:
            return lacking
        for group in self._groups(begin, max(suspects.values())):
            first = suspects.pop(group.queue, None)
            if first is not None and int(group.batch.units["physical_offset"][0]) < first:
                lacking[group.queue] = f"begins with the record at {first}, the log has older ones"
            if not suspects:
                break
        return lacking

    def _known_ends(
        self, tails: Tails, place: int, ends: Mapping[Queue, QueueEnd]
    ) -> dict[Queue, int]:
        """The writer's snapshot as it would be at `place`: the log between the two has the rest.

        Where the snapshot is the later one, that is read as far as queues need it which have
        fewer units.
        """
        known = {
            queue: following
            for queue, following in tails.next_offset.items()
            if is_folder_name(queue.topic) and self._own(queue.topic.encode(), queue.queue_id)
        }
        if tails.at <= place:
            start = max(tails.at, self._feed.limits().min_offset)
            for group in self._groups(start, place):
                known[group.queue] = int(group.batch.queue_offset[-1]) + 1
            return known
        short = {queue for queue, following in known.items() if _end(queue, ends) < following}
        for group in self._groups(place, tails.at) if short else ():
            if group.queue in short:
                short.remove(group.queue)
                known[group.queue] = int(group.batch.queue_offset[0])
                if not short:
                    return known
        if short and self._feed.log.stopped is not None:
            # What the damage hides may be what the snapshot counts.
            return {queue: following for queue, following in known.items() if queue not in short}
        return known

    def _groups(self, start: int, stop: int) -> Iterator[UnitGroup]:
        for columns in self._feed.columns(start, stop):
            yield from unit_groups(DispatchRequests(columns), self._own, self._feed.removed)


def _end(queue: Queue, ends: Mapping[Queue, QueueEnd]) -> int:
    return ends.get(queue, QueueEnd()).end or 0


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
        self._holes: list[tuple[int, int]] = []
        """Where each begins and ends."""

    def add(self, damage: Damage) -> None:
        """One more, or one that is known."""
        hole = damage.torn.position, damage.resumed_at
        if hole in self._holes:
            return
        self._holes = sorted([*self._holes, hole])
        if len(self._holes) > HOLES_MAX:
            last, before = self._holes.pop(), self._holes.pop()
            self._holes.append((before[0], max(before[1], last[1])))

    def units(self, gap: MissingMessages) -> NDArray[Any] | None:
        """The units of the messages that are missing; None where no damage explains them.

        Each names a part of the damage between the records before and after: a pull of it says
        where that is, and their order in the log is that of the queue.
        """
        between = [one for one in self._holes if gap.begin <= one[0] and one[1] <= gap.end]
        size = (between[-1][1] - between[0][0]) // gap.missing if between else 0
        if not size:
            return None
        numbers = np.arange(gap.missing, dtype=np.int64)
        sizes = np.full(gap.missing, min(size, _INT32))
        return unit_array(between[0][0] + numbers * size, sizes, np.zeros_like(numbers))
