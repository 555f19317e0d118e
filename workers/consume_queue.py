"""The queue worker: ConsumeQueue files of its share of the queues (RocketMQ: ConsumeQueueStore).

Run it as `python -m workers.consume_queue DIR --shard I --shards N`.
"""

import logging
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime.event_log import fields
from node.runtime.process import leave, raise_file_limit
from node.runtime.service_loop import queue_pace
from node.runtime.settings import Settings
from node.runtime.state_page import queue_slot, run_dir
from node.store.checkpoints import Tails, load_tails
from node.store.file_sizes import found_file_bytes, sorted_entries
from node.store.log.reader import Damage
from protocol.derived.dispatch_request import DispatchRequests, is_lmq, lmq_offsets
from protocol.derived.file_layouts import QUEUE_UNIT, QueueUnit
from protocol.derived.queue_build import QueueEnd, QueuePlan
from protocol.errors import NotFound, StoreDamaged
from protocol.ids import Queue, shard_of
from protocol.names import CONSUME_QUEUE_DIR, is_folder_name
from protocol.record import codec
from workers import progress, queue_units
from workers.dispatch import Handler
from workers.feed import WINDOW_BYTES, Feed
from workers.process import TurnPace, WorkerJob, parser_for, run_worker
from workers.queue_files import QueueBrokenError, QueueWatch, QueueWriter

log = logging.getLogger("keelog.worker")

TURN_BYTES = 4 << 20
"""Log that comes while nobody waits, before units are made of it: a turn costs nearly the same for
few records as for hundreds."""
STORE_FILES_SHARE = 2
"""Of the files that a process may open half are kept for the queues': all others are few."""
OPEN_FILES_MIN = 16
_NO_UNITS = QueueEnd()
_ANY_OFFSET = 2**63 - 1


class Shard(NamedTuple):
    """Which queues are ours: those whose hash falls to `number` of `total`."""

    number: int
    total: int

    def owns(self, queue: Queue) -> bool:
        return shard_of(queue, self.total) == self.number


