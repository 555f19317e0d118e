"""Which records of the log are gone although the log still has them: the rule, in one place.

A topic was removed at a log offset, its horizon: no record of the topic below the horizon exists
for queues, their ends, or readers. The horizon is also the generation of the topic that is made
anew: a place that was known at a lower log offset counts messages that are gone. A queue was purged
up to a log offset: readers do not get what is below, but the queue keeps its units and its numbers
go on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from protocol.errors import TopicRemoved
from protocol.ids import Queue

if TYPE_CHECKING:
    from protocol.record.columns import Bools, RecordColumns


class RemovedTopic(NamedTuple):
    """`horizon`: no record of the topic below this log offset exists.

    `table_version` is that of the topic table before the topic's entry was taken out: a table that
    still has it was saved before the removal.
    """

    horizon: int
    table_version: int = 0


@dataclass(frozen=True, slots=True)
class Removed:
    """The removed topics, and the log offset that each purged queue begins at.

    `number` rises with each change. A store in which nothing was removed pays for one test a batch.
    """

    number: int = 0
    topics: Mapping[str, RemovedTopic] = field(default_factory=dict)
    queues: Mapping[Queue, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The log offset from which on nothing is removed."""
        horizons = (topic.horizon for topic in self.topics.values())
        return max([0, *horizons, *self.queues.values()])

    def horizon(self, topic: str) -> int:
        """The log offset below which a topic has no records."""
        found = self.topics.get(topic)
        return 0 if found is None else found.horizon

    def check_place(self, topic: str, known_at: int | None) -> None:
        """Raises TopicRemoved for a place in a topic that was known at a log offset before the
        removal of the topic; None: nobody says when."""
        if known_at is not None and self.topics and known_at < self.horizon(topic):
            raise TopicRemoved(
                f"topic {topic} was removed: the offset counts messages that are gone",
                "begin at offset 0 of the topic that was made anew",
                self.horizon(topic),
            )

    def begin_of(self, queue: Queue) -> int:
        """The log offset below which nobody reads a record of this queue."""
        return max(self.horizon(queue.topic), self.queues.get(queue, 0))

    def hides(self, queue: Queue, offset: int) -> bool:
        """True if nobody reads the record of this queue at this log offset."""
        return bool(self.topics or self.queues) and offset < self.begin_of(queue)

    def dispatched(self, columns: "RecordColumns") -> "RecordColumns":
        """The records that queues are made of: all but those of removed topics."""
        if not self.topics:
            return columns
        if not _begins_below(columns, (topic.horizon for topic in self.topics.values())):
            return columns
        return self._kept(columns, {})

    def visible(self, columns: "RecordColumns") -> "RecordColumns":
        """The records that readers get: as `dispatched`, without those of purged queues."""
        if not self.queues:
            return self.dispatched(columns)
        return self._kept(columns, self.queues) if _begins_below(columns, [self.end]) else columns

    def _kept(self, columns: "RecordColumns", queues: Mapping[Queue, int]) -> "RecordColumns":
        # The supervisor has the rule without its records, and does without numpy.
        import numpy as np

        from protocol.record.columns import group_topics

        names, topic_id = group_topics(columns)
        horizons = np.array([self.horizon(name) for name in names], np.int64)
        kept: Bools = columns.physical_offset >= horizons[topic_id]
        place = {name: number for number, name in enumerate(names)}
        for (topic, queue_id), begin in queues.items():
            if topic in place:
                is_of_queue = (topic_id == place[topic]) & (columns.queue_id == queue_id)
                kept &= ~is_of_queue | (columns.physical_offset >= begin)
        return columns if kept.all() else columns.take(kept)

    def next_offsets(self, at: int, known: Mapping[Queue, int]) -> dict[Queue, int]:
        """The queues' next offsets as known when the log ended at `at`, of topics that are left."""
        return {queue: n for queue, n in known.items() if at > self.horizon(queue.topic)}

    # Changes, each of them a new value

    def without_topic(self, topic: str, horizon: int, table_version: int) -> "Removed":
        """After the removal of a topic whose records all lie below `horizon`."""
        return replace(
            self,
            number=self.number + 1,
            topics={**self.topics, topic: RemovedTopic(horizon, table_version)},
            queues={queue: at for queue, at in self.queues.items() if queue.topic != topic},
        )

    def with_purged(self, begins: Mapping[Queue, int]) -> "Removed":
        """After a purge of queues, which begin at these log offsets now, if not later already."""
        risen = {queue: at for queue, at in begins.items() if at > self.begin_of(queue)}
        if not risen:
            return self
        return replace(self, number=self.number + 1, queues={**self.queues, **risen})

    def within(self, start: int, end: int) -> "Removed":
        """What still matters to a log of [`start`, `end`): `self` if that is all.

        The log can end below a horizon only after a repair cut it. New records follow there.
        """
        topics = {
            name: one._replace(horizon=min(one.horizon, end))
            for name, one in self.topics.items()
            if one.horizon > start
        }
        queues = {queue: min(at, end) for queue, at in self.queues.items() if at > start}
        if topics == self.topics and queues == self.queues:
            return self
        return Removed(self.number + 1, topics, queues)


def _begins_below(columns: "RecordColumns", ends: Iterable[int]) -> bool:
    return len(columns) > 0 and int(columns.physical_offset[0]) < max(ends)


NOTHING_REMOVED = Removed()
