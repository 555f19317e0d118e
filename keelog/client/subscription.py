"""Following a topic: which pulls are due, and what their replies mean. No threads, no sockets.

`Subscription` is driven by the plain client and by the asyncio one in the same way: start the
calls of `due`, give each answer to `take`, until `finished`. A named cursor has how far its
follower has read, and what is to be committed. The node keeps the place: messages that were read
and not committed come again after a crash, so each is read at least once. `Follower` is what
`Client.tail` and `Client.consume` return: an iterator with two ways to end it.
"""

import logging
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, Self, TypedDict, TypeVar

from keelog.client import operations
from keelog.client.operations import Operation
from keelog.client.options import OnDamage, check_names, check_on_damage, check_seconds, pass_over
from keelog.client.results import PullResult, QueueOffsets, pull_result
from keelog.client.transport.exchange import Call, NodeAnswer, Retry
from protocol import errors
from protocol.names import is_group_name
from protocol.requests import PULL

log = logging.getLogger("keelog.client")

COMMIT_EVERY_S = 1.0
COMMIT_EVERY_MESSAGES = 1_000
Start = Literal["latest", "earliest"] | int | datetime | Mapping[int, int]
PULLS_MAX = 32
"""Pulls under way; with more queues than that they take turns."""
WAIT_S = 10.0
WAIT_S_CROWDED = 0.2
PAUSE_S = 0.05
"""Before pulling again where the node did not hold an empty pull."""
TURN_S_MAX = 1.0
"""How long a follower sleeps at most before it looks around again."""
QUEUES_S = 5.0
"""How often a follower looks for queues that were added to the topic."""
TOPIC_S = 0.5
"""How often it looks for a topic that is not there yet."""
BEHIND_ANY = 2**63 - 1
"""A pull from there is answered when the node knows where the queue ends, and refused otherwise."""
T = TypeVar("T")


class TailOptions(TypedDict, total=False):
    """The options of `tail` and `consume` beside topic and start.

    `queues`: only these queue ids; all unless given.
    `tags`: `"A || B"`, messages with one of these tags; None for all.
    `until_end`: stop at the end as it is at the start, or as it is when a queue worker that lags
        has caught up; where none does, and before damage, that is an error after the last message.
    `follow`: False stops where nothing more comes.
    `generation`: of the topic when you came to know the offsets of `start`, or any later log
        offset, as `physical_offset` of a message that you have read. A topic that was removed
        later, and made anew, is read from its start.
    `max_messages`: of one pull at most, 1 to 10,000.
    `max_bytes`: of one pull at most.
    `in_flight`: pulls under way, 1 to 32, one for each queue.
    `on_damage`: "fail" raises MessageDamaged at a damaged message; "skip" goes on after it and
        logs a warning; a function goes on too, and gets the error.
    `timeout`: the iteration ends after this many seconds without a message, as consumer_timeout_ms
        of kafka-python; None: never. The time in which the caller works does not count.
    `cursor`: a name under which the node keeps how far this was read. It begins where the name
        stopped; `start` counts for a name that is new. The place is committed every second, and
        when the iterator is closed. A message counts as read when the next one is asked for.
    """

    queues: Iterable[int] | None
    tags: str | None
    until_end: bool
    follow: bool
    on_damage: OnDamage
    cursor: str | None
    generation: int | None
    max_messages: int
    max_bytes: int
    in_flight: int
    timeout: float | None


BULK: TailOptions = {"max_messages": 10_000, "max_bytes": 1 << 20, "in_flight": 16}
"""The defaults of `consume`."""


