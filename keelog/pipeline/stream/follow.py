"""The stores of a streaming query, kept open: which queues there are and where they end, again and
again. An idle query asks a hundred times a second."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keelog.pipeline.bounds import Extent, QueueAt, check_beginnings
from keelog.pipeline.errors import StoreUnreadable
from keelog.pipeline.options import SourceOptions
from keelog.pipeline.plan.offsets import Generations, TopicAt
from keelog.pipeline.resolve import QueueSpan, bound_offsets, check_topics, parts_of_rows
from keelog.pipeline.stores.access import StoreAt, Way
from keelog.pipeline.stores.opening import open_selected
from keelog.pipeline.stream.ranges import QueueRange
from keelog.pipeline.task_spec import Part
from node.store.queues import QueueReader
from protocol.derived.file_layouts import FILLER_SIZE
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR
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
COME_BACK_S_MAX = 60.0
"""How long a batch that is planned waits for queue workers that are starting again."""
_LOOK_AGAIN_S = 0.02

Fingerprint = tuple[tuple[str, int, int], ...]


class _Short(NamedTuple):
    """A queue that is shorter than it was: where the log ended when that was noticed, and when."""

    log_end: int
    since: float


class FollowedStore:
    """One of them. A store at rest that has changed is opened again, which finds its ends."""

    def __init__(self, at: StoreAt, options: SourceOptions) -> None:
        self._at = at
        self._options = options
        self._print = _fingerprint(at)
        self.store = open_selected(at, options)
        self.extents: dict[QueueAt, Extent] = {}
        self.generations: dict[TopicAt, int] = {}
        self._queues: list[Queue] = []
        self._mark: tuple[int, ...] = ()
        self._moved_at = self._listed_at = float("-inf")
        self._short: dict[Queue, _Short] = {}

    def look(self, now: float, thorough: bool = False) -> bool:
        """Takes in what is new; whether `extents` may have changed."""
        is_time_to_list = thorough or now - self._listed_at >= LIST_S
        if is_time_to_list:
            self._open_anew_if_changed()
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
        before = self.extents, self.generations
        self.extents, self.generations = (
            self._look_at_queues(),
            {
                TopicAt(topic, self.store.at.node): one.horizon
                for topic, one in self.store.removed.topics.items()
                if one.horizon
            },
        )
        return before != (self.extents, self.generations)

    def _look_at_queues(self) -> dict[QueueAt, Extent]:
        extents: dict[QueueAt, Extent] = {}
        for topic, queue_id in self._queues:
            reader = self.store.queue(topic, queue_id)
            if reader is not None:
                queue = QueueAt(topic, self.store.at.node, queue_id)
                extents[queue] = Extent(queue, reader.min_offset, reader.max_offset)
        return extents

    def _open_anew_if_changed(self) -> None:
        """A store that no node runs is copied to, or written by a broker."""
        if self.store.epoch:
            return
        now = _fingerprint(self._at)
        if now != self._print:
            before, self.store = self.store, open_selected(self._at, self._options)
            before.close()
            self._print = now

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
        queue = Queue(at.topic, at.queue_id)
        if self.store.is_resuming(queue):
            self._short.pop(queue, None)
            return True
        now = time.monotonic()
        known = self._short.setdefault(queue, _Short(self.store.log.end, now))
        return self.store.followed(queue) < known.log_end or now - known.since < GRACE_S

    def is_back(self, at: QueueAt) -> None:
        """A queue is as long as it was: the next time that it is short is another one."""
        if self._short:
            self._short.pop(Queue(at.topic, at.queue_id), None)


class QueueSnapshot(NamedTuple):
    """The queues that are followed, as they were at one moment."""

    extents: Mapping[QueueAt, Extent]
    generations: Generations

    def highs(self) -> dict[QueueAt, int]:
        """Where each queue ends."""
        return {queue: extent.high for queue, extent in self.extents.items()}


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
        check_topics(stores, self._options)
        extents = [look.extents[queue] for queue in sorted(look.extents)]
        readers = {queue: self._stores[queue.node].reader(queue) for queue in look.extents}
        found = [(self._stores[one.queue.node].store, readers[one.queue]) for one in extents]
        bound = self._options.selection.start
        answer = bound_offsets(bound, "startingOffsets", extents, found, len(stores))
        check_beginnings(extents, answer)
        return answer

    def record_sizes(self, queue: QueueAt, start: int, end: int) -> Ints:
        """Bytes of the records of messages [start, end), 0 for a filler's."""
        size = self._stores[queue.node].reader(queue).units(start, end - start)["size"]
        return np.where(size == FILLER_SIZE, 0, size).astype(np.int64)

    def parts(self, ranges: Iterable[QueueRange]) -> list[Part]:
        """The parts of a batch."""
        rows = [
            QueueSpan(
                self._stores[queue.node].store, self._stores[queue.node].reader(queue), start, end
            )
            for queue, start, end in ranges
        ]
        stores = [one.store for one in self._opened()]
        return list(parts_of_rows(rows, stores, self._options))

    def close(self) -> None:
        """Closes all stores."""
        for one in self._stores.values():
            one.store.close()
        self._stores.clear()


def _fingerprint(at: StoreAt) -> Fingerprint:
    """Changes when the log of a store at rest may have changed; empty for a node's.

    It is taken before the store is opened: what is written meanwhile is seen the next time.
    """
    if at.way is Way.NODE:
        return ()
    if at.way is Way.OBJECTS:
        return (("", 0, int(time.monotonic() / OBJECTS_S)),)
    try:
        with os.scandir(Path(at.root) / COMMIT_LOG_DIR) as entries:
            stats = [(entry.name, entry.stat()) for entry in entries]
    except FileNotFoundError:
        # A segment was removed just now, or all of the store: opening it finds out.
        return ()
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))
