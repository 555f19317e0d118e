"""Receives the hints of queue workers about queues that have grown, and notices lost ones.

A hint is a datagram of msgpack [shard, number, [[topic, queue id], ...]]; an empty list means every
queue. Each worker also publishes the number of its last hint in its page, which shows a lost one.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgpack

from node.runtime.wakeup import DatagramWakeup
from protocol.ids import Queue

GRACE_S = 0.002
"""A hint that takes longer than this counts as lost."""


class News(NamedTuple):
    """What may have grown: single queues, and all queues of some shards."""

    queues: set[Queue]
    shards: set[int]

    def __bool__(self) -> bool:
        return bool(self.queues or self.shards)


NO_NEWS = News(set(), set())


class HintCount:
    """Counts the hints of one worker, to notice a missing one. No I/O."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._differs_since: float | None = None

    def forget(self) -> None:
        """Call it after a time without listening: the next comparison finds a hint missing."""
        self._number = None
        self._differs_since = float("-inf")

    def receive(self, number: int) -> bool:
        """Counts the hint with this number; True if none is missing before it."""
        follows = self._number is not None and number == self._number + 1
        self._number = number
        return follows

    def is_up_to_date(self, published: int) -> bool:
        """True if every hint that the worker sent has come."""
        return published == self._number

    def is_missing(self, published: int, now: float) -> bool:
        """True, once for each loss, if a hint up to number `published` is lost."""
        if published == self._number:
            self._differs_since = None
            return False
        if self._differs_since is None:
            self._differs_since = now
        if now - self._differs_since < GRACE_S:
            return False
        self._number = published
        self._differs_since = None
        return True


class Hint(NamedTuple):
    """A queue worker's hint: its shard, its number, and the queues that grew; [] for all."""

    shard: int
    number: int
    queues: list[Queue]


def parse_hint(message: bytes) -> Hint | None:
    """Parses a hint; None for anything else."""
    try:
        shard, number, named = msgpack.unpackb(message, max_ext_len=0)
        if not isinstance(named, list):
            return None
        queues = [Queue(str(topic), int(queue_id)) for topic, queue_id in named]
        return Hint(int(shard), int(number), queues)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return None


class Hints:
    """The hints of all queue workers. They count only while a pull waits for the workers."""

    def __init__(self, wakeup: DatagramWakeup, shards: int) -> None:
        self._wakeup = wakeup
        self._counts = [HintCount() for _ in range(shards)]
        self._listens = False

    def listen(self, wanted: bool) -> bool:
        """Begins to listen for hints, or stops; True if that is a change.

        Hints that come while it does not listen count as lost.
        """
        if wanted == self._listens:
            return False
        self._listens = wanted
        if wanted:
            for count in self._counts:
                count.forget()
        return True

    def collect(self, published: Callable[[], list[int]], now: float, is_rung: bool = True) -> News:
        """The queues of the hints that have come, and the shards of those that are lost.

        Empty while it does not listen: then the writer has rung, and its page has the news.
        """
        if not self._listens:
            if is_rung:
                self._wakeup.hush()
            return NO_NEWS
        news = News(set(), set())
        heard = self._wakeup.rings() if is_rung else []
        for message in heard:
            found = parse_hint(message)
            if found is None or not 0 <= found.shard < len(self._counts):
                news.shards.update(range(len(self._counts)))
            elif self._counts[found.shard].receive(found.number) and found.queues:
                news.queues.update(found.queues)
            else:
                news.shards.add(found.shard)
        for shard, (count, number) in enumerate(zip(self._counts, published(), strict=True)):
            if count.is_missing(number, now):
                news.shards.add(shard)
        return news

    def are_up_to_date(self, published: list[int]) -> bool:
        """True if every hint that the workers sent has come."""
        return all(
            count.is_up_to_date(number)
            for count, number in zip(self._counts, published, strict=True)
        )

    def close(self) -> None:
        """Closes the socket."""
        self._wakeup.close()
