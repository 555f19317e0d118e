"""A named cursor: how far its follower has read, and what is to be committed. No sockets, no clock.

The node keeps the place. Messages that were read and not committed come again after a crash: each
is read at least once.
"""

from collections.abc import Mapping

from keelog.client.operations import Operation, commit_cursor
from protocol.errors import TopicRemoved

COMMIT_EVERY_S = 1.0
COMMIT_EVERY_MESSAGES = 1_000


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
        self.forget(generation)
        self._read[queue_id], self._known_at[queue_id] = 0, generation

    def forget(self, generation: int) -> None:
        """Drops the places of a topic that was removed: this is the generation of the new one."""
        for queue_id in [one for one, at in self._known_at.items() if at < generation]:
            del self._known_at[queue_id]
            self._read.pop(queue_id, None)
            self._committed.pop(queue_id, None)

    def known_at(self, places: Mapping[int, int]) -> int | None:
        """A log offset at which all these places were known; None where nobody knows."""
        found = [self._known_at.get(queue_id) for queue_id in places]
        known = [at for at in found if at is not None]
        return min(known) if known and len(known) == len(found) else None

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
        """Whether it is time to commit."""
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

    def begin_commit(self, now: float) -> dict[int, int]:
        """The places to send now. They stay to be sent until `end_commit`."""
        self._commit_at, self._unsaved = now + COMMIT_EVERY_S, 0
        return self.moved()

    def end_commit(self, places: Mapping[int, int]) -> None:
        """The node has these."""
        self._committed.update(places)

    def commit(self, now: float, deadline: float) -> Operation[None]:
        """Sends the places that have moved."""
        places = self.begin_commit(now)
        known_at = self.known_at(places)
        try:
            yield from commit_cursor(self.topic, self.name, places, deadline, generation=known_at)
        except TopicRemoved as removed:
            self.forget(removed.generation)
        else:
            self.end_commit(places)
