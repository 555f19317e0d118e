"""The position of a stream: the next offset of each queue, and the only JSON form that it has.

Spark compares offsets as text, so one position must have one text: with two, an idle query would
make batches without end. Queues are named topic, node, number, each level sorted by its text.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keelog.pipeline.bounds import QueueAt
from keelog.pipeline.errors import BadCheckpoint

INITIAL_KEY = "#initial"
"""Marks the position before the first batch. No topic's name has this character."""
GENERATIONS_KEY = "#generations"
"""Of topics that were removed once: which topic of the name the offsets count."""


class TopicAt(NamedTuple):
    """A topic of one node."""

    topic: str
    node: str

    @classmethod
    def of(cls, queue: QueueAt) -> "TopicAt":
        """That of a queue."""
        return cls(queue.topic, queue.node)


Generations = Mapping[TopicAt, int]


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The next row's offset of each queue. `is_initial`: no batch has been made from it yet."""

    offsets: Mapping[QueueAt, int]
    is_initial: bool = False
    generations: Generations = field(default_factory=dict)
    """Of topics that were removed before; 0 for all others."""

    def begun(self) -> "StreamPosition":
        """The same place, after a first batch without rows."""
        return StreamPosition(self.offsets, generations=self.generations)

    def later(self, now: Generations) -> dict[QueueAt, int]:
        """The offsets of topics that were removed since, as of the generations `now`."""
        topics = {at for at, number in now.items() if number > self.generations.get(at, 0)}
        return {
            queue: offset for queue, offset in self.offsets.items() if TopicAt.of(queue) in topics
        }

    def anew(self, now: Generations) -> "StreamPosition":
        """The same place, but 0 in topics that were removed since."""
        moved = dict.fromkeys(self.later(now), 0)
        if not moved:
            return self
        generations = self.merged(now, moved)
        return StreamPosition({**self.offsets, **moved}, self.is_initial, generations)

    def merged(self, now: Generations, queues: Iterable[QueueAt]) -> dict[TopicAt, int]:
        """The generations of this place, and those `now` of the topics of these queues. A node
        forgets one when nothing is left of before."""
        found = dict(self.generations)
        for at in {TopicAt.of(queue) for queue in queues}:
            number = max(found.get(at, 0), now.get(at, 0))
            if number:
                found[at] = number
        return found

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it: `{"topic": {"node": {"0": 23}}}`, for `json.dumps` without options."""
        answer: dict[str, Any] = {}
        for at in sorted(self.generations):
            of_topic = answer.setdefault(GENERATIONS_KEY, {}).setdefault(at.topic, {})
            of_topic[at.node] = self.generations[at]
        if self.is_initial:
            answer[INITIAL_KEY] = True
        for queue in sorted(self.offsets, key=lambda at: (at.topic, at.node, str(at.queue_id))):
            of_node = answer.setdefault(queue.topic, {}).setdefault(queue.node, {})
            of_node[str(queue.queue_id)] = self.offsets[queue]
        return answer


def parse_position(value: Any) -> StreamPosition:
    """What `StreamPosition.to_json` made. Raises BadCheckpoint for anything else."""
    if not isinstance(value, dict):
        raise _not_ours(value)
    topics = dict(value)
    is_initial = topics.pop(INITIAL_KEY, False)
    if not isinstance(is_initial, bool):
        raise _not_ours(value)
    generations: dict[TopicAt, int] = {}
    found = topics.pop(GENERATIONS_KEY, None)
    for topic, nodes in [] if found is None else _items(found, value):
        for node, number in _items(nodes, value):
            if type(number) is not int or number < 1:
                raise _not_ours(value)
            generations[TopicAt(topic, node)] = number
    offsets: dict[QueueAt, int] = {}
    for topic, nodes in topics.items():
        for node, queues in _items(nodes, value):
            for number, offset in _items(queues, value):
                is_number = number.isascii() and number.isdigit() and str(int(number)) == number
                if not is_number or type(offset) is not int or offset < 0:
                    raise _not_ours(value)
                offsets[QueueAt(topic, node, int(number))] = offset
    return StreamPosition(offsets, is_initial, generations)


def _items(inner: Any, whole: Any) -> list[tuple[str, Any]]:
    if not isinstance(inner, dict) or not inner:
        raise _not_ours(whole)
    return list(inner.items())


def _not_ours(value: Any) -> BadCheckpoint:
    return BadCheckpoint(
        f"the checkpoint's offsets are none of this source: {str(value)[:200]}",
        "the checkpoint folder that this very query made, or a new one",
    )
