"""Which messages `keelog consume` prints: up to an end, or without one.

Up to an end it reads queue after queue, or merged. Without one it goes on through restarts of the
node, and begins before there is a topic. Damage costs one queue its damaged messages, and nothing
else.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import keelog
from keelog.cli.messages.selectors import StartPoint
from keelog.cli.output import say
from keelog.cli.shapes import DamagedPlaces
from keelog.client.subscription import BEHIND_ANY
from keelog.text import Advance
from protocol.errors import BusyError, CorruptError, MqError, NotFound, TopicRemoved, UnknownTopic

_CATCH_UP_S = 5.0
_PAUSE_S = 0.01
_PULL_MESSAGES = 1024
_PULL_BYTES = 1024 * 1024
_MERGED_BYTES = 16 * 1024 * 1024
"""What a merge looks ahead, of all queues together; a queue has one pull of 64 KiB at least."""
_MERGED_PULL_BYTES_LEAST = 64 * 1024
_STILL_PULLS_MAX = 3
_LOOK_S = 1.0
_ASK_S = 2.0
_AGAIN_S = 0.5
_AHEAD_S = 0.1
"""How much longer a merge waits for messages of other queues."""


class ConsumeChoice(NamedTuple):
    """Which messages of a topic."""

    topic: str
    queues: tuple[int, ...]
    tags: str | None
    first: StartPoint
    last: StartPoint | None


@dataclass(slots=True, eq=False)
class BoundedReader:
    """Reads queues of a topic from the first place to the last.

    `finished` has the queues that were read to their end, with it. `starts`, where it names a
    queue, counts instead of the first place.
    """

    client: keelog.Client
    wanted: ConsumeChoice
    damage: DamagedPlaces = field(default_factory=DamagedPlaces)
    starts: Mapping[int, int] = field(default_factory=dict)
    is_merged: bool = False
    finished: dict[int, int] = field(default_factory=dict)
    _pull_bytes: int = _PULL_BYTES
    _generation: int | None = None

    def read_to_end(
        self, advance: Advance = lambda _done, _total: None
    ) -> Iterator[keelog.Message]:
        """Without a last place to the end of the log as it is now. `advance` gets how many offsets
        are done, and how many there are."""
        wanted = self.wanted
        to_the_end = wanted.last is None or wanted.last.kind != "offset"
        is_short = to_the_end and not wait_until_dispatched(self.client)
        found = queues_of(self.client, wanted)
        generation = found[0].generation if found else None
        spans = {queue.queue_id: self._span(queue) for queue in found}
        total = sum(map(len, spans.values()))
        done, places = 0, {queue_id: span.start for queue_id, span in spans.items()}
        for message in self.read(spans, generation):
            yield message
            done += message.queue_offset + 1 - places[message.queue_id]
            places[message.queue_id] = message.queue_offset + 1
            advance(done, total)
        if is_short:
            # The node knows which queues have more than their worker has placed.
            yield from self.read(self._behind(spans), generation)

    def read(self, spans: Mapping[int, range], generation: int | None) -> Iterator[keelog.Message]:
        """These offsets of each queue. Merged: in the order in which the messages were stored.
        Raises TopicRemoved for a topic of an earlier generation."""
        self._generation = generation
        if self.is_merged:
            share = _MERGED_BYTES // max(1, len(spans))
            self._pull_bytes = min(_PULL_BYTES, max(_MERGED_PULL_BYTES_LEAST, share))
        streams: Iterable[Iterator[keelog.Message]] = (
            self._read(queue_id, span) for queue_id, span in spans.items()
        )
        if self.is_merged:
            # The log has all messages in the order of their store times, which never run backwards.
            return heapq.merge(*streams, key=lambda message: message.physical_offset)
        return itertools.chain.from_iterable(streams)

    def _span(self, queue: keelog.QueueOffsets) -> range:
        """The wanted offsets of a queue; none when they end before they start."""
        client, wanted = self.client, self.wanted
        start = self.starts.get(queue.queue_id)
        if start is None:
            start = offset_of(client, wanted.topic, queue, wanted.first)
        end = queue.max_offset
        if wanted.last is not None:
            end = min(end, offset_of(client, wanted.topic, queue, wanted.last))
        return range(start, max(start, end))

    def _behind(self, spans: Mapping[int, range]) -> dict[int, range]:
        found = {}
        for queue_id, span in spans.items():
            try:
                known = self.client.pull(self.wanted.topic, queue_id, BEHIND_ANY, max_messages=1)
            except CorruptError as error:
                self.damage.meet(error, self._name(queue_id))
                continue
            found[queue_id] = range(span.stop, known.max_offset)
        return found

    def _read(self, queue_id: int, span: range) -> Iterator[keelog.Message]:
        offset, end = span.start, span.stop
        still = 0
        while offset < end:
            try:
                result = self.client.pull(
                    self.wanted.topic, queue_id, offset, tags=self.wanted.tags,
                    max_messages=_PULL_MESSAGES, max_bytes=self._pull_bytes,
                    generation=self._generation,
                )  # fmt: skip
            except CorruptError as error:
                after = self.damage.meet(error, self._name(queue_id))
                if after is None or after <= offset:
                    return
                offset = after
                continue
            yield from (message for message in result.messages if message.queue_offset < end)
            # An offset that does not move (a file is just being removed) is tried again, not for
            # ever.
            still = 0 if result.next_begin_offset > offset else still + 1
            if still >= _STILL_PULLS_MAX:
                return
            if still:
                time.sleep(_PAUSE_S)
            offset = max(offset, result.next_begin_offset)
        self.finished[queue_id] = max(end, span.start)

    def _name(self, queue_id: int) -> str:
        return f"queue {queue_id} of {self.wanted.topic}"


def wait_until_dispatched(client: keelog.Client, roles: Collection[str] = ("queue",)) -> bool:
    """Waits, for some seconds at most, until the queues hold all that the log held at the call;
    with the role `index` the index too. Returns False when they do not by then, or when such a
    worker stopped before damage."""
    deadline = time.monotonic() + _CATCH_UP_S
    end = client.status().log.readable
    while time.monotonic() < deadline:
        workers = [one for one in client.status().processes if one.role in roles]
        if any(worker.state == "damaged" for worker in workers):
            return False
        if all(worker.offset is not None and worker.offset >= end for worker in workers):
            return True
        time.sleep(_PAUSE_S)
    return False


def queues_of(client: keelog.Client, wanted: ConsumeChoice) -> list[keelog.QueueOffsets]:
    """The wanted queues. Raises UnknownTopic, and NotFound for a queue that is not there."""
    found = client.offsets(wanted.topic)
    missing = set(wanted.queues) - {queue.queue_id for queue in found}
    if missing:
        raise NotFound(
            f"topic {wanted.topic} has no queue {min(missing)}",
            f"keelog topic describe {wanted.topic}",
        )
    return [queue for queue in found if not wanted.queues or queue.queue_id in wanted.queues]


def starts_of(
    client: keelog.Client, wanted: ConsumeChoice, known: Mapping[int, int]
) -> dict[int, int]:
    """Where to begin in each queue: at the first place, or where a cursor is `known` to be.

    A queue of which the cursor knows nothing was added later.
    """
    return {
        queue.queue_id: known.get(queue.queue_id, queue.min_offset)
        if known
        else offset_of(client, wanted.topic, queue, wanted.first)
        for queue in queues_of(client, wanted)
    }


def offset_of(
    client: keelog.Client, topic: str, queue: keelog.QueueOffsets, place: StartPoint
) -> int:
    """The offset in a queue that a place means, within the queue's bounds."""
    match place.kind:
        case "start":
            offset = queue.min_offset
        case "end":
            offset = queue.max_offset
        case "offset":
            offset = place.value
        case "from_start":
            offset = queue.min_offset + place.value
        case "from_end":
            offset = queue.max_offset - place.value
        case "time":
            offset = client.seek(topic, queue.queue_id, place.value)
    return min(max(offset, queue.min_offset), queue.max_offset)


