"""Where the next records go: their log offset, their store time, their offset in each queue.

Every way of making a record's bytes (`node.writer.append_ways`) takes its places from here, so that
no two ways can disagree about the next one.
"""

from collections.abc import Sequence
from typing import NamedTuple

from node.store.checkpoints import Tails
from node.writer.append_request import AppendRequest
from node.writer.log.commit_log import CommitLog
from protocol.ids import Queue, queue_of


class QueueRows(NamedTuple):
    """Records of one request for one queue; the queue is -1 while it has to be chosen."""

    topic: str
    queue_id: int
    rows: int


Places = list[tuple[int, int]]
"""Of each part, in order: the queue's id, and the offset of the first record there."""


class Placement:
    """Owns the next offset of every queue. Not thread-safe: the writer's one thread calls it."""

    def __init__(
        self,
        log: CommitLog,
        tails: dict[Queue, int],
        last_store_timestamp: int = 0,
        last_record_offset: int = 0,
    ) -> None:
        self.log = log
        self.tails = tails
        self.last_store_timestamp = last_store_timestamp
        self.last_record_offset = last_record_offset
        self.records = 0
        """How many this process has appended."""

    def store_time(self, now_ms: int) -> int:
        """The time that the next records get: store times never run backwards."""
        return max(self.last_store_timestamp, now_ms)

    def place(
        self, request: AppendRequest, start: int, store_time: int, queue: Queue, first: int
    ) -> None:
        """Gives a request of one queue its places: log offset `start`, queue offset `first`.

        `write` has to follow.
        """
        topic, queue_id = queue
        self.tails[queue] = first + request.count
        request.physical_offset = start
        request.store_timestamp = store_time
        request.queues = ((topic, queue_id, first, request.count),)

    def place_parts(
        self, request: AppendRequest, start: int, store_time: int, parts: Sequence[QueueRows]
    ) -> Places:
        """As `place`, for a request of any number of queues; returns the parts' places."""
        tails = self.tails
        queues: list[tuple[str, int, int, int]] = []
        places: Places = []
        for topic, queue_id, rows in parts:
            queue = queue_of(topic, queue_id)
            first = tails.get(queue, 0)
            tails[queue] = first + rows
            queues.append((topic, queue_id, first, rows))
            places.append((queue_id, first))
        request.physical_offset = start
        request.store_timestamp = store_time
        request.queues = queues
        return places

    def write(
        self, sealed: bytes | bytearray | memoryview, rows: int, last_at: int, store_time: int
    ) -> None:
        """Appends the records that were placed, of which the last begins at `last_at`.

        Raises OSError when the log cannot be written: the process must end.
        """
        start = self.log.append(sealed)
        self.last_store_timestamp = store_time
        self.last_record_offset = start + last_at
        self.records += rows

    def snapshot(self) -> Tails:
        """The queues' ends as they are now, for our file of them."""
        return Tails(
            self.log.end, dict(self.tails), self.last_record_offset, self.last_store_timestamp
        )
