"""The stores of a streaming query, kept open: which queues there are and where they end, again and
again. An idle query asks a hundred times a second."""

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from pipeline.bounds import Extent, QueueAt, check_beginnings
from pipeline.errors import StoreUnreadable
from pipeline.options import SourceOptions
from pipeline.resolve import QueueSpan, bound_offsets, check_topics, parts_of_rows
from pipeline.stores.follow_store import FollowedStore, Open
from pipeline.stores.opening import open_selected
from pipeline.stream.ranges import QueueRange
from pipeline.task_spec import Part
from protocol.derived.queue_unit import FILLER_SIZE
from protocol.record.columns import Ints

COME_BACK_S_MAX = 60.0
"""How long a batch that is planned waits for queue workers that are starting again."""
_LOOK_AGAIN_S = 0.02


class QueueSnapshot(NamedTuple):
    """The queues that are followed, as they were at one moment."""

    extents: Mapping[QueueAt, Extent]

    def highs(self) -> dict[QueueAt, int]:
        """Where each queue ends."""
        return {queue: extent.high for queue, extent in self.extents.items()}


class Followed:
    """Opens the stores at the first look. All methods raise what opening and refreshing raises."""

    def __init__(self, options: SourceOptions, open_store: Open | None = None) -> None:
        self._options = options
        self._open_store = open_store or (lambda at: open_selected(at, options))
        self._stores: dict[str, FollowedStore] = {}
        self._look: QueueSnapshot | None = None

    def _opened(self) -> Iterable[FollowedStore]:
        for at in self._options.stores:
            if at.node not in self._stores:
                selection = self._options.selection
                self._stores[at.node] = FollowedStore(at, self._open_store, selection.takes)
        return self._stores.values()

    def look(self) -> QueueSnapshot:
        """The queues as they are now. Cheap when nothing has changed."""
        changed = [one.look(time.monotonic()) for one in self._opened()]
        if any(changed) or self._look is None:
            self._look = QueueSnapshot(
                {queue: extent for one in self._opened() for queue, extent in one.extents.items()}
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
