"""Each queue's next offset, from the records of the log."""

import numpy as np

from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.names import SCHEDULE_TOPIC
from protocol.record.codec import TRANSACTION_COMMIT, TRANSACTION_MASK
from protocol.record.columns import Ints, RecordColumns, group_topics

SETTLE_RECORDS = 200_000
"""So many records are held back, so that a queue is looked up once for all of them."""


class TailNotes:
    """Moves each queue's next offset after its last record. `settle` brings `tails` up to date."""

    def __init__(self, tails: dict[Queue, int], removed: Removed = NOTHING_REMOVED) -> None:
        self._tails = tails
        self._removed = removed
        self._topics: dict[str, int] = {}
        self._keys: list[Ints] = []
        self._offsets: list[Ints] = []
        self._count = 0

    def add(self, columns: RecordColumns) -> None:
        """Takes records in log order; those without a queue unit do not count."""
        columns = self._removed.dispatched(columns)
        if not len(columns):
            return
        names, topic_id = group_topics(columns)
        if SCHEDULE_TOPIC in names:
            rows = np.flatnonzero(DispatchRequests(columns).is_queued)
        else:
            kind = columns.sys_flag & TRANSACTION_MASK
            rows = np.flatnonzero((kind == 0) | (kind == TRANSACTION_COMMIT))
        ids = np.array([self._topics.setdefault(name, len(self._topics)) for name in names])
        self._keys.append((ids[topic_id[rows]] << 32) + columns.queue_id[rows])
        self._offsets.append(columns.queue_offset[rows])
        self._count += len(rows)
        if self._count >= SETTLE_RECORDS:
            self.settle()

    def settle(self) -> None:
        """The last record of a queue counts, also where its offsets once fell back."""
        if not self._count:
            return
        key, offset = np.concatenate(self._keys), np.concatenate(self._offsets)
        last, at = np.unique(key[::-1], return_index=True)
        names = list(self._topics)
        following = (offset[::-1][at] + 1).tolist()
        for topic, queue_id, number in zip(
            (last >> 32).tolist(), (last & 0xFFFFFFFF).tolist(), following, strict=True
        ):
            self._tails[Queue(names[topic], queue_id)] = number
        self._keys, self._offsets, self._count = [], [], 0
