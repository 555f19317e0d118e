"""Which queues may have grown: what queue workers announce, and what their pages say when a hint
was lost.

A hint is a ring of a datagram bell with msgpack [shard, number, [[topic, queue id], ...]];
an empty list stands for every queue. Each worker also counts its hints in its page, so that a
lost one is missed.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgpack

from node.runtime.wakeup import DatagramWakeup
from protocol.ids import Queue

GRACE_S = 0.002
"""How long a hint may be under way before it counts as lost."""


class News(NamedTuple):
    """Where to look: single queues, and shards of which every queue may have grown."""

    queues: set[Queue]
    shards: set[int]

    def __bool__(self) -> bool:
        return bool(self.queues or self.shards)


class HintCount:
    """The hints of one worker, counted: which have come and whether one is missing. No I/O."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._differs_since: float | None = None

    def forget(self) -> None:
        """Nobody listened for a while: the next comparison finds that something is missing."""
        self._number = None
        self._differs_since = float("-inf")

    def receive(self, number: int) -> bool:
        """Takes the hint of a number; whether none is missing before it."""
        follows = self._number is not None and number == self._number + 1
        self._number = number
        return follows

    def is_up_to_date(self, published: int) -> bool:
        """Whether every hint that the worker sent has come."""
        return published == self._number

    def is_missing(self, published: int, now: float) -> bool:
        """Whether a hint is lost, as the worker sent `published` of them; True once for each."""
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
    """What a queue worker says: its shard, the hint's number, the queues that grew, [] for all."""

    shard: int
    number: int
    queues: list[Queue]


def parse_hint(message: bytes) -> Hint | None:
    """None for what is no hint."""
    try:
        shard, number, named = msgpack.unpackb(message, max_ext_len=0)
        if not isinstance(named, list):
            return None
        queues = [Queue(str(topic), int(queue_id)) for topic, queue_id in named]
        return Hint(int(shard), int(number), queues)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return None


class Hints:
    """The rings of all queue workers. They are read only while somebody waits for those."""

    def __init__(self, bell: DatagramWakeup, shards: int) -> None:
        self._bell = bell
        self._counts = [HintCount() for _ in range(shards)]
        self._listens = False

    def listen(self, wanted: bool) -> bool:
        """Whether rings are hints; True when that has changed.

        What came while nobody listened counts as lost.
        """
        if wanted == self._listens:
            return False
        self._listens = wanted
        if wanted:
            for count in self._counts:
                count.forget()
        return True

    def collect(self, published: Callable[[], list[int]], now: float, is_rung: bool = True) -> News:
        """What has come, and what is missing of the hints that the workers have sent.

        Nothing while nobody listens: then a ring was the writer's, and its page says more.
        """
        news = News(set(), set())
        heard = self._bell.rings() if is_rung else []
        if not self._listens:
            return news
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
        """Whether every hint that the workers have sent has come."""
        return all(
            count.is_up_to_date(number)
            for count, number in zip(self._counts, published, strict=True)
        )

    def close(self) -> None:
        """Gives the bell back."""
        self._bell.close()