@contextmanager
def watched(client: keelog.Client) -> Iterator[None]:
    """Meanwhile a thread asks the node now and then, and says when it goes away and is back."""
    ended = threading.Event()

    def watch() -> None:
        was_there = True
        while not ended.wait(_LOOK_S):
            try:
                is_there = bool(client.routes(timeout=_ASK_S).readers)
            except BusyError:
                is_there = False
            except MqError:
                return  # the client was closed
            if is_there != was_there and not ended.is_set():
                node = f"the node at {client.endpoint}"
                say(f"{node} is back" if is_there else f"waiting for {node}: it does not answer")
            was_there = is_there

    threading.Thread(target=watch, name="keelog-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


@dataclass(slots=True, eq=False)
class TopicPrinter:
    """Follows a topic. It goes on where it was when the node was away.

    `known` are the places of the cursor `cursor`, which begins there.
    """

    client: keelog.Client
    wanted: ConsumeChoice
    damage: DamagedPlaces
    known: Mapping[int, int]
    cursor: str | None = None
    places: dict[int, int] | None = None
    """Where it goes on in each queue; None before there is a topic."""
    known_at: int | None = None
    """A log offset at which the places were known; a topic removed later has others."""
    _was_missing: bool = False

    def messages(self, is_merged: bool) -> Generator[keelog.Message, None, None]:
        """All messages from the first place on; merged: by store time."""
        turn = self._merged if is_merged else self._tail
        with watched(self.client):
            while True:
                try:
                    if self.places is None:
                        self.places = self._starts()
                    yield from turn(self.places)
                except UnknownTopic:
                    if not self._was_missing:
                        say(f"there is no topic {self.wanted.topic} yet: waiting for it")
                    self._begin_anew()
                    time.sleep(_AGAIN_S)
                except TopicRemoved:
                    topic = self.wanted.topic
                    say(f"topic {topic} was removed: what is there now is read from its start")
                    self._begin_anew()
                except BusyError:
                    time.sleep(_AGAIN_S)

    def _begin_anew(self) -> None:
        """A topic that is removed and made again is read from its start."""
        self._was_missing, self.places, self.known = True, None, {}

    def _note(self, found: list[keelog.QueueOffsets]) -> None:
        """Takes in of which generation the topic is. Raises TopicRemoved for a later one."""
        now = found[0].generation if found else None
        if self.places is None:
            self.known_at = now
        elif now is not None and self.known_at is not None and self.known_at < now:
            raise TopicRemoved(f"topic {self.wanted.topic} was removed", generation=now)

    def _starts(self) -> dict[int, int]:
        found = queues_of(self.client, self.wanted)
        self._note(found)
        if self._was_missing and self.wanted.first.kind != "time":
            # There was no topic when this began: all of it is new.
            return {queue.queue_id: queue.min_offset for queue in found}
        return starts_of(self.client, self.wanted, self.known)

    def _tail(self, places: dict[int, int]) -> Iterator[keelog.Message]:
        wanted, topic = self.wanted, f"topic {self.wanted.topic}"
        for message in self.client.tail(
            wanted.topic, places, queues=wanted.queues or None, tags=wanted.tags,
            cursor=self.cursor, on_damage=lambda error: self.damage.meet(error, topic),
            generation=self.known_at,
        ):  # fmt: skip
            yield message
            if message.queue_offset < places.get(message.queue_id, 0):
                places.update(dict.fromkeys(places, 0))  # the topic was made anew
            places[message.queue_id] = message.queue_offset + 1
            self.known_at = message.physical_offset

    def _merged(self, places: dict[int, int]) -> Iterator[keelog.Message]:
        """In each turn a message is printed when all queues were read up to a later look.

        What a look finds has been stored before anything that the next look does not find, if one
        worker places it; with several workers, unless one is more than _AHEAD_S slower.
        """
        goal = self._ends(places)
        while True:
            limit = self._ends(places)
            reader = BoundedReader(self.client, self.wanted, self.damage, is_merged=True)
            spans = {queue: range(places[queue], end) for queue, end in limit.items()}
            left = sum(places[queue] < goal.get(queue, 0) for queue in limit)
            for message in reader.read(spans, self.known_at) if left else ():
                yield message
                queue, after = message.queue_id, message.queue_offset + 1
                left -= places[queue] < goal.get(queue, 0) <= after
                places[queue] = after
                if not left:
                    break
            else:
                places.update(reader.finished)
            time.sleep(_AHEAD_S)
            goal = limit

    def _ends(self, places: dict[int, int]) -> dict[int, int]:
        found = queues_of(self.client, self.wanted)
        self._note(found)
        for queue in found:
            places.setdefault(queue.queue_id, queue.min_offset)
        return {queue.queue_id: queue.max_offset for queue in found}
