"""Serves pulls, or holds them until there are messages. No sockets, no clock, no wire.

Replies leave through a function; times are seconds of the caller's monotonic clock.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from node.reader.answers import Answer, is_waiting_status, look_again, pull, pull_answer
from node.reader.growth_notices import News
from node.reader.long_polls import Held, LongPolls, LookKey
from node.reader.read_ahead import ReadAhead
from node.reader.requests import Pull
from node.reader.tail_pulls import AT_ONCE, Deliver, TailDesk, late
from node.store.opening import RunningStore
from node.store.query.pull import PulledRecords, PullStatus, nothing
from node.store.queues import QueueReader
from protocol.errors import (
    CorruptError,
    MqError,
    ServiceNotAvailable,
    StoreDamaged,
    TopicRemoved,
)
from protocol.ids import Queue, shard_of
from protocol.names import COMMIT_LOG_DIR

SCANS_AT_ONCE = 64
"""The scans that a held pull with a filter makes before other pulls have their turn."""
UNDECIDED_MS = 1_000
"""How long a pull that does not wait is held until the end of its queue is known."""

T = TypeVar("T")
_Looked = dict[LookKey, PulledRecords | None]
_OF_THE_END = (PullStatus.OFFSET_OVERFLOW_BADLY, PullStatus.NO_MESSAGE_IN_QUEUE)


class PullDesk:
    """Serves pulls from `store`, which its owner refreshes, and may replace.

    The owner sets `trouble` while it cannot follow the store: every pull is refused with it.
    """

    def __init__(self, store: RunningStore, deliver: Deliver, shards: int) -> None:
        self.store = store
        self.holds = LongPolls()
        self.at_end = TailDesk(self.holds, deliver)
        self.tail = self.at_end.tail
        self._ahead = ReadAhead()
        self.trouble: MqError | None = None
        self.is_asked_for_end = False
        """Set when a request came for which the queues' files lag; the owner resets it."""
        self._deliver = deliver
        self._shards = shards
        self.unfinished: set[Queue] = set()
        """The queues whose scans must go on at once, without any news."""
        self.undecided: dict[Held, None] = {}
        """The pulls that wait for a queue worker to catch up."""
        self._removals = store.removed.number

    def check_followed(self) -> None:
        """Raises `trouble`, if there is any."""
        if self.trouble is not None:
            raise self.trouble

    def see_end(self, now: float) -> None:
        """Catches up with the log before an answer if the queues' files lag a little, so that a
        client can read at once what it knows is stored."""
        if not self.tail.is_at_end(self.store):
            self.is_asked_for_end = True
            self.follow(now)

    def again(self, look: Callable[[], T]) -> T:
        """Calls `look`, twice if retention has just removed a file."""
        return look_again(self.store, look)

    # Pulls

    def pull(self, peer: bytes, number: int, wanted: Pull, now: float) -> None:
        """Serves a pull of this peer, or holds it. Raises `trouble`, NodeBusy, StoreDamaged, and
        what reading raises."""
        self.check_followed()
        self.store.removed.check_place(wanted.queue.topic, wanted.generation)
        held = Held(peer, number, wanted, now + wanted.wait_ms / 1000, wanted.offset)
        found = self._ahead.answer(self.store, wanted, self.tail.end_of)
        if found is not None:
            self._deliver(held, found, AT_ONCE)
            return
        if not wanted.patience_ms:
            self.see_end(now)
        if self.tail.follows and self.at_end.pull(self.store, held):
            return
        result = self._look(wanted)
        if result is None:
            held.deadline = max(held.deadline, now + UNDECIDED_MS / 1000)
            self.holds.add(held)
            self._leave_undecided(held)
            return
        if wanted.wait_ms and is_waiting_status(result, wanted.offset):
            self.holds.add(held)
            return
        self._ahead.note(wanted, result)
        self._deliver(held, pull_answer(result), AT_ONCE)

    def note_removals(self) -> None:
        """Takes in that messages were removed, as of the store's last `refresh`."""
        number = self.store.removed.number
        if number != self._removals:
            self._removals = number
            self.tail.stop()
            self.at_end.forget_bounds()
            self._end_removed()
            self.wake_all()

    def _end_removed(self) -> None:
        """Ends the held pulls whose place is one of a topic that was removed."""
        removed = self.store.removed
        for queue in list(self.holds.queues()) if removed.topics else ():
            for held in self.holds.of(queue):
                try:
                    removed.check_place(queue.topic, held.pull.generation)
                except TopicRemoved as error:
                    self._finish(held, error)

    def follow(self, now: float) -> None:
        """Serves the held pulls that the tail cache has messages for."""
        was_following = self.tail.follows
        self.at_end.follow(self.store, now)
        if self.tail.follows and not was_following:
            # Units that came since the last look are below the begin of the tail cache, and from
            # now on the reader does not listen to the hints that announce them.
            self.wake_all()

    def _look(self, wanted: Pull, is_final: bool = False) -> PulledRecords | None:
        """Pulls once; None if the end of the queue is unknown, as its worker lags.

        An answer with the end of a restarted worker would send consumers back to it.
        """
        queue, end = wanted.queue, self.tail.end_of(wanted.queue)
        self.store.removed.check_place(queue.topic, wanted.generation)
        if wanted.offset == end:
            return nothing(
                PullStatus.OFFSET_OVERFLOW_ONE, end, self.at_end.min_offset(self.store, queue), end
            )
        try:
            result = self.again(lambda: pull(self.store, wanted))
        except CorruptError:
            if self.store.is_resuming(queue):
                return None
            raise
        if end is not None and end > result.max_offset:
            result = replace(result, max_offset=end)
        is_waiting = is_waiting_status(result, wanted.offset)
        if is_waiting or result.status in _OF_THE_END:
            self._check_worker(queue)
        if is_final or is_waiting or not self.store.is_behind(queue):
            return result
        return None if result.status in _OF_THE_END else result

    def _check_worker(self, queue: Queue) -> None:
        """Raises StoreDamaged if the queue's worker stopped before damage: it does not start again,
        and nobody knows the messages after the queue's last unit."""
        damaged_at = self.store.damaged_at(queue)
        if damaged_at is not None:
            segment = self.store.log.segments.find(damaged_at)
            where = self.store.root / COMMIT_LOG_DIR if segment is None else segment.path
            raise StoreDamaged(
                str(where),
                damaged_at,
                f"the worker of queue {queue.queue_id} of {queue.topic} stopped before damage:"
                " later messages are in no queue",
                "stop the node, then: keelog store repair DIR",
            )

    def _leave_undecided(self, held: Held) -> None:
        held.undecided_below = self.store.log.end if self.store.knows_log else 0
        self.undecided[held] = None

    def settle(self) -> None:
        """Looks at the pulls for which the end of the queue has become known."""
        for held in list(self.undecided):
            if held.is_over or held.undecided_below is None:
                del self.undecided[held]
            elif not held.undecided_below:
                self._leave_undecided(held)
            elif (
                not self.store.is_resuming(held.queue)
                and self.store.visible_end(held.queue) >= held.undecided_below
            ):
                del self.undecided[held]
                held.undecided_below = None
                self._wake(held, {}, is_final=True)

    def wake(self, news: News) -> None:
        """Looks again at the held pulls of queues that may have grown."""
        wanted = self.unfinished | {queue for queue in news.queues if self.holds.waits_for(queue)}
        self.unfinished = set()
        if news.shards:
            for queue in self.holds.queues():
                if shard_of(queue, self._shards) in news.shards:
                    wanted.add(queue)
        for queue in wanted:
            self._wake_queue(queue)

    def wake_all(self) -> None:
        """Looks at every held pull, as after a new epoch."""
        self.wake(News(set(), set(range(self._shards))))

    def _wake_queue(self, queue: Queue) -> None:
        try:
            reader: QueueReader | None = self.again(lambda: self.store.queue(*queue))
        except MqError as error:
            for held in self.holds.of(queue):
                self._finish(held, error)
            return
        end = reader.max_offset if reader is not None else 0
        looked: _Looked = {}
        for held in self.holds.of(queue):
            if held.next_offset != end and not held.is_over and held.undecided_below is None:
                self._wake(held, looked)

    def _wake(self, held: Held, looked: _Looked, is_final: bool = False) -> None:
        """Serves a held pull if there are messages for it. Equal pulls share one look."""
        try:
            for _ in range(SCANS_AT_ONCE):
                key = held.look_key
                if key not in looked:
                    looked[key] = self._look(held.look(), is_final)
                result = looked[key]
                if result is None:
                    self._leave_undecided(held)
                    return
                if is_waiting_status(result, held.next_offset) and held.pull.wait_ms:
                    return
                if not _refused_all(result, held.next_offset):
                    self._finish(held, pull_answer(result))
                    return
                held.next_offset = result.next_begin_offset
        except MqError as error:
            self._finish(held, error)
        else:
            self.unfinished.add(held.queue)

    # The end of a hold

    def time_out(self, now: float) -> None:
        """Serves the pulls whose time is up with what there is."""
        for held in self.holds.take_due(now):
            self._answer_late(held)

    def stop(self) -> None:
        """Serves all held pulls as if their time were up."""
        for held in self.holds.take_all():
            self._answer_late(held)

    def _answer_late(self, held: Held) -> None:
        try:
            self.check_followed()
            result = self._look(held.look())
            if result is None:
                raise ServiceNotAvailable(
                    f"the queue worker of {held.queue.topic} is behind the log",
                    "pull again later; see keelog status",
                )
        except MqError as error:
            self._finish(held, error)
            return
        if held.has_moved and is_waiting_status(result, held.next_offset):
            # Its filter refused the messages that came: the next offset is after them.
            result = replace(result, status=PullStatus.NO_MATCHED_MESSAGE)
        self._finish(held, pull_answer(result))

    def _finish(self, held: Held, found: Answer | MqError) -> None:
        self.holds.remove(held)
        if not self._deliver(held, found, late(held)):
            self.holds.forget(held.peer)


def _refused_all(result: PulledRecords, offset: int) -> bool:
    """True if a scan consumed units, but its filter took none."""
    no_match = result.status is PullStatus.NO_MATCHED_MESSAGE
    return no_match and result.next_begin_offset > offset