class TailSettings(NamedTuple):
    """See TailOptions."""

    queues: frozenset[int] | None = None
    tags: str | None = None
    until_end: bool = False
    follow: bool = True
    on_damage: OnDamage = "fail"
    cursor: str | None = None
    generation: int | None = None
    max_messages: int = 1_000
    max_bytes: int = 524_288
    in_flight: int = PULLS_MAX
    timeout: float | None = None

    @classmethod
    def of(cls, options: TailOptions) -> "TailSettings":
        """From options. Raises BadRequest for unknown names."""
        check_names("tail", options, TailOptions)
        in_flight = options.get("in_flight", 1)
        if not isinstance(in_flight, int) or not 1 <= in_flight <= PULLS_MAX:
            raise errors.BadRequest(f"in_flight is {in_flight!r}", f"use 1 to {PULLS_MAX}")
        check_on_damage(options.get("on_damage", "fail"))
        if (timeout := options.get("timeout")) is not None:
            check_seconds("timeout", timeout)
            if not timeout:
                raise errors.BadRequest("timeout is 0", "until_end=True reads what is there now")
        cursor = options.get("cursor")
        if cursor is not None and not (isinstance(cursor, str) and is_group_name(cursor)):
            hint = "use 1 to 255 of the characters % | a-z A-Z 0-9 _ -"
            raise errors.BadRequest(f"cursor is {cursor!r}", hint)
        return cls(**{**options, "queues": _queue_ids(options.get("queues"))})  # type: ignore[arg-type]


def _queue_ids(queues: object) -> frozenset[int] | None:
    """Of the option `queues`. Raises BadRequest: no queue has such a number, so it would read none
    and say nothing."""
    if queues is None:
        return None
    if isinstance(queues, Iterable):
        chosen = frozenset(queues)
        if all(isinstance(queue_id, int) for queue_id in chosen):
            return chosen
    raise errors.BadRequest(f"queues is {queues!r}", "give a list of numbers: queues=[0]")


@dataclass(slots=True)
class _QueuePosition:
    """How far one queue was read; `end` is where to stop, None for never.

    `generation`: of the topic whose offset `next_offset` is; None where the node does not say.
    `is_sure`: no message before the `end` that was wanted is missing in it. `asks_end`: the next
    pull asks where the queue ends.
    """

    queue_id: int
    next_offset: int
    end: int | None
    generation: int | None = None
    is_sure: bool = True
    asks_end: bool = False
    failures: int = 0
    asked_at: float = 0.0
    not_before: float = 0.0


