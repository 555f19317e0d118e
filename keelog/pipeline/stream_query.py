"""The driver's side of one streaming query: where it starts, how far a batch goes, what it reads.

Spark keeps one reader while a query runs. It never decides what has been read:
positions come from the query's checkpoint, and a batch that is planned again reads the same rows.

The stores of the query are kept open: which queues there are and where they end is asked again and
again. An idle query asks a hundred times a second.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as streaming

from keelog.pipeline import micro_batch, resolve, task_spec
from keelog.pipeline.bounds import Extent, QueueAt, bound_offsets
from keelog.pipeline.errors import DataLoss, StoreUnreadable, TargetMoved, log, naming_conditions
from keelog.pipeline.micro_batch import StreamPosition, parse_position
from keelog.pipeline.options import SourceOptions
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.stores import access, planned_store
from node.store.queues import QueueReader
from protocol import errors, ids, names
from protocol.derived.file_layouts import FILLER_SIZE
from protocol.record.columns import Ints

GRACE_S = 2.0
"""How long a running node's queue must be shorter than it was before that is believed: of several
readers one may be a moment after another."""
OBJECTS_S = 10.0
"""How often a store on object storage is opened again: nothing reports that it has changed."""
LIST_S = 1.0
"""How often folders are listed for new queues, and a store at rest is looked at for changes."""
SETTLE_S = 1.0
"""How long after the log has moved queues may still follow, and are looked at each time."""
ROWS_MAX = 2**63 - 1
"""Means no limit: `ReadAllAvailable` would put all of it into one batch."""
COME_BACK_S_MAX = 60.0
"""How long a batch that is planned waits for queue workers that are starting again."""
_LOOK_AGAIN_S = 0.02

Fingerprint = tuple[tuple[str, int, int], ...]
_LOSS_HINT = "failOnDataLoss=false, which goes on with what is left; or a new checkpoint folder"
_TARGET_HINT = "the query again: a new target is fixed then"


class QueueSnapshot(NamedTuple):
    """The queues that are followed, as they were at one moment."""

    extents: Mapping[QueueAt, Extent]
    generations: micro_batch.Generations

    def highs(self) -> dict[QueueAt, int]:
        """Where each queue ends."""
        return {queue: extent.high for queue, extent in self.extents.items()}


class KeelogStreamReader(DataSourceStreamReader, streaming.SupportsTriggerAvailableNow):
    """One lives on the driver's machine while a query runs. Tasks have another, which only reads.

    Each method raises what opening and refreshing the stores raises, and says what else.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._followed = Followed(self._options)
        self._initial: StreamPosition | None = None
        self._target: dict[QueueAt, int] | None = None
        self._planned: StreamPosition | None = None
        self._triggered_at: float | None = None

    def stop(self) -> None:
        self._followed.close()
        self._begin()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
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
        return self._initial.to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on nothing is read after the present ends."""
        with naming_conditions():
            self._target = self._followed.settled().highs()

    def getDefaultReadLimit(self) -> streaming.ReadLimit:  # noqa: N802
        """The first of the options' limits. Spark knows no two at once: all are kept below."""
        limits = self._options.triggers
        if limits.rows_max is not None:
            return streaming.ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return streaming.ReadMaxBytes(limits.bytes_max)
        if limits.rows_min is not None:
            return streaming.ReadMinRows(limits.rows_min)
        return streaming.ReadMaxRows(ROWS_MAX)

    def latestOffset(self, start: dict[str, Any], limit: streaming.ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch from `start` ends. Raises DataLoss, TargetMoved, BadCheckpoint."""
        limits: micro_batch.TriggerLimits | None = self._options.triggers
        if isinstance(limit, streaming.ReadAllAvailable):
            limits = None
        elif isinstance(limit, streaming.ReadMaxRows):
            limits = replace(self._options.triggers, rows_max=limit.max_rows)
        elif isinstance(limit, streaming.ReadMaxBytes):
            limits = replace(self._options.triggers, bytes_max=limit.max_bytes)
        return self._latest(parse_position(start), limits).to_json()

    def _latest(
        self, start: StreamPosition, limits: micro_batch.TriggerLimits | None
    ) -> StreamPosition:
        """`start` itself when there is nothing to read.

        The first batch of a query is empty unless `limits` is None: so its beginning is in the
        checkpoint before any row is read, and a query that dies in its first batch with rows goes
        on at the same place.
        """
        if start.is_initial and limits is not None:
            return start.begun()
        with naming_conditions():
            given, now = start, self._followed.look().generations
            if self._options.fail_on_data_loss:
                self._raise_or_warn(micro_batch.removed(start.later(now)))
            start = given.anew(now)
            # A batch up to a target is not asked for again: what is late is waited for.
            late = {} if self._target is None else {**self._target, **start.offsets}
            look = self._followed.look_for(late)
            ends = self._ends(start, look)
            lows = {queue: extent.low for queue, extent in look.extents.items()}
            begins = {queue: start.offsets.get(queue, lows.get(queue, 0)) for queue in ends}
            rows = sum(micro_batch.pending(begins, ends).values())
            if limits is not None and self._is_to_wait(limits, rows):
                return given.begun()
            if limits is not None and rows:
                ends = self._limited(limits, begins, ends)
            position = StreamPosition(ends, generations=start.merged(look.generations, ends))
            self._check_target(start, position, look)
            if self._options.fail_on_data_loss and position != start:
                # Before the batch is in the checkpoint: a store that is put right then goes on.
                lost = micro_batch.plan_ranges(start, position, look.extents).lost
                self._raise_or_warn(lost)
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

    def _is_to_wait(self, limits: micro_batch.TriggerLimits, rows: int) -> bool:
        """Notes when a batch with rows was made. A query that reads up to a target never waits."""
        now = time.monotonic()
        since = None if self._triggered_at is None else (now - self._triggered_at) * 1000
        if self._target is None and micro_batch.is_to_wait(limits, rows, since):
            return True
        if rows:
            self._triggered_at = now
        return False

    def _limited(
        self,
        limits: micro_batch.TriggerLimits,
        begins: dict[QueueAt, int],
        ends: dict[QueueAt, int],
    ) -> dict[QueueAt, int]:
        by_rows = ends
        if limits.rows_max is not None:
            by_rows = micro_batch.end_by_rows(limits.rows_max, begins, ends)
        if limits.bytes_max is None:
            return by_rows
        return micro_batch.end_by_bytes(
            limits.bytes_max, begins, by_rows, self._followed.record_sizes
        )

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the queues ended at the last look, for the query's progress."""
        with naming_conditions():
            return StreamPosition(self._followed.last_look().highs()).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What reads from `start` to `end`, the same rows each time.

        Raises DataLoss, TargetMoved, BadCheckpoint. With `failOnDataLoss=false` a loss is a warning
        with its counts.
        """
        begin, until = parse_position(start), parse_position(end)
        if begin.begun() == until.begun():
            return []
        with naming_conditions():
            lost = micro_batch.removed(begin.later(until.generations))
            begin = begin.anew(until.generations)
            # Of a topic that was removed after the batch was planned nothing is left to read.
            gone = until.later(self._followed.look().generations)
            lost += micro_batch.removed(gone)
            ends = {queue: at for queue, at in until.offsets.items() if queue not in gone}
            look = self._followed.look_for(ends)
            if until == self._planned:
                self._check_target(begin, until, look)
            begins = {queue: at for queue, at in begin.offsets.items() if queue not in gone}
            ranges = micro_batch.plan_ranges(
                StreamPosition(begins, begin.is_initial), StreamPosition(ends), look.extents
            )
            self._raise_or_warn(lost + ranges.lost)
            return [InputPartition(part) for part in self._followed.parts(ranges.found)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one part as Arrow batches."""
        if partition is not None and partition.value is not None:
            yield from read_part(partition.value)

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
        fault = micro_batch.target_fault({**self._target, **held}, end.offsets, look.extents)
        if fault and self._options.fail_on_data_loss:
            raise TargetMoved(fault, _TARGET_HINT)
        if fault:
            log.warning("what availableNow set out to read has moved: %s", fault)

    def _raise_or_warn(self, lost: list[micro_batch.Loss]) -> None:
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(micro_batch.describe(lost), _LOSS_HINT)
        if lost:
            log.warning("messages are lost: %s", micro_batch.describe(lost))


class FollowedStore:
    """One of them. A store at rest that has changed is opened again, which finds its ends."""

    def __init__(self, at: access.StoreAt, options: SourceOptions) -> None:
        self._at = at
        self._options = options
        self._print = _fingerprint(at)
        self.store = planned_store.open_planned(at, options)
        self.extents: dict[QueueAt, Extent] = {}
        self.generations: dict[micro_batch.TopicAt, int] = {}
        self._queues: list[ids.Queue] = []
        self._mark: tuple[int, ...] = ()
        self._moved_at = self._listed_at = float("-inf")
        self._short: dict[ids.Queue, tuple[int, float]] = {}
        """Queues shorter than they were: where the log ended when it was noticed, and when."""

    def look(self, now: float, thorough: bool = False) -> bool:
        """Takes in what is new; whether `extents` may have changed."""
        is_time_to_list = thorough or now - self._listed_at >= LIST_S
        if is_time_to_list and not self.store.epoch:
            # One that no node runs is copied to, or written by a broker.
            found = _fingerprint(self._at)
            if found != self._print:
                before, self.store = self.store, planned_store.open_planned(self._at, self._options)
                before.close()
                self._print = found
        self.store.refresh()
        log = self.store.log
        mark = (log.end, log.min_offset, self.store.epoch, self.store.removed.end)
        if mark != self._mark:
            if self._mark and mark[2] != self._mark[2]:
                self._short.clear()
            self._mark, self._moved_at = mark, now
        elif not is_time_to_list and now - self._moved_at >= SETTLE_S:
            return False
        if is_time_to_list:
            self._listed_at = now
            self._queues = [
                queue for queue in self.store.queues() if self._options.selection.takes(*queue)
            ]
        known, node = (self.extents, self.generations), self._at.node
        extents: dict[QueueAt, Extent] = {}
        for topic, queue_id in self._queues:
            reader = self.store.queue(topic, queue_id)
            if reader is not None:
                queue = QueueAt(topic, node, queue_id)
                extents[queue] = Extent(queue, reader.min_offset, reader.max_offset)
        self.extents, self.generations = (
            extents,
            {
                micro_batch.TopicAt(topic, node): one.horizon
                for topic, one in self.store.removed.topics.items()
                if one.horizon
            },
        )
        return known != (self.extents, self.generations)

    def settle(self) -> None:
        """Gives queues a moment to hold what the log holds, and takes all in."""
        self.store.refresh()
        self.store.settle()
        self.look(time.monotonic(), thorough=True)

    def reader(self, queue: QueueAt) -> QueueReader:
        """The queue's reader. Raises StoreUnreadable when it is gone."""
        found = self.store.queue(queue.topic, queue.queue_id)
        if found is None:
            raise StoreUnreadable(f"{queue} is gone since it was last looked at", "again")
        return found

    def may_come_back(self, at: QueueAt) -> bool:
        """Whether a queue that is shorter than it was may only be late: its worker starts again,
        or has not reached what the log had when that was noticed, or it was noticed just now."""
        if not self.store.epoch:
            return False
        queue = ids.Queue(at.topic, at.queue_id)
        if self.store.is_resuming(queue):
            self._short.pop(queue, None)
            return True
        now = time.monotonic()
        log_end, since = self._short.setdefault(queue, (self.store.log.end, now))
        return self.store.followed(queue) < log_end or now - since < GRACE_S

    def is_back(self, at: QueueAt) -> None:
        """A queue is as long as it was: the next time that it is short is another one."""
        if self._short:
            self._short.pop(ids.Queue(at.topic, at.queue_id), None)


class Followed:
    """Opens the stores at the first look. All methods raise what opening and refreshing raises."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._stores: dict[str, FollowedStore] = {}
        self._look: QueueSnapshot | None = None

    def _opened(self) -> Iterable[FollowedStore]:
        for at in self._options.stores:
            if at.node not in self._stores:
                self._stores[at.node] = FollowedStore(at, self._options)
        return self._stores.values()

    def look(self) -> QueueSnapshot:
        """The queues as they are now. Cheap when nothing has changed."""
        changed = [one.look(time.monotonic()) for one in self._opened()]
        if any(changed) or self._look is None:
            self._look = QueueSnapshot(
                {queue: extent for one in self._opened() for queue, extent in one.extents.items()},
                {at: number for one in self._opened() for at, number in one.generations.items()},
            )
        return self._look

    def last_look(self) -> QueueSnapshot:
        """What the last look saw."""
        return self._look if self._look is not None else self.look()

    def settled(self) -> QueueSnapshot:
        """A look when queues have had a moment to hold what the log holds, at every folder."""
        for one in self._opened():
            one.settle()
        return self.look()

    def look_for(self, ends: Mapping[QueueAt, int]) -> QueueSnapshot:
        """A look when no queue is short of `ends` only because its worker starts again.

        Raises StoreUnreadable when one does for a minute.
        """
        deadline = time.monotonic() + COME_BACK_S_MAX
        while True:
            look = self.look()
            late = [queue for queue in ends if self.is_late(queue, ends[queue])]
            if not late:
                return look
            if time.monotonic() > deadline:
                raise StoreUnreadable(
                    f"{len(late)} queues, {late[0]} among them, are still being made from the log",
                    "keelog status of the node; the query again when its workers run",
                )
            time.sleep(_LOOK_AGAIN_S)

    def is_late(self, queue: QueueAt, offset: int) -> bool:
        """Whether a queue ends below `offset`, or is not there, and this may be for the moment."""
        store = self._stores.get(queue.node)
        if store is None:
            return False
        extent = self.last_look().extents.get(queue)
        if extent is None or extent.high < offset:
            return store.may_come_back(queue)
        store.is_back(queue)
        return False

    def starting_offsets(self) -> dict[QueueAt, int]:
        """Where the options say that each queue begins.

        Raises UnknownTopic, BadOption, OffsetOutOfRange.
        """
        look = self.settled()
        stores = [one.store for one in self._opened()]
        resolve.check_topics(stores, self._options)
        extents = [look.extents[queue] for queue in sorted(look.extents)]
        found = {
            queue: (self._stores[queue.node].store, self._stores[queue.node].reader(queue))
            for queue in look.extents
        }
        bound = self._options.selection.start
        find = resolve.offset_finder(found)
        answer = bound_offsets(bound, "startingOffsets", extents, len(stores), find)
        for queue, low, high in extents:
            if answer[queue] > high:
                raise errors.OffsetOutOfRange(
                    f"the starting offset {answer[queue]} of {queue} is beyond its end, {high}",
                    f"an offset from {low} to {high}, or -1 for the latest",
                )
        return answer

    def record_sizes(self, queue: QueueAt, start: int, end: int) -> Ints:
        """Bytes of the records of messages [start, end), 0 for a filler's."""
        size = self._stores[queue.node].reader(queue).units(start, end - start)["size"]
        return np.where(size == FILLER_SIZE, 0, size).astype(np.int64)

    def parts(self, ranges: Iterable[Extent]) -> list[task_spec.Part]:
        rows = []
        for queue, start, end in ranges:
            of = self._stores[queue.node]
            rows.append(resolve.QueueSpan(of.store, of.reader(queue), start, end))
        stores = [one.store for one in self._opened()]
        return list(resolve.parts_of_rows(rows, stores, self._options))

    def close(self) -> None:
        for one in self._stores.values():
            one.store.close()
        self._stores.clear()


def _fingerprint(at: access.StoreAt) -> Fingerprint:
    """Changes when the log of a store at rest may have changed; empty for a node's.

    It is taken before the store is opened: what is written meanwhile is seen the next time.
    """
    if at.way is access.Way.NODE:
        return ()
    if at.way is access.Way.OBJECTS:
        return (("", 0, int(time.monotonic() / OBJECTS_S)),)
    try:
        with os.scandir(Path(at.root) / names.COMMIT_LOG_DIR) as entries:
            stats = [(entry.name, entry.stat()) for entry in entries]
    except FileNotFoundError:
        # A segment was removed just now, or all of the store: opening it finds out.
        return ()
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))
