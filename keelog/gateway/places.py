"""Whether a client may go on from the place that it has in memory, or where it goes on instead.

RocketMQ's clients keep the next offset of each queue in memory, and know of no generation. A place
in use on a connection that is older than the removal of its topic counts messages that are gone.
One on a later connection is sound if the client asked for it there (14); else it may come from
before, as that of a member whose connection broke meanwhile.

Tools let groups go on from another place (222), or give one the offsets of another (314). A member
has its place in memory, and would commit over a new one. So the new place waits here until the
member pulls: the reply says then to go on from there (ConsumerOffsetManager#assignResetOffset).
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from keelog.gateway.connection import RemotingConnection
from protocol.errors import NodeBusy
from protocol.remoting.header_fields import PullMessageHeader

NOTED_MAX = 65_536
"""Places in topics that were removed once, of which it is known that they are of the new one. When
there are more, those of one connection are forgotten, and what it pulls begins anew."""
RESETS_MAX = 65_536
"""Places that wait for a member that pulls; further ones are refused as busy."""


class GroupQueuePlace(NamedTuple):
    topic: str
    group: str
    queue_id: int


class PlaceVerdict(Enum):
    """What is known of a place."""

    SOUND = auto()
    STALE = auto()
    UNKNOWN = auto()


class ClientPlaces:
    """One for each gateway. `generation_of` gives the present one of a topic, 0 for one that was
    never removed: most topics cost a look into an empty table."""

    def __init__(self, generation_of: Callable[[str], int], log_end: Callable[[], int]) -> None:
        self.generation_of = generation_of
        self._log_end = log_end
        self._came_at: dict[RemotingConnection, int] = {}
        """Where the log ended when a connection came."""
        self._noted: dict[RemotingConnection, dict[GroupQueuePlace, int]] = {}
        self._count = 0

    def came(self, connection: RemotingConnection) -> None:
        self._came_at[connection] = self._log_end()

    def went(self, connection: RemotingConnection) -> None:
        self._came_at.pop(connection, None)
        self._count -= len(self._noted.pop(connection, ()))

    def note(self, connection: RemotingConnection, place: GroupQueuePlace) -> None:
        """From now on the client has a place of the topic that is there."""
        generation = self.generation_of(place.topic)
        if not generation or connection not in self._came_at:
            return
        noted = self._noted.setdefault(connection, {})
        self._count += place not in noted
        noted[place] = generation
        if self._count > NOTED_MAX:
            oldest = next(iter(self._noted))
            self._count -= len(self._noted.pop(oldest))

    def verdict(
        self, connection: RemotingConnection, place: GroupQueuePlace, known_at: int | None
    ) -> PlaceVerdict:
        """`known_at`: a log offset at which the client knew the place, if it says so."""
        generation = self.generation_of(place.topic)
        noted = self._noted.get(connection, {}).get(place) if generation else None
        if known_at is None:
            known_at = noted
        if known_at is not None or not generation:
            return PlaceVerdict.STALE if (known_at or 0) < generation else PlaceVerdict.SOUND
        # One that came where the log ended at the removal has had no message of the new topic.
        is_older = self._came_at.get(connection, 0) <= generation
        return PlaceVerdict.STALE if is_older else PlaceVerdict.UNKNOWN


class WaitingResets:
    """The places that groups shall go on from. Pulls and commits look here first."""

    def __init__(self, generation_of: Callable[[str], int]) -> None:
        self._generation_of = generation_of
        self._offsets: dict[GroupQueuePlace, tuple[int, int]] = {}
        """Each with the generation of its topic."""

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, place: GroupQueuePlace, offset: int) -> None:
        """A queue's group shall go on from an offset. Raises NodeBusy."""
        if len(self._offsets) >= RESETS_MAX and place not in self._offsets:
            raise NodeBusy(f"{RESETS_MAX} resets wait for members of groups")
        self._offsets[place] = offset, self._generation_of(place.topic)

    def find(self, topic: str, group: str, queue_id: int) -> int | None:
        """The place that waits for a group; None where none does."""
        place = GroupQueuePlace(topic, group, queue_id)
        offset, generation = self._offsets.get(place, (None, 0))
        if offset is None or generation >= self._generation_of(topic):
            return offset
        del self._offsets[place]  # of a topic that was removed
        return None

    def taken(self, wanted: PullMessageHeader) -> int | None:
        """As `find`, for a pull: what it returns does not wait any more."""
        place = GroupQueuePlace(wanted.topic, wanted.consumer_group, wanted.queue_id)
        found = self.find(*place)
        self._offsets.pop(place, None)
        return found

    def forget_topic(self, topic: str) -> None:
        self._offsets = {k: v for k, v in self._offsets.items() if k.topic != topic}

    def forget_group(self, group: str) -> None:
        self._offsets = {k: v for k, v in self._offsets.items() if k.group != group}
