"""The position of a stream: the next offset of each queue, and the only JSON form that it has.

Spark compares offsets as text, so one position must have one text: with two, an idle query would
make batches without end. Queues are named topic, node, number, each level sorted by its text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.bounds import QueueAt
from pipeline.errors import BadCheckpoint

INITIAL_KEY = "#initial"
"""Marks the position before the first batch. No topic's name has this character."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The next row's offset of each queue. `is_initial`: no batch has been made from it yet."""

    offsets: Mapping[QueueAt, int]
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it: `{"topic": {"node": {"0": 23}}}`, for `json.dumps` without options."""
        answer: dict[str, Any] = {INITIAL_KEY: True} if self.is_initial else {}
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
    offsets: dict[QueueAt, int] = {}
    for topic, nodes in topics.items():
        for node, queues in _items(nodes, value):
            for number, offset in _items(queues, value):
                is_number = number.isascii() and number.isdigit() and str(int(number)) == number
                if not is_number or type(offset) is not int or offset < 0:
                    raise _not_ours(value)
                offsets[QueueAt(topic, node, int(number))] = offset
    return StreamPosition(offsets, is_initial)


def _items(inner: Any, whole: Any) -> list[tuple[str, Any]]:
    if not isinstance(inner, dict) or not inner:
        raise _not_ours(whole)
    return list(inner.items())


def _not_ours(value: Any) -> BadCheckpoint:
    return BadCheckpoint(
        f"the checkpoint's offsets are none of this source: {str(value)[:200]}",
        "the checkpoint folder that this very query made, or a new one",
    )
