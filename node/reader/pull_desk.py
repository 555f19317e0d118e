"""Parses pulls, serves them, or holds them until there are messages. No sockets, no clock, no wire.

Replies leave through a function; times are seconds of the caller's monotonic clock. Pulls wait in
`LongPolls`, by queue, by peer and by deadline.

A pull at the end of its queue gets its answer from the tail cache. One that asks for a `stream`
stays held after an answer that takes it to the end: the consumer need not pull again for each
message.

`ReadAhead` has records that consumers will pull next, read in one look: small pulls cost a slice
each. A pull of 32 messages costs more to find and to verify than to send. So the second of two
pulls in a row reads what follows too. The rest of it is kept under the offset at which the consumer
will go on; a pull anywhere else reads the files.
"""

import heapq
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any

from node.access.asking import PortAsker
from node.reader.answers import Answer, look_again
from node.reader.tail_cache import TailCache, Taken
from node.runtime.settings import Settings
from node.store.file_cache import FileVanished
from node.store.opening import RunningStore
from node.store.query.filters import parse_tags
from node.store.query.pull import (
    PulledRecords,
    PullRequest,
    PullStatus,
    TransferLimits,
    get_message,
    nothing,
)
from node.store.queues import QueueReader
from protocol import errors, requests
from protocol.ids import Queue, shard_of
from protocol.names import COMMIT_LOG_DIR
from protocol.request_fields import out_of_range
from protocol.wire.frames import Header

HELD_MAX = 50_000
LookKey = tuple[int, str, str, int, int]
_NEVER = float("inf")
_DEAD_MAX = 1_024

AHEAD_MESSAGES = 1_024
AHEAD_BYTES = 256 * 1024
"""Of one look; a pull that takes more than a quarter of it gains nothing."""
AHEAD_SHARE = 4
AHEAD_KEPT_BYTES_MAX = 8 * 1024 * 1024
"""Of all that is kept: beyond it, what was read first is dropped."""
AHEAD_PLACES_MAX = 4_096
"""Consumers that are remembered, with or without records."""
_AHEAD_LIMITS = TransferLimits(AHEAD_MESSAGES, AHEAD_BYTES, AHEAD_MESSAGES, AHEAD_BYTES)
_AheadPlace = tuple[Queue, int]

HELD_STREAMS_MAX = 40_000
"""While more pulls are held, each gets one answer: streams leave room for pulls that wait."""

AT_ONCE: Mapping[str, Any] = {}
"""Of an answer to a pull that was not held."""

SCANS_AT_ONCE = 64
"""The scans that a held pull with a filter makes before other pulls have their turn."""
UNDECIDED_MS = 1_000
"""How long a pull that does not wait is held until the end of its queue is known."""

