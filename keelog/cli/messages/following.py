"""`keelog consume` without an end: through restarts of the node, and before there is a topic."""

import threading
import time
from collections.abc import Generator, Iterator, Mapping
from types import TracebackType
from typing import Self

import keelog
from keelog.cli.damaged_places import DamagedPlaces
from keelog.cli.messages.reading import (
    BoundedReader,
    ConsumeChoice,
    queues_of,
    starts_of,
)
from keelog.cli.output import say
from protocol.errors import BusyError, MqError, TopicRemoved, UnknownTopic

_LOOK_S = 1.0
_ASK_S = 2.0
_AGAIN_S = 0.5
_AHEAD_S = 0.1
"""How much longer a merge waits for messages of other queues."""


class NodeWatch:
    """Says when the node goes away, and when it is back. A thread that asks it now and then."""

    def __init__(self, client: keelog.Client) -> None:
        self._client = client
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keelog-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._ended.set()

    def _run(self) -> None:
        was_there = True
        while not self._ended.wait(_LOOK_S):
            try:
                is_there = bool(self._client.routes(timeout=_ASK_S).readers)
            except BusyError:
                is_there = False
            except MqError:
                return  # the client was closed
            if is_there != was_there and not self._ended.is_set():
                node = f"the node at {self._client.endpoint}"
                say(f"{node} is back" if is_there else f"waiting for {node}: it does not answer")
            was_there = is_there


class TopicPrinter:
    """Follows a topic. It goes on where it was when the node was away.

    `known` are the places of the cursor `cursor`, which begins there.
    """

    def __init__(
        self,
        client: keelog.Client,
        wanted: ConsumeChoice,
        damage: DamagedPlaces,
        known: Mapping[int, int],
        cursor: str | None = None,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._damage = damage
        self._known = known
        self._cursor = cursor
        self._has_told = False
        self.places: dict[int, int] | None = None
        """Where it goes on in each queue; None before there is a topic."""
        self.known_at: int | None = None
        """A log offset at which the places were known; a topic removed later has others."""

    def messages(self, is_merged: bool) -> Generator[keelog.Message, None, None]:
        """All messages from the first place on; merged: by store time."""
        turn = self._merged if is_merged else self._tail
        with NodeWatch(self._client):
            while True:
                try:
                    if self.places is None:
                        self.places = self._starts()
                    yield from turn(self.places)
                except UnknownTopic:
                    self._wait_for_topic()
                except TopicRemoved:
                    self._begin_anew()
                except BusyError:
                    time.sleep(_AGAIN_S)

    def _begin_anew(self) -> None:
        say(f"topic {self._wanted.topic} was removed: what is there now is read from its start")
        self._has_told, self.places, self._known = True, None, {}

    def _note(self, found: list[keelog.QueueOffsets]) -> None:
        """Takes in of which generation the topic is. Raises TopicRemoved for a later one."""
        now = found[0].generation if found else None
        if self.places is None:
            self.known_at = now
        elif now is not None and self.known_at is not None and self.known_at < now:
            raise TopicRemoved(f"topic {self._wanted.topic} was removed", generation=now)

    def _starts(self) -> dict[int, int]:
        found = queues_of(self._client, self._wanted)
        self._note(found)
        if self._has_told and self._wanted.first.kind != "time":
            # There was no topic when this began: all of it is new.
            return {queue.queue_id: queue.min_offset for queue in found}
        return starts_of(self._client, self._wanted, self._known)

    def _wait_for_topic(self) -> None:
        """Says it once. A topic that is removed and made again is read from its start."""
        if not self._has_told:
            say(f"there is no topic {self._wanted.topic} yet: waiting for it")
        self._has_told, self.places, self._known = True, None, {}
        time.sleep(_AGAIN_S)

    def _tail(self, places: dict[int, int]) -> Iterator[keelog.Message]:
        wanted = self._wanted
        for message in self._client.tail(
            wanted.topic, places, queues=wanted.queues or None, tags=wanted.tags,
            cursor=self._cursor, on_damage=self._meet, generation=self.known_at,
        ):  # fmt: skip
            yield message
            if message.queue_offset < places.get(message.queue_id, 0):
                places.update(dict.fromkeys(places, 0))  # the topic was made anew
            places[message.queue_id] = message.queue_offset + 1
            self.known_at = message.physical_offset

    def _meet(self, error: keelog.MessageDamaged) -> None:
        self._damage.meet(error, f"topic {self._wanted.topic}")

    def _merged(self, places: dict[int, int]) -> Iterator[keelog.Message]:
        """In each turn a message is printed when all queues were read up to a later look.

        What a look finds has been stored before anything that the next look does not find, if one
        worker places it; with several workers, unless one is more than _AHEAD_S slower.
        """
        goal = self._ends(places)
        while True:
            limit = self._ends(places)
            reader = BoundedReader(self._client, self._wanted, self._damage, is_merged=True)
            spans = {queue: range(places[queue], end) for queue, end in limit.items()}
            left = sum(places[queue] < goal.get(queue, 0) for queue in limit)
            for message in reader.read_of(self.known_at, spans) if left else ():
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
        found = queues_of(self._client, self._wanted)
        self._note(found)
        for queue in found:
            places.setdefault(queue.queue_id, queue.min_offset)
        return {queue.queue_id: queue.max_offset for queue in found}
