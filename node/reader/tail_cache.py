"""The newest records of the log, by queue: a pull gets them before a queue worker places them.

A record contains its queue and its number there. So a pull at the end of its queue is answered from
the log, and all others from the queue's files. In any unusual case the cache is empty: pulls wait
for the files.
"""

from collections import deque
from typing import NamedTuple

from node.store.opening import RunningStore
from node.store.query.pull import PullRequest, PullStatus
from protocol.errors import MqError
from protocol.ids import Queue
from protocol.names import SCHEDULE_TOPIC
from protocol.record import codec
from protocol.record.check import SealedRecord, sealed_at

TURN_BYTES_MAX = 64 * 1024
TURN_RECORDS_MAX = 128
"""If the log grows by more between two turns, a queue worker's batches are cheaper."""
TAIL_RECORDS_MAX = 1_024
TAIL_BYTES_MAX = 256 * 1024
"""The lag of the queue workers up to which the cache works."""
KEPT_RECORDS_MAX = 128
KEPT_BYTES_MAX = 64 * 1024
"""What the cache keeps of records that the queues' files have too."""
ENDS_MAX = 10_000
"""Queues whose end is kept; beyond it ends without records are dropped: a look at files more."""
RETRY_S = 0.1
"""The pause after the cache gave up, before it follows the log again."""


class Taken(NamedTuple):
    """What a pull gets from the cache: as `PulledRecords`, but for few records."""

    status: PullStatus
    next_begin_offset: int
    max_offset: int
    records: list[bytes]

    @property
    def is_all(self) -> bool:
        """True if it goes to the end of the queue."""
        return self.next_begin_offset == self.max_offset


class TailCache:
    """The records of [`begin`, `end`) of the log, while `follows`; the queues' files have at least
    all below `begin`. Raises nothing: records that it cannot read come from the files."""

    def __init__(self) -> None:
        self.follows = False
        self.begin = 0
        self.end = 0
        self._epoch = 0
        self._queues: dict[Queue, deque[SealedRecord]] = {}
        self._order: deque[tuple[int, Queue]] = deque()
        """Where each record ends, in the order of the log."""
        self.ends: dict[Queue, int] = {}
        """By queue, the number after its last message; without those that only the files have."""
        self.not_before = 0.0

    def stop(self, not_before: float = 0.0) -> None:
        """Empties the cache; `extend` begins again, not before that time."""
        self.follows = False
        self.end = 0
        self.not_before = not_before
        self._queues, self.ends = {}, {}
        self._order.clear()

    def is_at_end(self, store: RunningStore) -> bool:
        """True if it, or else the queues' files, have the whole log, as of the last `refresh`."""
        if not self.follows:
            return store.followed >= store.log.end
        return self.end == store.log.bounds.end and self._epoch == store.epoch

    def tells_end(self, store: RunningStore, queue: Queue) -> bool:
        """True if it and a queue's files have all its messages, as of the last `refresh`."""
        if store.damaged_at(queue) is not None:
            return False
        return not store.is_behind(queue) or (self.follows and self.is_at_end(store))

    def extend(self, store: RunningStore, now: float) -> set[Queue]:
        """Reads the new records, as of the store's last `refresh`; returns their queues."""
        followed, log = store.followed, store.log
        if self.follows and (store.epoch != self._epoch or followed < self.begin):
            # Recovery cut the log, or a worker takes back what the files had.
            self.stop()
        if not self.follows:
            if now < self.not_before or not store.knows_log:
                return set()
            self._epoch = store.epoch
            self.begin = self.end = followed
            self.follows = True
        self._forget_old(followed)
        end = log.bounds.end
        if end == self.end:
            return set()
        found = self._read(store, end)
        if found is None:
            self.stop(now + RETRY_S)
        return found or set()

    def _read(self, store: RunningStore, end: int) -> set[Queue] | None:
        """Takes in the records up to the log's end; None if the cache must give up."""
        grown: set[Queue] = set()
        is_large = not 0 < end - self.end <= TURN_BYTES_MAX
        if is_large or end - self.begin > TAIL_BYTES_MAX:
            return None
        try:
            records = store.log.few(self.end, end, TURN_RECORDS_MAX, sealed_at)
        except MqError:
            return None
        if records is None or len(self._order) + len(records) > TAIL_RECORDS_MAX:
            return None
        if not store.is_current:
            return None  # these may be records of another epoch by now
        for record in records:
            queue, number = record.queue, record.number
            if not _is_queued(record) or store.removed.hides(queue, record.offset):
                continue
            if self.ends.get(queue, number) != number:
                return None
            grown.add(queue)
            self.ends[queue] = number + 1
            self._queues.setdefault(queue, deque()).append(record)
            self._order.append((record.offset + len(record.raw), queue))
        self.end = end
        return grown

    def _forget_old(self, followed: int) -> None:
        """Drops the oldest records that the queues' files have; keeps some for slow consumers."""
        order = self._order
        while order and order[0][0] <= followed:
            end, queue = order[0]
            if len(order) <= KEPT_RECORDS_MAX and self.end - end <= KEPT_BYTES_MAX:
                break
            order.popleft()
            self.begin = end
            records = self._queues[queue]
            records.popleft()
            if not records:
                del self._queues[queue]
        if len(self.ends) > ENDS_MAX:
            self.ends = {queue: records[-1].number + 1 for queue, records in self._queues.items()}

    def first_of(self, queue: Queue) -> int | None:
        """The number of the queue's first message here."""
        records = self._queues.get(queue)
        return None if records is None else records[0].number

    def record(self, queue: Queue, number: int) -> bytes | None:
        """A message's record; None if it is not here."""
        records = self._queues.get(queue)
        if records is None or not 0 <= number - records[0].number < len(records):
            return None
        return records[number - records[0].number].raw

    def take(self, queue: Queue, number: int, request: PullRequest) -> Taken | None:
        """The result of a pull at `number`, under the limits of memory; None if it is not here."""
        records = self._queues.get(queue)
        if records is None:
            return None
        first = records[0].number
        if not first <= number < first + len(records):
            return None
        most = request.hot
        taken: list[bytes] = []
        size = 0
        for row in range(number - first, len(records)):
            raw = records[row].raw
            if request.tags is None or request.tags.takes_record(raw):
                if taken and (len(taken) >= most.records or size + len(raw) > most.bytes):
                    break
                taken.append(raw)
                size += len(raw)
            number += 1
        status = PullStatus.FOUND if taken else PullStatus.NO_MATCHED_MESSAGE
        return Taken(status, number, first + len(records), taken)


def _is_queued(record: SealedRecord) -> bool:
    """True if a queue worker makes a unit of it."""
    kind = record.sys_flag & codec.TRANSACTION_MASK
    if kind and kind != codec.TRANSACTION_COMMIT:
        return False
    if record.queue.topic != SCHEDULE_TOPIC:
        return True
    whole = codec.decode(record.raw, 0)
    return isinstance(whole, codec.Record) and codec.unit_tags_code(whole) is not None