_OF_THE_END = (PullStatus.OFFSET_OVERFLOW_BADLY, PullStatus.NO_MESSAGE_IN_QUEUE)


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull: where it begins, what it takes, and how long it may be held."""

    queue: Queue
    offset: int
    request: PullRequest
    wait_ms: int
    tags: str = ""
    """The expression: equal pulls share one look."""
    tags_kind: str = ""
    """Its language, if it is not that of tags."""
    stream: bool = False
    """Whether it gets an answer each time when its queue grows; such a pull waits."""
    patience_ms: int = 0
    """How late its answer may come."""
    generation: int | None = None
    """A log offset at which its place was known; None: it is taken as it is."""


def parse_pull(header: Header, settings: Settings, limits: TransferLimits) -> Pull:
    """Parses a pull. Any offset is valid: one outside the queue has its own status (RocketMQ).

    `limits` apply where the request has none of its own.
    """
    asked = requests.PULL.values(header)
    topic, queue_id, offset, count, size, tags, wait_ms, stream, patience_ms, generation = asked
    if wait_ms > settings.long_polling_ms_max:
        raise out_of_range("wait_ms", wait_ms, 0, settings.long_polling_ms_max)
    request = _pull_request(
        tags,
        count,
        size,
        limits,
        settings.max_filter_message_size,
        settings.travel_cq_file_num_when_get_message,
    )
    queue = Queue(topic, queue_id)
    is_stream = stream and wait_ms > 0
    return Pull(queue, offset, request, wait_ms, tags, "", is_stream, patience_ms, generation)


@lru_cache(maxsize=256)
def _pull_request(
    tags: str,
    count: int | None,
    size: int | None,
    limits: TransferLimits,
    filter_bytes_max: int,
    files_max: int,
) -> PullRequest:
    """Cached, as consumers repeat their pulls. Raises BadRequest for malformed tags."""
    if count is not None:
        limits = limits._replace(count_max=count, cold_count_max=count)
    if size is not None:
        limits = limits._replace(bytes_max=size, cold_bytes_max=size)
    return PullRequest(
        max_messages=count or requests.PULL_MESSAGES_DEFAULT,
        total_bytes_max=size or requests.PULL_BYTES_DEFAULT,
        limits=limits,
        tags=parse_tags(tags),
        exact=True,
        filter_bytes_max=filter_bytes_max,
        files_max=files_max,
    )


def pull(store: RunningStore, wanted: Pull) -> PulledRecords:
    """As RocketMQ's getMessage; once more, after a refresh, if retention has just removed a file.

    Raises StoreDamaged, MessageDamaged.
    """
    place = wanted.offset, wanted.request
    try:
        return get_message(store.log, store.queue(*wanted.queue), *place)
    except FileVanished:
        store.refresh()
        return get_message(store.log, store.queue(*wanted.queue), *place)


def is_waiting_status(result: PulledRecords, offset: int) -> bool:
    """True if a broker would hold the pull: it maps to PULL_NOT_FOUND (format 12.3)."""
    if result.status is PullStatus.NO_MESSAGE_IN_QUEUE:
        return offset == 0
    return result.status in (PullStatus.OFFSET_OVERFLOW_ONE, PullStatus.OFFSET_FOUND_NULL)


def pull_answer(result: PulledRecords) -> Answer:
    """The records as stored, in one frame, and the size of each."""
    fields = {
        "status": result.status,
        "next_begin_offset": result.next_begin_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
        "count": len(result.units),
        "sizes": result.units["size"].astype("<u4").tobytes(),
    }
    return Answer(fields, result.payload if len(result.units) else None)


def tail_answer(taken: Taken, min_offset: int) -> Answer:
    """As `pull_answer`, for records of the tail cache."""
    records = taken.records
    fields = {
        "status": taken.status,
        "next_begin_offset": taken.next_begin_offset,
        "min_offset": min_offset,
        "max_offset": taken.max_offset,
        "count": len(records),
        "sizes": struct.pack(f"<{len(records)}I", *map(len, records)),
    }
    return Answer(fields, b"".join(records) if records else None)


@dataclass(slots=True, eq=False)
class Held:
    """A pull that waits.

    `next_offset`: where the next look begins, after the units that were scanned. `answered`: where
    the last answer of a stream ended; `bytes`: the payload of its answers. `undecided_below`: the
    end of the queue is unknown until its worker has come to this log offset; None if the pull only
    waits for messages. `asker`: who pulls, where that counts.
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
    asker: PortAsker | None = None

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
        limits = request.max_messages, request.total_bytes_max
        return self.next_offset, pull.tags_kind, pull.tags, *limits

    def look(self) -> Pull:
        if self.next_offset == self.pull.offset:
            return self.pull
        return replace(self.pull, offset=self.next_offset)


Deliver = Callable[[Held, Answer | errors.MqError, Mapping[str, Any]], bool]
"""Sends the answer to a pull, or the reason that there is none, with these fields more; False when
its peer is gone."""