class Subscription:
    """The state of one follower: a place in each queue, and which of them wait for an answer."""

    def __init__(self, topic: str, settings: TailSettings, retry: Retry, timeout: float) -> None:
        """Raises BadRequest for what no node could answer."""
        PULL.parse(
            {
                "topic": topic,
                "queue": 0,
                "offset": 0,
                "max_messages": settings.max_messages,
                "max_bytes": settings.max_bytes,
                "tags": settings.tags,
                "generation": settings.generation,
            }
        )
        self._topic = topic
        self._settings = settings
        self._retry = retry
        self._timeout = timeout
        self._places: dict[int, _QueuePosition] = {}
        self._ready: deque[_QueuePosition] = deque()
        self._pulling: set[int] = set()
        self._looked_at = 0.0
        self._unread: errors.MqError | None = None
        self._generation = 0
        """Of the topic, as far as the log says."""
        self._awaited: Start | None = None
        """Where to start in a topic that was not there at the start."""
        self.is_stopped = False
        self._quiet_since = 0.0
        self.cursor: Cursor | None = None
        if settings.cursor is not None:
            self.cursor = Cursor(topic, settings.cursor)

    def begin(self, start: Start, now: float, deadline: float) -> Operation[None]:
        """Asks where the queues are, and where in them to start; from the beginning when it was
        given up before. A topic that is not there is awaited, unless the follower has an end."""
        self._quiet_since = now
        self._places.clear()
        self._ready.clear()
        self._unread = self._awaited = None
        self._looked_at = now
        try:
            found = yield from operations.offsets(self._topic, None, deadline)
        except errors.UnknownTopic:
            if not self._is_endless:
                raise
            log.warning("topic %s is not there yet: waiting for it", self._topic)
            self._awaited = start
            return
        generation = found[0].generation if found else None
        self._generation = generation or 0
        if self._is_of_removed(start):
            self._say_removed()
            start = "earliest"
        known: Mapping[int, int] = {}
        if self.cursor is not None:
            known = yield from operations.cursor_places(self._topic, self.cursor.name, deadline)
        if known and not isinstance(start, Mapping):
            start = known
        for queue in found:
            if self._wants(queue.queue_id):
                offset = yield from start_offset(self._topic, queue, start, deadline)
                self._add(queue, offset)
        if self.cursor is not None:
            starts = {one.queue_id: one.next_offset for one in self._places.values()}
            self.cursor.begin(known, starts, generation)

    def _is_of_removed(self, start: Start) -> bool:
        """Whether the offsets of `start` are those of a topic that was removed."""
        known_at = self._settings.generation
        is_offset = isinstance(start, Mapping) or (type(start) is int and start >= 0)
        return is_offset and known_at is not None and known_at < self._generation

    def _say_removed(self) -> None:
        log.warning("topic %s was removed: what is there now is read from its start", self._topic)

    def look_for_queues(self, now: float, deadline: float) -> Operation[None]:
        """Takes up queues that were added since; they are read from their start.

        A node that cannot say so now is asked again later: how long it may be away is a matter of
        the pulls.
        """
        self._looked_at = now
        try:
            found = yield from operations.offsets(self._topic, None, deadline)
        except errors.MqError as error:
            is_awaited = self._awaited is not None and isinstance(error, errors.UnknownTopic)
            if not error.retriable and not is_awaited:
                raise
            return
        start, self._awaited = self._awaited, None
        for queue in found:
            if self._wants(queue.queue_id) and queue.queue_id not in self._places:
                offset = queue.min_offset
                # All messages of a new topic are later than the call: "latest" and -N mean all.
                if (
                    start != "latest"
                    and start is not None
                    and not (isinstance(start, int) and start < 0)
                ):
                    offset = yield from start_offset(self._topic, queue, start, deadline)
                self._add(queue, offset)

    def should_look(self, now: float) -> bool:
        pause_s = QUEUES_S if self._awaited is None else TOPIC_S
        return self._is_endless and now >= self._looked_at + pause_s

    @property
    def _is_endless(self) -> bool:
        return self._settings.follow and not self._settings.until_end

    def stop(self) -> None:
        """Ends it at the next look at it. For any thread."""
        self.is_stopped = True

    def note_read(self, now: float) -> None:
        """The caller has worked on a result, and asks for the next one."""
        self._quiet_since = now

    def has_ended(self, now: float) -> bool:
        """Whether every queue was read to where it ends, somebody stopped it, or nothing came
        within the `timeout`.

        Raises the error that kept one from it, when all others were.
        """
        timeout = self._settings.timeout
        if self.is_stopped or (timeout is not None and now - self._quiet_since >= timeout):
            return True
        if self._is_endless or self._ready or self._pulling:
            return False
        if self._unread is not None:
            raise self._unread
        return True

    def due(self, now: float) -> list[tuple[int, Call]]:
        """The pulls to start now, each with its queue."""
        calls: list[tuple[int, Call]] = []
        for _ in range(len(self._ready)):
            if self._is_full:
                break
            place = self._ready.popleft()
            if place.not_before > now:
                self._ready.append(place)
                continue
            self._pulling.add(place.queue_id)
            place.asked_at = now
            calls.append((place.queue_id, self._call(place)))
        return calls

    def sleep(self, now: float, longest: float) -> float:
        """How long to wait for an answer before asking `due` again."""
        if (timeout := self._settings.timeout) is not None:
            longest = min(longest, max(0.0, self._quiet_since + timeout - now))
        if self._awaited is not None:
            return min(longest, TOPIC_S)
        if not self._ready or self._is_full:
            return longest
        return min(longest, max(0.0, min(place.not_before for place in self._ready) - now))

    @property
    def _is_full(self) -> bool:
        return len(self._pulling) >= self._settings.in_flight

    def take(
        self, queue_id: int, outcome: NodeAnswer | errors.MqError, now: float
    ) -> PullResult | None:
        """An answer with messages, in order. Raises the error when it came too often.

        After one that says `more` the same pull goes on.
        """
        place = self._places[queue_id]
        if isinstance(outcome, errors.MqError):
            self._pulling.discard(queue_id)
            self._failed(place, outcome, now)
            return None
        place.failures = 0
        result = pull_result(outcome, self._topic, queue_id, place.generation)
        if place.asks_end:
            self._pulling.discard(queue_id)
            self._end_at(place, result.max_offset)
            return None
        moved = result.next_begin_offset != place.next_offset
        place.next_offset = result.next_begin_offset
        if outcome.header.get("more"):
            return result if result.count else None
        self._pulling.discard(queue_id)
        was_held = now >= place.asked_at + PAUSE_S
        place.not_before = 0.0 if moved or result.count or was_held else now + PAUSE_S
        dry = not moved and not result.count
        if place.end is None:
            if self._settings.follow or not dry:
                self._ready.append(place)
        else:
            result = result.below(place.end) if place.is_sure else result
            self._go_on(place, dry)
        return result if result.count else None

    def _go_on(self, place: _QueuePosition, dry: bool) -> None:
        """Whether a queue with an end is read on, or is asked for its end, or has come to it."""
        at_end = place.end is not None and place.next_offset >= place.end
        # A queue that ends before its end has lost its worker, or messages with the node's power.
        place.asks_end = dry if not at_end else not place.is_sure
        if not at_end or place.asks_end:
            self._ready.append(place)

    def _end_at(self, place: _QueuePosition, end: int) -> None:
        """The node knows where a queue ends."""
        assert place.end is not None
        place.end = min(place.end, end) if place.is_sure else end
        place.is_sure, place.asks_end = True, False
        if place.next_offset < place.end:
            self._ready.append(place)

    def _failed(self, place: _QueuePosition, error: errors.MqError, now: float) -> None:
        if isinstance(error, errors.CorruptError) and self._settings.on_damage != "fail":
            self._skip(place, error)
            return
        if isinstance(error, errors.TopicRemoved) and self._is_endless:
            self._begin_anew(place, error.generation)
            return
        place.failures += 1
        if not error.retriable or place.failures >= self._retry.max_attempts:
            if not place.asks_end:
                raise error
            self._unread = self._unread or error
            return
        place.not_before = now + self._retry.backoff * 2**place.failures
        self._ready.append(place)

    def _begin_anew(self, place: _QueuePosition, generation: int) -> None:
        """The topic was removed: a queue of the name begins at 0 now. Each queue hears of it by
        itself, and what it read before that was right."""
        if generation > self._generation:
            self._generation = generation
            self._say_removed()
        if self.cursor is not None:
            self.cursor.begin_anew(place.queue_id, generation)
        place.next_offset, place.generation, place.failures = 0, generation, 0
        self._ready.append(place)

    def _skip(self, place: _QueuePosition, error: errors.CorruptError) -> None:
        """Goes on after a damaged message. Damage that hides where the queue goes on ends it."""
        if not isinstance(error, errors.MessageDamaged) or error.next_offset <= place.next_offset:
            if place.end is None:
                raise error
            self._unread = self._unread or error
            return
        place.next_offset, place.failures = error.next_offset, 0
        pass_over(error, self._settings.on_damage, log)
        self._go_on(place, dry=False)

    def _wants(self, queue_id: int) -> bool:
        return self._settings.queues is None or queue_id in self._settings.queues

    def _add(self, queue: QueueOffsets, offset: int) -> None:
        end = queue.max_offset if self._settings.until_end else None
        is_sure = not queue.is_behind
        place = _QueuePosition(queue.queue_id, offset, end, queue.generation, is_sure)
        self._places[queue.queue_id] = place
        if end is None:
            self._ready.append(place)
        else:
            self._go_on(place, dry=False)

    def _call(self, place: _QueuePosition) -> Call:
        fields: dict[str, Any] = {
            "topic": self._topic,
            "queue": place.queue_id,
            "offset": BEHIND_ANY if place.asks_end else place.next_offset,
        }
        if place.generation is not None:
            fields["generation"] = place.generation
        if place.asks_end:
            return operations.pull_call(fields, 0.0, self._timeout)
        fields["max_messages"] = self._settings.max_messages
        fields["max_bytes"] = self._settings.max_bytes
        if self._settings.tags:
            fields["tags"] = self._settings.tags
        return operations.pull_call(fields, self._wait(place), self._timeout)

    def _wait(self, place: _QueuePosition) -> float:
        """How long the node may hold the pull."""
        if place.end is not None or not self._settings.follow:
            return 0.0
        is_crowded = len(self._places) > self._settings.in_flight
        return WAIT_S_CROWDED if is_crowded else WAIT_S


