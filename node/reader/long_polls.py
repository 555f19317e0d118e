"""The pulls that wait for messages, by queue, by peer and by deadline. No clock, sockets or files.

Times are seconds of the caller's clock.
"""

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from node.reader.requests import Pull
from protocol.errors import NodeBusy
from protocol.ids import Queue

HELD_MAX = 50_000
LookKey = tuple[int, str, str, int, int]
_DEAD_MAX = 1_024


@dataclass(slots=True, eq=False)
class Held:
    """A pull that waits.

    `next_offset`: where the next look begins, after the units that were scanned. `answered`: where
    the last answer of a stream ended; `bytes`: the payload of its answers. `undecided_below`: the
    end of the queue is unknown until its worker has come to this log offset; None if the pull only
    waits for messages.
    """

    peer: bytes
    request_id: int
    pull: Pull
    deadline: float
    next_offset: int
    is_over: bool = False
    undecided_below: int | None = None
    answered: int | None = None
    bytes: int = 0
    queue: Queue = field(init=False)
    """The queue that it waits for."""

    def __post_init__(self) -> None:
        self.queue = self.pull.queue

    @property
    def has_moved(self) -> bool:
        """True if messages came that its filter refused."""
        return self.next_offset != self.begin

    @property
    def begin(self) -> int:
        """The queue offset where its next answer begins."""
        return self.pull.offset if self.answered is None else self.answered

    def goes_on(self, next_offset: int, size: int) -> bool:
        """Counts an answer that ends at `next_offset`; True if the stream may have another."""
        self.next_offset = self.answered = next_offset
        self.bytes += size
        request = self.pull.request
        count = next_offset - self.pull.offset
        return count < request.max_messages and self.bytes < request.total_bytes_max

    @property
    def look_key(self) -> LookKey:
        """Pulls of one queue with the same key find the same."""
        pull, request = self.pull, self.pull.request
        return (
            self.next_offset,
            pull.tags_kind,
            pull.tags,
            request.max_messages,
            request.total_bytes_max,
        )

    def look(self) -> Pull:
        """The pull for the next look."""
        if self.next_offset == self.pull.offset:
            return self.pull
        return replace(self.pull, offset=self.next_offset)


class LongPolls:
    """Up to `limit` held pulls. The cost of a removal does not depend on their number."""

    def __init__(self, limit: int = HELD_MAX) -> None:
        self._limit = limit
        self._queues: dict[Queue, dict[Held, None]] = {}
        self._peers: dict[bytes, set[Held]] = {}
        self._times: list[tuple[float, int, Held]] = []
        self._numbers = count()
        self._held = 0
        self._patience: Counter[int] = Counter()
        """How many pulls have which patience, in ms."""
        self.patience_s = 0.0
        """How late the answer to any of the pulls may come; 0 without one."""

    def __len__(self) -> int:
        return self._held

    def add(self, held: Held) -> None:
        """Holds a pull. Raises NodeBusy at the limit."""
        self.check_room()
        self._queues.setdefault(held.queue, {})[held] = None
        self._peers.setdefault(held.peer, set()).add(held)
        heapq.heappush(self._times, (held.deadline, next(self._numbers), held))
        self._held += 1
        self._patience[held.pull.patience_ms] += 1
        self.patience_s = min(self._patience) / 1000

    def check_room(self) -> None:
        """Raises NodeBusy when no further pull can be held."""
        if self._held >= self._limit:
            raise NodeBusy(
                f"{self._held} pulls are held here already", "pull again later, or without wait_ms"
            )

    def queues(self) -> list[Queue]:
        """The queues that pulls wait for."""
        return list(self._queues)

    def waits_for(self, queue: Queue) -> bool:
        """True if a pull waits for this queue."""
        return queue in self._queues

    def of(self, queue: Queue) -> list[Held]:
        """The pulls that wait for this queue, in the order of their arrival."""
        return list(self._queues.get(queue, ()))

    def remove(self, held: Held) -> None:
        """Removes a pull; does nothing if it was removed before."""
        if held.is_over:
            return
        held.is_over = True
        self._held -= 1
        patience_ms = held.pull.patience_ms
        self._patience[patience_ms] -= 1
        if not self._patience[patience_ms]:
            del self._patience[patience_ms]
            self.patience_s = min(self._patience, default=0) / 1000
        of_queue = self._queues[held.queue]
        del of_queue[held]
        if not of_queue:
            del self._queues[held.queue]
        of_peer = self._peers[held.peer]
        of_peer.discard(held)
        if not of_peer:
            del self._peers[held.peer]
        # Removed pulls leave the heap at their deadline, or when they are most of it.
        if len(self._times) > 2 * self._held + _DEAD_MAX:
            self._times = [item for item in self._times if not item[2].is_over]
            heapq.heapify(self._times)

    def forget(self, peer: bytes) -> list[Held]:
        """Removes all pulls of a peer that is gone, and returns them."""
        gone = list(self._peers.get(peer, ()))
        for held in gone:
            self.remove(held)
        return gone

    def take_due(self, now: float) -> Iterator[Held]:
        """Removes the pulls whose deadline has come, and yields them, the earliest first."""
        while self._times and self._times[0][0] <= now:
            held = heapq.heappop(self._times)[2]
            if not held.is_over:
                self.remove(held)
                yield held

    def take_all(self) -> Iterator[Held]:
        """Removes all pulls, and yields them in the order of their deadlines."""
        return self.take_due(float("inf"))

    def next_deadline(self) -> float | None:
        """The earliest deadline; None without a pull."""
        while self._times and self._times[0][2].is_over:
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else None