class PullDesk:
    """Serves pulls from `store`, which its owner refreshes, and may replace.

    The owner sets `trouble` while it cannot follow the store: every pull is refused with it.
    """

    def __init__(self, store: RunningStore, deliver: Deliver, shards: int) -> None:
        self.store = store
        self.holds = LongPolls()
        self.tail = TailCache()
        self._ahead = ReadAhead()
        self._min_offsets: dict[Queue, int] = {}
        self.trouble: errors.MqError | None = None
        self.is_asked_for_end = False
        """Set when a request came for which the queues' files lag; the owner resets it."""
        self._deliver = deliver
        self._shards = shards
        self.unfinished: set[Queue] = set()
        """The queues whose scans must go on at once, without any news."""
        self.undecided: dict[Held, None] = {}
        """The pulls that wait for a queue worker to catch up."""
        self.removals = store.removed.number
        """The number of `store.removed` that `note_removals` has taken in."""

    def see_end(self, now: float) -> None:
        """Catches up with the log before an answer if the queues' files lag a little, so that a
        client can read at once what it knows is stored."""
        if not self.tail.is_at_end(self.store):
            self.is_asked_for_end = True
            self.follow(now)

    # Pulls

    def pull(
        self, peer: bytes, number: int, wanted: Pull, now: float, asker: PortAsker | None = None
    ) -> None:
        """Serves a pull of this peer, or holds it for `asker`. Raises `trouble`, NodeBusy,
        StoreDamaged, and what reading raises."""
        if self.trouble is not None:
            raise self.trouble
        store, tail = self.store, self.tail
        if store.removed.topics:
            store.removed.check_place(wanted.queue.topic, wanted.generation)
        deadline = now + wanted.wait_ms / 1000
        held = Held(peer, number, wanted, deadline, wanted.offset, asker=asker)
        found = self._ahead.answer(store, wanted, tail.ends.get(wanted.queue, 0))
        if found is not None:
            self._deliver(held, found, AT_ONCE)
            return
        is_behind = tail.follows or store.followed < store.log.bounds.end
        if is_behind and not wanted.patience_ms:
            self.see_end(now)
        if tail.follows and self._pull_at_end(held):
            return
        result = self._look(wanted)
        if result is None:
            held.deadline = max(held.deadline, now + UNDECIDED_MS / 1000)
            self.holds.add(held)
            self._leave_undecided(held)
            return
        if result.status is PullStatus.FOUND:
            self._ahead.note(wanted, result)
        elif wanted.wait_ms and is_waiting_status(result, wanted.offset):
            self.holds.add(held)
            return
        self._deliver(held, pull_answer(result), AT_ONCE)

    def note_removals(self) -> None:
        """Takes in that messages were removed, and ends the held pulls whose place is one of a
        topic that was."""
        removed = self.store.removed
        self.removals = removed.number
        self.tail.stop()
        self.forget_bounds()
        for queue in self.holds.queues() if removed.topics else ():
            for held in self.holds.of(queue):
                try:
                    removed.check_place(queue.topic, held.pull.generation)
                except errors.TopicRemoved as error:
                    self._finish(held, error)
        self.wake_all()

    def end_refused(self, refusal: Callable[[Held], errors.MqError | None]) -> None:
        """Ends the held pulls that are refused now."""
        for queue in self.holds.queues():
            for held in self.holds.of(queue):
                error = refusal(held)
                if error is not None:
                    self._finish(held, error)

    def follow(self, now: float) -> None:
        """Serves the held pulls that the tail cache has messages for."""
        was_following = self.tail.follows
        for queue in self.tail.extend(self.store, now):
            self._wake_at_end(queue)
        if self.tail.follows and not was_following:
            # Units that came since the last look are below the begin of the tail cache, and from
            # now on the reader does not look for growth of the queues.
            self.wake_all()

    # At the end of the log

    def _pull_at_end(self, held: Held) -> bool:
        """Replies to a new pull, or holds it; False if the queue's files must answer it."""
        queue = held.pull.queue
        if held.pull.wait_ms and held.next_offset == self.tail.ends.get(queue):
            self.holds.add(held)
            return True
        taken = self.tail.take(queue, held.next_offset, held.pull.request)
        if taken is None:
            return False
        found = tail_answer(taken, self._min_offset(queue))
        if held.pull.stream and taken.is_all and self.holds.count < HELD_STREAMS_MAX:
            self.holds.add(held)
            self._hand_out(held, taken, found)
        else:
            self._deliver(held, found, AT_ONCE)
        return True

    def _wake_at_end(self, queue: Queue) -> None:
        """Replies to the held pulls that the cache has messages for; equal ones share a reply."""
        answers: dict[LookKey, tuple[Taken, Answer]] = {}
        for held in self.holds.of(queue):
            key = held.look_key
            if key not in answers:
                taken = self.tail.take(queue, held.next_offset, held.pull.request)
                if taken is None:
                    continue
                try:
                    answers[key] = taken, tail_answer(taken, self._min_offset(queue))
                except errors.MqError as error:
                    self._finish(held, error)
                    continue
            taken, found = answers[key]
            if taken.records or not held.pull.wait_ms:
                self._hand_out(held, taken, found)
            else:
                held.next_offset = taken.next_begin_offset
                held.undecided_below = None

    def _hand_out(self, held: Held, taken: Taken, found: Answer) -> None:
        """Replies to a held pull. A stream ends when its replies have the size of a full one."""
        extra: dict[str, Any] = {"offset": held.begin}
        size = 0 if found.payload is None else len(found.payload)
        if held.pull.stream and taken.is_all and held.goes_on(taken.next_begin_offset, size):
            extra["more"] = True
        else:
            self.holds.remove(held)
        if not self._deliver(held, found, extra):
            self.holds.forget(held.peer)

    def _min_offset(self, queue: Queue) -> int:
        """The minimum offset of a queue with messages in the cache. Raises StoreDamaged."""
        known = self._min_offsets.get(queue)
        if known is not None:
            return known
        reader = look_again(self.store, lambda: self.store.queue(*queue))
        if reader is None or not reader.max_offset:
            return self.tail.first_of(queue) or 0
        self._min_offsets[queue] = reader.min_offset
        return reader.min_offset

    def forget_bounds(self) -> None:
        """Drops the minimum offsets. Call it now and then, as retention moves them."""
        self._min_offsets = {}

    # In the files of queues

    def _look(self, wanted: Pull, is_final: bool = False) -> PulledRecords | None:
        """Pulls once; None if the end of the queue is unknown, as its worker lags.

        An answer with the end of a restarted worker would send consumers back to it.
        """
        queue, end = wanted.queue, self.tail.ends.get(wanted.queue)
        if wanted.offset == end:
            return nothing(PullStatus.OFFSET_OVERFLOW_ONE, end, self._min_offset(queue), end)
        try:
            result = pull(self.store, wanted)
        except errors.CorruptError:
            if self.store.is_resuming(queue):
                return None
            raise
        if end is not None and end > result.max_offset:
            result = replace(result, max_offset=end)
        if result.status is PullStatus.FOUND:
            return result
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
            raise errors.StoreDamaged(
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
                not self.store.is_resuming(held.pull.queue)
                and self.store.visible_end(held.pull.queue) >= held.undecided_below
            ):
                del self.undecided[held]
                held.undecided_below = None
                self._wake(held, {}, is_final=True)

    def wake(self, shards: Collection[int]) -> None:
        """Looks again at the held pulls of these shards, whose queues may have grown."""
        wanted, self.unfinished = self.unfinished, set()
        for queue in self.holds.queues() if shards else ():
            if shard_of(queue, self._shards) in shards:
                wanted.add(queue)
        for queue in wanted:
            self._wake_queue(queue)

    def wake_all(self) -> None:
        """Looks at every held pull, as after a new epoch."""
        self.wake(range(self._shards))

    def _wake_queue(self, queue: Queue) -> None:
        try:
            reader = look_again(self.store, lambda: self.store.queue(*queue))
        except errors.MqError as error:
            for held in self.holds.of(queue):
                self._finish(held, error)
            return
        end = reader.max_offset if reader is not None else 0
        looked: dict[LookKey, PulledRecords | None] = {}
        for held in self.holds.of(queue):
            if held.next_offset != end and not held.is_over and held.undecided_below is None:
                self._wake(held, looked)

    def _wake(
        self, held: Held, looked: dict[LookKey, PulledRecords | None], is_final: bool = False
    ) -> None:
        """Serves a held pull if there are messages for it. Equal pulls share one look."""
        try:
            for _ in range(SCANS_AT_ONCE):
                key = held.look_key
                if key not in looked:
                    self._check_place(held)
                    looked[key] = self._look(held.look(), is_final)
                result = looked[key]
                if result is None:
                    self._leave_undecided(held)
                    return
                if is_waiting_status(result, held.next_offset) and held.pull.wait_ms:
                    return
                is_refused = result.status is PullStatus.NO_MATCHED_MESSAGE
                if not (is_refused and result.next_begin_offset > held.next_offset):
                    self._finish(held, pull_answer(result))
                    return
                held.next_offset = result.next_begin_offset
        except errors.MqError as error:
            self._finish(held, error)
        else:
            self.unfinished.add(held.pull.queue)

    # The end of a hold

    def time_out(self, now: float) -> None:
        """Serves the pulls whose time is up with what there is."""
        for held in self.holds.take_due(now):
            self._answer_late(held)

    def stop(self) -> None:
        """Serves all held pulls as if their time were up."""
        self.time_out(float("inf"))

    def _answer_late(self, held: Held) -> None:
        try:
            if self.trouble is not None:
                raise self.trouble
            self._check_place(held)
            result = self._look(held.look())
            if result is None:
                raise errors.ServiceNotAvailable(
                    f"the queue worker of {held.pull.queue.topic} is behind the log",
                    "pull again later; see keelog status",
                )
        except errors.MqError as error:
            self._finish(held, error)
            return
        if held.next_offset != held.begin and is_waiting_status(result, held.next_offset):
            # Its filter refused the messages that came: the next offset is after them.
            result = replace(result, status=PullStatus.NO_MATCHED_MESSAGE)
        self._finish(held, pull_answer(result))

    def _check_place(self, held: Held) -> None:
        """Raises TopicRemoved."""
        self.store.removed.check_place(held.pull.queue.topic, held.pull.generation)

    def _finish(self, held: Held, found: Answer | errors.MqError) -> None:
        self.holds.remove(held)
        if not self._deliver(held, found, {"offset": held.begin}):
            self.holds.forget(held.peer)


