"""Bounds and times of queues, for the replies to admin tools."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from node.reader.answers import bounds_of, look_again, time_at
from node.reader.pull_desk import PullDesk
from node.store.query.look_up import Boundary, offset_by_time
from protocol.ids import Queue

T = TypeVar("T")


class StoredOffsets(NamedTuple):
    """The first offset that a queue still has, and that of its next message."""

    min: int
    max: int


class QueueFacts:
    """Asks the store as it is now. `desk` follows the log, `now` makes it look."""

    def __init__(self, desk: PullDesk, now: Callable[[], float]) -> None:
        self.desk = desk
        self._now = now

    def look(self) -> None:
        """Takes in how far the log has grown. Call it before questions that belong together."""
        self.desk.see_end(self._now())

    def end(self) -> int:
        """Where the log ends."""
        self.look()
        return self.desk.store.log.end

    def bounds(self, topic: str, queue_id: int) -> StoredOffsets:
        """Zeros for a queue that does not exist. Raises StoreDamaged."""
        desk, queue = self.desk, Queue(topic, queue_id)
        return StoredOffsets(
            *look_again(desk.store, lambda: bounds_of(desk.store, desk.tail, queue))
        )

    def time_at(self, topic: str, queue_id: int, offset: int) -> int:
        """When a message was stored, in ms; NO_TIME where there is none that can be read."""
        desk = self.desk
        return time_at(desk.store, desk.tail, Queue(topic, queue_id), offset)

    def offset_at(self, topic: str, queue_id: int, timestamp: int) -> int:
        """The first offset of a store time in ms; the queue's end for a negative one."""
        if timestamp < 0:
            return self.bounds(topic, queue_id).max
        desk = self.desk

        def look() -> int:
            queue = desk.store.queue(topic, queue_id)
            return offset_by_time(desk.store.log, queue, timestamp, Boundary.LOWER)

        return look_again(desk.store, look)
