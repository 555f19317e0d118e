"""Answers pulls from the tail cache: new pulls and held ones. No sockets, no clock.

A pull that asks for a `stream` stays held after an answer that takes it to the end of its queue:
the consumer need not pull again for each message.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from node.reader.answers import Answer, look_again, tail_answer
from node.reader.long_polls import Held, LongPolls, LookKey
from node.reader.tail_cache import TailCache, Taken
from node.store.opening import RunningStore
from protocol.errors import MqError
from protocol.ids import Queue

HELD_STREAMS_MAX = 40_000
"""While more pulls are held, each gets one answer: streams leave room for pulls that wait."""
Deliver = Callable[[Held, Answer | MqError, Mapping[str, Any]], bool]
"""Sends the answer to a pull, or the reason that there is none, with these fields more; False when
its peer is gone."""
AT_ONCE: Mapping[str, Any] = MappingProxyType({})
"""Of an answer to a pull that was not held."""
_Answers = dict[LookKey, tuple[Taken, Answer]]


class TailDesk:
    """Answers what the tail cache can. It shares the held pulls with `PullDesk`."""

    def __init__(self, holds: LongPolls, deliver: Deliver) -> None:
        self.tail = TailCache()
        self._holds = holds
        self._deliver = deliver
        self._min_offsets: dict[Queue, int] = {}

    def forget_bounds(self) -> None:
        """Drops the minimum offsets. Call it now and then, as retention moves them."""
        self._min_offsets = {}

    def pull(self, store: RunningStore, held: Held) -> bool:
        """Answers or holds a new pull; False if the queue's files must answer it.

        Raises NodeBusy, StoreDamaged.
        """
        queue = held.queue
        if held.pull.wait_ms and held.next_offset == self.tail.end_of(queue):
            self._holds.add(held)
            return True
        taken = self.tail.take(queue, held.next_offset, held.pull.request)
        if taken is None:
            return False
        found = tail_answer(taken, self.min_offset(store, queue))
        if held.pull.stream and taken.is_all and len(self._holds) < HELD_STREAMS_MAX:
            self._holds.add(held)
            self._hand_out(held, taken, found)
        else:
            self._deliver(held, found, AT_ONCE)
        return True

    def follow(self, store: RunningStore, now: float) -> None:
        """Answers the held pulls that the cache has messages for; `now` in seconds."""
        for queue in self.tail.extend(store, now):
            answers: _Answers = {}
            for held in self._holds.of(queue):
                self._wake(store, held, answers)

    def _wake(self, store: RunningStore, held: Held, answers: _Answers) -> None:
        """Equal pulls share one answer."""
        key = held.look_key
        if key not in answers:
            taken = self.tail.take(held.queue, held.next_offset, held.pull.request)
            if taken is None:
                return
            try:
                answers[key] = taken, tail_answer(taken, self.min_offset(store, held.queue))
            except MqError as error:
                self._holds.remove(held)
                self._deliver(held, error, AT_ONCE)
                return
        taken, found = answers[key]
        if taken.records or not held.pull.wait_ms:
            self._hand_out(held, taken, found)
            return
        held.next_offset = taken.next_begin_offset
        held.undecided_below = None

    def _hand_out(self, held: Held, taken: Taken, found: Answer) -> None:
        """Answers a held pull. A stream goes on until its answers have the size of a full one."""
        extra = late(held)
        if held.pull.stream and taken.is_all and held.goes_on(taken.next_begin_offset, found.size):
            extra["more"] = True
        else:
            self._holds.remove(held)
        if not self._deliver(held, found, extra):
            self._holds.forget(held.peer)

    def min_offset(self, store: RunningStore, queue: Queue) -> int:
        """The minimum offset of a queue with messages in the cache. Raises StoreDamaged."""
        known = self._min_offsets.get(queue)
        if known is not None:
            return known
        reader = look_again(store, lambda: store.queue(*queue))
        if reader is None or not reader.max_offset:
            return self.tail.first_of(queue) or 0
        self._min_offsets[queue] = reader.min_offset
        return reader.min_offset


def late(held: Held) -> dict[str, Any]:
    """The field of an answer to a pull that was held: the queue offset where it begins."""
    return {"offset": held.begin}