class LongPolls:
    """Up to `limit` held pulls, `count` of them now. The cost of a removal does not depend on it.

    `next_deadline` is the earliest of all, infinite without a pull. `patience_s`: how late the
    answer to any of the pulls may come; 0 without one.
    """

    def __init__(self, limit: int = HELD_MAX) -> None:
        self._limit = limit
        self._queues: dict[Queue, dict[Held, None]] = {}
        self._peers: dict[bytes, set[Held]] = {}
        self._times: list[tuple[float, int, Held]] = []
        self._numbers = count()
        self.count = 0
        self.next_deadline = _NEVER
        self._patience: Counter[int] = Counter()
        """How many pulls have which patience, in ms."""
        self.patience_s = 0.0

    def add(self, held: Held) -> None:
        """Holds a pull. Raises NodeBusy at the limit."""
        if self.count >= self._limit:
            raise errors.NodeBusy(
                f"{self.count} pulls are held here already", "pull again later, or without wait_ms"
            )
        self._queues.setdefault(held.pull.queue, {})[held] = None
        self._peers.setdefault(held.peer, set()).add(held)
        heapq.heappush(self._times, (held.deadline, next(self._numbers), held))
        self.next_deadline = self._times[0][0]
        self.count += 1
        self._patience[held.pull.patience_ms] += 1
        self.patience_s = min(self._patience) / 1000

    def queues(self) -> list[Queue]:
        return list(self._queues)

    def of(self, queue: Queue) -> list[Held]:
        """The pulls that wait for this queue, in the order of their arrival."""
        return list(self._queues.get(queue, ()))

    def remove(self, held: Held) -> None:
        """Removes a pull; does nothing if it was removed before."""
        if held.is_over:
            return
        held.is_over = True
        self.count -= 1
        patience_ms = held.pull.patience_ms
        self._patience[patience_ms] -= 1
        if not self._patience[patience_ms]:
            del self._patience[patience_ms]
            self.patience_s = min(self._patience, default=0) / 1000
        of_queue = self._queues[held.pull.queue]
        del of_queue[held]
        if not of_queue:
            del self._queues[held.pull.queue]
        of_peer = self._peers[held.peer]
        of_peer.discard(held)
        if not of_peer:
            del self._peers[held.peer]
        # Removed pulls leave the heap at their deadline, or when they are most of it.
        if len(self._times) > 2 * self.count + _DEAD_MAX:
            self._times = [item for item in self._times if not item[2].is_over]
            heapq.heapify(self._times)
        while self._times and self._times[0][2].is_over:
            heapq.heappop(self._times)
        self.next_deadline = self._times[0][0] if self._times else _NEVER

    def forget(self, peer: bytes) -> list[Held]:
        """Removes all pulls of a peer that is gone, and returns them."""
        gone = list(self._peers.get(peer, ()))
        for held in gone:
            self.remove(held)
        return gone

    def take_due(self, now: float) -> Iterator[Held]:
        """Removes the pulls whose deadline has come, and yields them, the earliest first."""
        while self._times and self.next_deadline <= now:
            held = self._times[0][2]
            self.remove(held)
            yield held


