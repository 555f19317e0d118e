"""The driver's side of one streaming query: where it starts, how far a batch goes, what it reads.

Spark keeps one of these while a query runs. It never decides what has been read: positions come
from the query's checkpoint, and a batch that is planned again reads the same rows.
"""

import time

from keelog.pipeline.bounds import QueueAt
from keelog.pipeline.errors import DataLoss, TargetMoved, naming_conditions
from keelog.pipeline.log import log
from keelog.pipeline.options import SourceOptions
from keelog.pipeline.plan.offsets import StreamPosition
from keelog.pipeline.stream.follow import Followed, QueueSnapshot
from keelog.pipeline.stream.limits import (
    TriggerLimits,
    end_by_bytes,
    end_by_rows,
    is_to_wait,
    pending,
)
from keelog.pipeline.stream.ranges import Loss, describe, plan_ranges, removed, target_fault
from keelog.pipeline.task_spec import Part

_LOSS_HINT = "failOnDataLoss=false, which goes on with what is left; or a new checkpoint folder"
_TARGET_HINT = "the query again: a new target is fixed then"


class StreamPlanner:
    """Each method raises what opening and refreshing the stores raises, and says what else."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._followed = Followed(options)
        self._initial: StreamPosition | None = None
        self._target: dict[QueueAt, int] | None = None
        self._planned: StreamPosition | None = None
        self._triggered_at: float | None = None

    def initial(self) -> StreamPosition:
        """Where a new query begins; the same each time it is asked.

        Raises UnknownTopic, BadOption, OffsetOutOfRange.
        """
        if self._initial is None:
            with naming_conditions():
                offsets = self._followed.starting_offsets()
            if self._target is not None:
                offsets = {
                    queue: min(offset, self._target[queue])
                    for queue, offset in offsets.items()
                    if queue in self._target
                }
            generations = self._followed.last_look().generations
            known = StreamPosition({}).merged(generations, offsets)
            self._initial = StreamPosition(offsets, True, known)
        return self._initial

    def fix_target(self) -> None:
        """From now on nothing is read after the present ends."""
        with naming_conditions():
            self._target = self._followed.settled().highs()

    def latest(self, start: StreamPosition, limits: TriggerLimits | None) -> StreamPosition:
        """Where the batch from `start` ends; `start` itself when there is nothing to read.

        The first batch of a query is empty unless `limits` is None: so its beginning is in the
        checkpoint before any row is read, and a query that dies in its first batch with rows goes
        on at the same place. Raises DataLoss, TargetMoved.
        """
        if start.is_initial and limits is not None:
            return start.begun()
        with naming_conditions():
            given, now = start, self._followed.look().generations
            if self._options.fail_on_data_loss:
                self._tell(removed(start.later(now)))
            start = given.anew(now)
            # A batch up to a target is not asked for again: what is late is waited for.
            late = {} if self._target is None else {**self._target, **start.offsets}
            look = self._followed.look_for(late)
            ends = self._ends(start, look)
            begins = {queue: start.offsets.get(queue, _low(queue, look)) for queue in ends}
            rows = sum(pending(begins, ends).values())
            if limits is not None and self._is_to_wait(limits, rows):
                return given.begun()
            if limits is not None and rows:
                ends = self._limited(limits, begins, ends)
            position = StreamPosition(ends, generations=start.merged(look.generations, ends))
            self._check_target(start, position, look)
            if self._options.fail_on_data_loss and position != start:
                # Before the batch is in the checkpoint: a store that is put right then goes on.
                self._tell(plan_ranges(start, position, look.extents).lost)
        self._planned = position
        return position

    def _ends(self, start: StreamPosition, look: QueueSnapshot) -> dict[QueueAt, int]:
        """How far each queue could be read now."""
        ends = look.highs()
        if self._target is not None:
            ends = {
                queue: min(high, self._target[queue])
                for queue, high in ends.items()
                if queue in self._target
            }
        for queue, offset in start.offsets.items():
            extent = look.extents.get(queue)
            if self._followed.is_late(queue, offset):
                # Units that a starting worker has not confirmed again are late, not lost.
                ends[queue] = offset
            elif extent is not None and extent.high >= offset:
                ends[queue] = max(ends.get(queue, offset), offset)
        return ends

    def _is_to_wait(self, limits: TriggerLimits, rows: int) -> bool:
        """Notes when a batch with rows was made. A query that reads up to a target never waits."""
        now = time.monotonic()
        since = None if self._triggered_at is None else (now - self._triggered_at) * 1000
        if self._target is None and is_to_wait(limits, rows, since):
            return True
        if rows:
            self._triggered_at = now
        return False

    def _limited(
        self, limits: TriggerLimits, begins: dict[QueueAt, int], ends: dict[QueueAt, int]
    ) -> dict[QueueAt, int]:
        by_rows = ends
        if limits.rows_max is not None:
            by_rows = end_by_rows(limits.rows_max, begins, ends)
        if limits.bytes_max is None:
            return by_rows
        return end_by_bytes(limits.bytes_max, begins, by_rows, self._followed.record_sizes)

    def report(self) -> StreamPosition:
        """The ends as of the last look."""
        with naming_conditions():
            return StreamPosition(self._followed.last_look().highs())

    def parts(self, start: StreamPosition, end: StreamPosition) -> list[Part]:
        """What reads from `start` to `end`, the same rows each time. Raises DataLoss, TargetMoved.

        With `failOnDataLoss=false` a loss is a warning with its counts.
        """
        if start.begun() == end.begun():
            return []
        with naming_conditions():
            lost = removed(start.later(end.generations))
            start = start.anew(end.generations)
            # Of a topic that was removed after the batch was planned nothing is left to read.
            gone = end.later(self._followed.look().generations)
            lost += removed(gone)
            ends = {queue: at for queue, at in end.offsets.items() if queue not in gone}
            look = self._followed.look_for(ends)
            if end == self._planned:
                self._check_target(start, end, look)
            begins = {queue: at for queue, at in start.offsets.items() if queue not in gone}
            ranges = plan_ranges(
                StreamPosition(begins, start.is_initial), StreamPosition(ends), look.extents
            )
            self._tell(lost + ranges.lost)
            return self._followed.parts(ranges.found)

    def _check_target(
        self, start: StreamPosition, end: StreamPosition, look: QueueSnapshot
    ) -> None:
        """Raises TargetMoved, or warns of it with `failOnDataLoss=false`."""
        if self._target is None:
            return
        held = {
            queue: offset
            for queue, offset in start.offsets.items()
            if queue not in self._target and queue in end.offsets
        }
        fault = target_fault({**self._target, **held}, end.offsets, look.extents)
        if fault and self._options.fail_on_data_loss:
            raise TargetMoved(fault, _TARGET_HINT)
        if fault:
            log.warning("what availableNow set out to read has moved: %s", fault)

    def _tell(self, lost: list[Loss]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(describe(lost), _LOSS_HINT)
        if lost:
            log.warning("messages are lost: %s", describe(lost))

    def close(self) -> None:
        """Closes the stores."""
        self._followed.close()


def _low(queue: QueueAt, look: QueueSnapshot) -> int:
    extent = look.extents.get(queue)
    return 0 if extent is None else extent.low