class ConsumeQueues(Handler):
    """The handler that places units."""

    takes_few = True

    def __init__(
        self,
        root: Path,
        files: QueueWriter,
        feed: Feed,
        shard: Shard,
        delay_levels_ms: tuple[int, ...] = codec.DEFAULT_DELAY_LEVELS_MS,
        multi_dispatch: bool = False,
    ) -> None:
        """`multi_dispatch`: the store has light queues."""
        self._root = root
        self._shard = shard
        self._slot = queue_slot(*shard)
        self._delay_levels_ms = delay_levels_ms
        self._multi_dispatch = multi_dispatch
        self.files = files
        self._feed = feed
        feed.window_bytes = WINDOW_BYTES
        self._ends: dict[Queue, QueueEnd] = {}
        self.applied = 0
        self._broken: set[Queue] = set()
        self._rebuilt: set[Queue] = set()
        self._warned: set[str] = set()
        self._owned: dict[tuple[bytes, int], Queue | None] = {}
        self._others_retired = False
        self._holes = queue_units.Holes()
        self._holes_from = 0
        """All damage from this log offset on, up to where `apply` is, is in `_holes`."""
        self._missing = queue_units.MissingUnits(root, feed, self._own, self._add_hole)
        self._known: Tails | None = None
        """The writer's snapshot of where queues end, from a hole on until all before it is here."""
        self._watch = QueueWatch(files)
        self._lost: dict[Queue, str] = {}

    # Resuming

    def resume_from(self) -> int:
        """Drops units that nothing vouches for, rebuilds queues that are not whole, syncs."""
        limits = self._feed.limits()
        self._ends, self._rebuilt, self._broken, self.applied = {}, set(), set(), 0
        self.drop_removed()
        queues = [queue for queue in self.files.queues() if self._shard.owns(queue)]
        vouched = None
        if queues:  # None at all: somebody deleted them, or there was no message yet.
            vouched = progress.vouched_for_shard(self._root, *self._shard)
        elif not self.files.root.is_dir() and progress.vouched_for_shard(self._root, *self._shard):
            found = fields(folder=self.files.root)
            log.warning("all queues are lost: they are made anew from the log", extra=found)
        broken = {
            queue for queue in progress.load_unfinished(self._root) if self._shard.owns(queue)
        }
        if vouched is None:
            vouched = self._covered(
                [queue for queue in queues if queue not in broken], limits.readable, broken
            )
        start = min(max(vouched, limits.min_offset), limits.readable)
        late: dict[Queue, int] = {}
        for queue in queues:
            if queue not in broken:
                self._cut(queue, start, broken, late)
        for lacking in (self._missing.at_ends(start, self._ends), self._missing.before_first(late)):
            for queue, why in lacking.items():
                self._report(queue, why)
            broken |= lacking.keys()
        self.applied = self._holes_from = start
        if broken:
            self._rebuild(broken, start)
        self._fill_ends()
        self.files.make_root()
        self.files.sync()
        self._watch.begin()
        return start

    def drop_removed(self) -> None:
        """Deletes own queues of removed topics, unless they hold units of a new topic already."""
        removed = self._feed.removed
        if not removed.topics:
            return
        for queue in self.files.queues():
            horizon = removed.horizon(queue.topic)
            if horizon and self._shard.owns(queue) and self._physical_end(queue) <= horizon:
                self.files.remove(queue)
                self._ends.pop(queue, None)
                self._broken.discard(queue)

    def _physical_end(self, queue: Queue) -> int:
        """The log offset after a queue's last record; a queue whose files are broken has a later
        one, and is made anew."""
        known = self._ends.get(queue)
        try:
            return (known or self.files.last_good(queue, _ANY_OFFSET)).physical_end
        except QueueBrokenError:
            return _ANY_OFFSET

    def _covered(self, queues: list[Queue], readable: int, broken: set[Queue]) -> int:
        """The smallest log offset that the queues' last good units cover; 0 without any queue."""
        covered: list[int] = []
        for queue in queues:
            try:
                end = self.files.last_good(queue, readable)
                if end.end is not None and self._is_logged(
                    queue, end.end - 1, self.files.unit(queue, end.end - 1)
                ):
                    covered.append(end.physical_end)
                else:
                    covered.append(0)
            except QueueBrokenError as error:
                self._report(error.queue, error.why)
                broken.add(queue)
        return max(min(covered, default=0), 0)

    def _is_logged(self, queue: Queue, position: int, unit: QueueUnit) -> bool:
        """Whether a unit names a record of its queue; an expired record is believed.

        So is one whose checksum alone does not agree: its unit is right, and readers see the error.
        """
        try:
            record = self._feed.log.record_at(unit.physical_offset)
        except NotFound:
            return unit.physical_offset < self._feed.limits().min_offset
        except StoreDamaged:
            torn = self._feed.log.peek(unit.physical_offset)
            return isinstance(torn, codec.Torn) and torn.kind == "bad_crc"
        if is_lmq(queue.topic):
            place = lmq_offsets(record.topic, record.properties).get(queue.topic)
            return (place, record.size) == (position, unit.size)
        # A position below the record's offset is a queue whose offsets once jumped.
        found = (record.topic, record.head.queue_id, record.size)
        return found == (queue.topic, queue.queue_id, unit.size) and (
            record.head.queue_offset in (0, position) or position < record.head.queue_offset
        )

    def _cut(self, queue: Queue, limit: int, broken: set[Queue], late: dict[Queue, int]) -> None:
        """`late` gets the log offset of the first unit of a queue that does not begin at 0."""
        try:
            end, first = self.files.cut(queue, limit, self._is_logged)
        except QueueBrokenError as error:
            self._report(queue, error.why)
            broken.add(queue)
        else:
            if end.end is not None:
                self._ends[queue] = end
                if first:
                    late[queue] = self.files.unit(queue, first).physical_offset

    def _rebuild(self, queues: set[Queue], stop: int) -> None:
        """Makes whole queues anew by a walk of the log up to `stop`, and syncs.

        A note names them meanwhile: after a kill in the middle nothing vouches for half a queue.
        """
        progress.save_unfinished(self._root, self._slot, queues)
        for queue in queues:
            self.files.remove(queue)
            self._ends.pop(queue, None)
        self._rebuilt |= queues
        self._watch.trimmed()  # retention may have taken their first records
        self._holes_from = min(self._holes_from, self._feed.limits().min_offset)
        for part in self._feed.past_damage(self._feed.limits().min_offset, stop):
            if isinstance(part, Damage):
                self._add_hole(part)
            else:
                self._place(DispatchRequests(part, self._delay_levels_ms), only=queues)
        self._feed.check()
        self.files.sync()
        progress.save_unfinished(self._root, self._slot, set())

    # Applying

    def apply(self, requests: DispatchRequests) -> None:
        """Writes each queue's new units in one run. Nothing is remembered until all is written."""
        self._broken |= self._place(requests, without=self._broken)
        if self._broken:
            self._rebuild(self._broken, self.applied)
            self._broken = self._place(requests, only=self._broken)
        columns = requests.columns
        self.applied = columns.end
        self._fill_ends()

    def pass_over(self, hole: Damage) -> None:
        """As `Handler` has it. The places of its messages get units when later ones come, or when
        the writer is known to have had no later ones."""
        self._add_hole(hole)
        self.applied = hole.resumed_at
        self._fill_ends()

    def _add_hole(self, hole: Damage) -> None:
        self._holes.add(hole)
        self._known = load_tails(self._root)

    def apply_few(self, records: Sequence[codec.Record]) -> bool:
        """As `apply`, when each record is the next one of a queue that has units already."""
        if self._broken or self._multi_dispatch or self._known is not None:
            return False
        ends: dict[Queue, QueueEnd] = {}
        units: list[tuple[Queue, int, bytes]] = []
        removed = self._feed.removed
        for record in records:
            head = record.head
            if removed.topics and head.physical_offset < removed.horizon(record.topic):
                continue
            queue = self._own(record.topic.encode(), head.queue_id)
            kind = head.sys_flag & codec.TRANSACTION_MASK
            if queue is None or (kind and kind != codec.TRANSACTION_COMMIT):
                continue
            code = codec.unit_tags_code(record, self._delay_levels_ms)
            if code is None:
                continue
            state = ends.get(queue) or self._ends.get(queue, _NO_UNITS)
            if state.end != head.queue_offset or head.physical_offset < state.physical_end:
                return False
            unit = QueueUnit(head.physical_offset, record.size, code)
            units.append((queue, state.end, QUEUE_UNIT.pack(unit)))
            ends[queue] = QueueEnd(state.end + 1, head.physical_offset + record.size)
        try:
            for queue, position, data in units:
                self.files.write_unit(queue, position, data)
        except FileNotFoundError:
            return False
        self._ends.update(ends)
        self.units += len(units)
        last = records[-1]
        self.applied = last.physical_offset + last.size
        return True

    def _place(
        self,
        requests: DispatchRequests,
        only: Set[Queue] | None = None,
        without: Set[Queue] = frozenset(),
    ) -> set[Queue]:
        """Places units of own queues, or of some; returns the queues that must be rebuilt."""
        plans: list[tuple[Queue, QueuePlan]] = []
        unequal: set[Queue] = set()
        for group in self._groups(requests):
            queue = group.queue
            if queue in without or (only is not None and queue not in only):
                continue
            try:
                state, plan = self._planned(group)
                if plan.repeated and queue not in self._rebuilt:
                    self._compare(queue, state, group.batch.units[: plan.repeated])
                self.files.write(queue, plan.start, plan.units)
            except (QueueBrokenError, FileNotFoundError) as error:
                self._report(queue, str(error))
                unequal.add(queue)
            else:
                plans.append((queue, plan))
        for queue, plan in plans:
            if len(plan.units):
                self._ends[queue] = plan.end
                self.units += len(plan.units)
        return unequal

    def _groups(self, requests: DispatchRequests) -> Iterator[queue_units.UnitGroup]:
        yield from queue_units.unit_groups(requests, self._own, self._feed.removed)
        if self._multi_dispatch:
            yield from queue_units.lmq_groups(requests, self._own, self._feed.removed)

    def _planned(self, group: queue_units.UnitGroup) -> tuple[QueueEnd, QueuePlan]:
        """The queue's end, and what goes there, once damaged messages before it have their units.

        Raises QueueBrokenError, OSError.
        """
        state = self._ends.get(group.queue, _NO_UNITS)
        plan = group.plan(state, self.files.units_per_file)
        gap = queue_units.gap_before(state, group.batch) if plan.has_gap else None
        if gap is not None:
            self._know_holes(gap.begin)
            state = self._fill(group.queue, state, gap)
            plan = group.plan(state, self.files.units_per_file)
        if plan.has_gap:
            queue, lost = group.queue, "retention deleted records before they were dispatched"
            if self._is_expired(state):
                raise QueueBrokenError(queue, lost)
            self._warn(queue.topic, f"queue {queue.queue_id} misses units before {plan.end.end}")
        return state, plan

    def _know_holes(self, begin: int) -> None:
        """Reads the log from `begin` on for damage that an earlier process, or nobody, has met."""
        begin = max(begin, self._feed.peek().min_offset)
        if begin < self._holes_from:
            for hole in self._feed.holes(begin, self._holes_from):
                self._holes.add(hole)
            self._holes_from = begin

    def _fill(self, queue: Queue, state: QueueEnd, gap: queue_units.MissingMessages) -> QueueEnd:
        """Puts units that name damaged bytes in the places of their messages, so that all later
        ones keep their numbers."""
        units = self._holes.units(gap)
        if units is None or state.end is None:
            return state
        return self._write_holes(queue, state.end, units)

    def _fill_ends(self) -> None:
        """As `_fill`, at the ends of queues: a reader is told there what it does not get."""
        known = self._known
        if known is None or self.applied < known.at:
            return
        for queue, end in self._feed.removed.next_offsets(known.at, known.next_offset).items():
            state = self._ends.get(queue)
            if state is None or state.end is None or queue in self._broken:
                continue
            gap = queue_units.MissingMessages(state.physical_end, known.at, end - state.end)
            units = self._holes.units(gap) if gap.missing > 0 else None
            if units is not None:
                self._ends[queue] = self._write_holes(queue, state.end, units)
                self.units += len(units)
        self._known = None

    def _write_holes(self, queue: Queue, position: int, units: NDArray[Any]) -> QueueEnd:
        self.files.write(queue, position, units)
        last = units[-1]
        end = int(last["physical_offset"]) + int(last["size"])
        return QueueEnd(position + len(units), end)

    def _is_expired(self, state: QueueEnd) -> bool:
        """True if a queue has units and the log has none of their records any more.

        Such a queue can begin anew. A broker appends after its last unit whatever comes, so that
        each later unit has a number that its record does not have.
        """
        return state.end is not None and state.physical_end <= self._feed.peek().min_offset

    def _own(self, topic: bytes, queue_id: int) -> Queue | None:
        """The queue, if it is ours and its topic can be a folder."""
        try:
            return self._owned[topic, queue_id]
        except KeyError:
            queue = Queue(topic.decode(), queue_id)
            if not is_folder_name(queue.topic):
                self._warn(queue.topic, "cannot be a folder, its records get no queue")
            elif self._shard.owns(queue):
                self._owned[topic, queue_id] = queue
                return queue
            self._owned[topic, queue_id] = None
            return None

    def _compare(self, queue: Queue, state: QueueEnd, units: NDArray[Any]) -> None:
        """Raises QueueBrokenError unless the queue holds units that were dispatched before."""
        assert state.end is not None
        bases = self.files.bases(queue)
        stored = self.files.read(queue, bases[0], state.end - bases[0])
        at = np.searchsorted(stored["physical_offset"], units["physical_offset"])
        if not np.array_equal(stored[np.minimum(at, len(stored) - 1)], units):
            raise QueueBrokenError(queue, "has other units than the log")

    def messages_by_topic(self) -> dict[str, int]:
        """The ends of the queues of each topic, added up."""
        sums: dict[str, int] = {}
        for queue, state in self._ends.items():
            sums[queue.topic] = sums.get(queue.topic, 0) + (state.end or 0)
        return sums

    def settle(self) -> None:
        """Nothing waits: `apply` writes at once."""

    # Syncing

    def flush(self) -> int:
        """Syncs what was written; other numbers of workers are forgotten when all of ours run."""
        applied = self.applied
        self.files.sync()
        if not self._others_retired:
            self._others_retired = progress.retire_other_counts(self._root, self._shard.total)
        return applied

    def trim(self, min_offset: int) -> None:
        """Deletes the expired files of all queues that have more than one."""
        self._watch.trimmed()
        for queue, state in self._ends.items():
            if state.end is not None and state.end > self.files.units_per_file:
                try:
                    self.files.trim(queue, min_offset)
                except QueueBrokenError as error:
                    # Nothing was deleted; the next batch for this queue rebuilds it.
                    self._report(queue, error.why)
                    self._broken.add(queue)

    # Whether the files stay

    def lost_files(self) -> str:
        self._lost = self._watch.look(self._ends)
        if not self._lost:
            return ""
        queue, why = next(iter(self._lost.items()))
        more = f", and {len(self._lost) - 1} queues more" if self._lost.keys() - {queue} else ""
        return f"queue {queue.queue_id} of {queue.topic}: {why}{more}"

    def disown_lost(self) -> None:
        progress.save_unfinished(self._root, self._slot, self._lost.keys() | self._broken)

    # Reporting

    def _warn(self, topic: str, why: str) -> None:
        """Once a topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            found = fields(topic=ascii(topic[:80]), why=why)
            log.warning("not all records of a topic are in queues", extra=found)

    @staticmethod
    def _report(queue: Queue, why: str) -> None:
        found = fields(topic=queue.topic, queue_id=queue.queue_id, why=why)
        log.warning("rebuilding a queue", extra=found)


def has_light_queues(root: Path) -> bool:
    """Whether a broker made queues of records that have queues of their own, too."""
    return any(is_lmq(entry.name) for entry in sorted_entries(root / CONSUME_QUEUE_DIR))


def make_queues(
    root: Path, settings: Settings, feed: Feed, temp: Path, shard: Shard
) -> ConsumeQueues:
    """The queues of a store. Their files have the size that they have, else as settings say."""
    file_bytes = found_file_bytes(root, settings.queue_file_bytes)
    open_max = max(raise_file_limit() // STORE_FILES_SHARE, OPEN_FILES_MIN)
    multi_dispatch = settings.enable_multi_dispatch or has_light_queues(root)
    files = QueueWriter(root, file_bytes, temp, open_max)
    return ConsumeQueues(root, files, feed, shard, settings.delay_levels_ms, multi_dispatch)


def main(arguments: list[str] | None = None) -> int:
    parser = parser_for("workers.consume_queue", __doc__)
    parser.add_argument("--shard", type=int, required=True, metavar="I")
    parser.add_argument("--shards", type=int, required=True, metavar="N")
    options = parser.parse_args(arguments)
    if not 0 <= options.shard < options.shards:
        parser.error(f"shard {options.shard} of {options.shards}: the first is 0")
    shard = Shard(options.shard, options.shards)
    slot = queue_slot(*shard)

    def make_handler(root: Path, settings: Settings, feed: Feed) -> ConsumeQueues:
        return make_queues(root, settings, feed, run_dir(root) / f"{slot}.new", shard)

    job = WorkerJob(
        slot=slot,
        title=f"keelog-queue-{shard.number}",
        make_handler=make_handler,
        flush_pace=queue_pace,
        wakes_readers=True,
        clashing="queue-*",
        shard=shard.number,
        pace=TurnPace(batch_bytes=TURN_BYTES),
    )
    return run_worker(options, job)


if __name__ == "__main__":
    leave(main())