@dataclass(slots=True)
class _AheadRecords:
    """Records of one queue, back to back. Those before `row` were taken.

    `reader`: the store replaces a queue's reader when what was read may no longer hold.
    """

    reader: QueueReader | None
    payload: memoryview
    ends: list[int]
    """Where each record ends in `payload`, after a 0."""
    sizes: bytes
    places: list[int]
    row: int = 0

    def stop(self, request: PullRequest) -> int | None:
        """The row after the last one of a pull; None if the end of the records might cut it."""
        most = request.hot
        stop = min(self.row + most.records, len(self.places))
        room = self.ends[self.row] + most.bytes
        if self.ends[stop] > room:
            stop = max(self.row + 1, bisect_right(self.ends, room, self.row, stop) - 1)
        return None if stop == len(self.places) else stop


_UNREAD = _AheadRecords(None, memoryview(b""), [0], b"", [])
"""A pull ended there, and nothing was read beyond it yet."""


class ReadAhead:
    """The records that are kept for the consumers of a store, by queue and offset."""

    def __init__(self) -> None:
        self._kept: dict[_AheadPlace, _AheadRecords] = {}
        self._bytes = 0

    def note(self, wanted: Pull, found: PulledRecords) -> None:
        """A pull was answered from the files: the next one may read ahead."""
        count = len(found.units)
        if (
            wanted.request.tags is None
            and len(found.payload) * AHEAD_SHARE <= AHEAD_BYTES
            and count * AHEAD_SHARE <= AHEAD_MESSAGES
            and found.max_offset - found.next_begin_offset > count
        ):
            self._keep((wanted.queue, found.next_begin_offset), _UNREAD)

    def answer(self, store: RunningStore, wanted: Pull, end: int) -> Answer | None:
        """The answer to a pull; None if the files must give it. `end`: of the queue, as the tail
        knows it, else 0."""
        records = self._kept.pop((wanted.queue, wanted.offset), None)
        if records is None:
            return None
        self._bytes -= len(records.payload)
        request, limits, reader = wanted.request, wanted.request.limits, store.queue(*wanted.queue)
        if request.tags is not None or reader is None or wanted.offset < reader.min_offset:
            return None
        stop = records.stop(request) if records.reader is reader else None
        if stop is None:
            found = _read_ahead(store, wanted)
            stop = None if found is None else found.stop(request)
            if found is None or stop is None:
                return None
            records, reader = found, found.reader or reader
        row, ends = records.row, records.ends
        cold_below = 0 if limits.memory_bytes is None else store.log.end - limits.memory_bytes
        if records.places[row] < cold_below:
            return None  # cold records have limits of their own: the pull reads the files
        following = wanted.offset + stop - row
        fields = {
            "status": PullStatus.FOUND.value,
            "next_begin_offset": following,
            "min_offset": reader.min_offset,
            "max_offset": max(reader.max_offset, end),
            "count": stop - row,
            "sizes": records.sizes[row * 4 : stop * 4],
        }
        records.row = stop
        self._keep((wanted.queue, following), records)
        return Answer(fields, records.payload[ends[row] : ends[stop]])

    def _keep(self, place: _AheadPlace, records: _AheadRecords) -> None:
        kept = self._kept
        before = kept.pop(place, _UNREAD)
        kept[place] = records
        self._bytes += len(records.payload) - len(before.payload)
        while self._bytes > AHEAD_KEPT_BYTES_MAX or len(kept) > AHEAD_PLACES_MAX:
            self._bytes -= len(kept.pop(next(iter(kept))).payload)


def _read_ahead(store: RunningStore, wanted: Pull) -> _AheadRecords | None:
    """Reads a pull's records and what follows; None if the pull has to read by itself."""
    request = replace(
        wanted.request,
        max_messages=AHEAD_MESSAGES,
        total_bytes_max=AHEAD_BYTES,
        limits=_AHEAD_LIMITS,
    )
    try:
        found = pull(store, replace(wanted, request=request))
        reader = store.queue(*wanted.queue)
    except errors.MqError:
        return None  # the pull by itself meets this too, and says so
    if reader is None or found.status is not PullStatus.FOUND:
        return None
    if int(found.queue_offsets[-1]) - wanted.offset != len(found.units) - 1:
        return None  # some units name no record
    return _AheadRecords(
        reader,
        memoryview(found.payload),
        [0, *found.sizes.cumsum().tolist()],
        found.units["size"].astype("<u4").tobytes(),
        found.physical_offsets.tolist(),
    )