class Cursor:
    """The places of one cursor in the queues of a topic."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic = topic
        self.name = name
        self._committed: dict[int, int] = {}
        self._read: dict[int, int] = {}
        self._known_at: dict[int, int] = {}
        """By queue: a log offset at which its place was known; a topic removed later has others."""
        self._unsaved = 0
        self._commit_at = 0.0

    def begin(
        self,
        committed: Mapping[int, int],
        starts: Mapping[int, int],
        generation: int | None = None,
    ) -> None:
        """`committed`: the places that the node has; `starts`: where reading begins, in a topic of
        this generation.

        All starts are committed, those of silent queues too: a queue without a place is one that
        was added later.
        """
        self._committed, self._read = dict(committed), dict(starts)
        self._known_at = {} if generation is None else dict.fromkeys(starts, generation)

    def begin_anew(self, queue_id: int, generation: int) -> None:
        """The topic was removed, and is read from the start of the one that was made anew."""
        self._forget(generation)
        self._read[queue_id], self._known_at[queue_id] = 0, generation

    def _forget(self, generation: int) -> None:
        """Drops the places of a topic that was removed: this is the generation of the new one."""
        for queue_id in [one for one, at in self._known_at.items() if at < generation]:
            del self._known_at[queue_id]
            self._read.pop(queue_id, None)
            self._committed.pop(queue_id, None)

    def read_to(self, queue_id: int, offset: int, known_at: int | None = None) -> None:
        """All messages of a queue below `offset` were read, as of a log offset `known_at`. One of
        a topic that was removed says nothing of the new one."""
        if known_at is not None:
            if known_at < self._known_at.get(queue_id, 0):
                return
            self._known_at[queue_id] = known_at
        self._unsaved += offset - self._read.get(queue_id, 0)
        self._read[queue_id] = offset

    def is_due(self, now: float) -> bool:
        if self._unsaved >= COMMIT_EVERY_MESSAGES:
            return True
        return now >= self._commit_at and bool(self.moved())

    def moved(self) -> dict[int, int]:
        """The places that the node does not have."""
        committed = self._committed
        return {
            queue_id: offset
            for queue_id, offset in self._read.items()
            if committed.get(queue_id) != offset
        }

    def commit(self, now: float, deadline: float) -> Operation[None]:
        self._commit_at, self._unsaved = now + COMMIT_EVERY_S, 0
        places = self.moved()
        known_at = None
        if places.keys() <= self._known_at.keys():
            # A log offset at which all these places were known.
            known_at = min((self._known_at[queue_id] for queue_id in places), default=None)
        try:
            yield from operations.commit_cursor(
                self.topic, self.name, places, deadline, generation=known_at
            )
        except errors.TopicRemoved as removed:
            self._forget(removed.generation)
        else:
            self._committed.update(places)


class Follower(Generic[T]):
    """The messages, or results, of a topic. One thread iterates."""

    def __init__(self, tail: Subscription, items: Generator[T, None, None]) -> None:
        self._tail = tail
        self._items = items

    def __iter__(self) -> Iterator[T]:
        # A loop asks the generator itself: it costs nothing more for a message.
        return self._items

    def __next__(self) -> T:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stop(self) -> None:
        """Ends the iteration from any thread or a signal handler: within a second where it waits,
        else when the next item is asked for. The place until then is committed."""
        self._tail.stop()

    def close(self) -> None:
        """Ends it at once, in the thread that iterates, and commits its cursor. The item in hand
        does not count as read. Harmless when repeated."""
        self._items.close()


def check_start(start: object) -> None:
    """Raises BadRequest for what is not a place to start at."""
    is_number = isinstance(start, int) and not isinstance(start, bool)
    is_place = is_number or isinstance(start, datetime | Mapping)
    if not is_place and start not in ("latest", "earliest"):
        raise errors.BadRequest(
            f"start is {start!r}", "use 'latest', 'earliest', an offset, -N or a datetime"
        )


def start_offset(topic: str, queue: QueueOffsets, start: Start, deadline: float) -> Operation[int]:
    """The queue offset that `start` names. Negative numbers count back from the end; a queue that
    a mapping does not name was added later, and is read from its start."""
    if isinstance(start, Mapping):
        return start.get(queue.queue_id, queue.min_offset)
    if isinstance(start, datetime):
        asked = operations.seek(topic, queue.queue_id, start, {}, lambda _: deadline)
        return (yield from asked)
    if start == "latest":
        return queue.max_offset
    if start == "earliest":
        return queue.min_offset
    return max(queue.min_offset, queue.max_offset + start) if start < 0 else start
