"""The position of a streaming query, and what a micro-batch reads from there: pure functions.

The position is the next offset of each queue, in the only JSON form that it has. Spark compares
offsets as text, so one position must have one text: with two, an idle query would make batches
without end. Queues are named topic, node, number, each level sorted by its text.

From there: how far one micro-batch goes, what it reads of each queue, what of that is lost, and how
far the query is behind, from the progress that Spark reports of it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from keelog.pipeline.bounds import Extent, QueueAt
from keelog.pipeline.errors import BadCheckpoint, few
from protocol.record.columns import Ints

INITIAL_KEY = "#initial"
"""Marks the position before the first batch. No topic's name has this character."""
GENERATIONS_KEY = "#generations"
"""Of topics that were removed once: which topic of the name the offsets count."""
Offsets = Mapping[QueueAt, int]
Sizes = Callable[[QueueAt, int, int], Ints]
"""Bytes of the messages [from, to) of a queue; fewer, from the front, where it gives up."""
DELAY_MS = 15 * 60 * 1000
"""maxTriggerDelay, as in Spark's Kafka source."""
_STEP_ROWS = 4096
LISTED_MAX = 10
"""So many queues an error names; of the others it says how many they are."""


class TopicAt(NamedTuple):
    """A topic of one node."""

    topic: str
    node: str

    @classmethod
    def of(cls, queue: QueueAt) -> "TopicAt":
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


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """What the options say about one micro-batch. None: no limit."""

    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    delay_ms_max: int = DELAY_MS


def pending(start: Offsets, end: Offsets) -> dict[QueueAt, int]:
    """The rows that wait in each queue that has any. `start` must name every queue of `end`."""
    return {queue: end[queue] - start[queue] for queue in end if end[queue] > start[queue]}


def shares(limit: int, sizes: Mapping[QueueAt, float]) -> dict[QueueAt, int]:
    """`limit` by size, rounded down, but never nothing: no queue starves (Kafka's formula)."""
    total = sum(sizes.values())
    return {queue: max(int(limit * size / total), 1) for queue, size in sizes.items()}


def end_by_rows(limit: int, start: Offsets, end: Offsets) -> dict[QueueAt, int]:
    """`end`, or before it: about `limit` rows, each queue's share by what waits in it.

    At most `limit` rows, and one more of each queue whose share is less than one.
    """
    waiting = pending(start, end)
    total = sum(waiting.values())
    answer = dict(end)
    for queue, rows in waiting.items():
        # Whole numbers: offsets may be too large for a float.
        answer[queue] = min(end[queue], start[queue] + max(limit * rows // total, 1))
    return answer


def end_by_bytes(limit: int, start: Offsets, end: Offsets, sizes: Sizes) -> dict[QueueAt, int]:
    """`end`, or before it: records of about `limit` bytes, shared as `end_by_rows` shares rows.

    At most `limit` bytes, and one message more of each queue whose share its first exceeds.
    """
    waiting = pending(start, end)
    weights: dict[QueueAt, float] = {}
    for queue, rows in waiting.items():
        found = sizes(queue, start[queue], min(end[queue], start[queue] + _STEP_ROWS))
        weights[queue] = rows * (max(float(found.mean()), 1.0) if len(found) else 1.0)
    answer = dict(end)
    for queue, share in shares(limit, weights).items():
        answer[queue] = _end_within(share, queue, start[queue], end[queue], sizes)
    return answer


def _end_within(share: int, queue: QueueAt, start: int, end: int, sizes: Sizes) -> int:
    """The offset after the last message that fits, and at least one message."""
    at = start
    while at < end:
        found = sizes(queue, at, min(end, at + _STEP_ROWS))
        if not len(found):
            return end
        fits = int(np.searchsorted(np.cumsum(found), share, side="right"))
        at += fits
        if fits < len(found):
            break
        share -= int(found.sum())
    return max(at, start + 1)


def is_to_wait(limits: TriggerLimits, rows: int, since_trigger_ms: float | None) -> bool:
    """Whether a batch of `rows` should wait for more: there are some, too few, and it is early.

    `since_trigger_ms` is the time since the last batch with rows; None: there was none, and the
    first one never waits.
    """
    if limits.rows_min is None or since_trigger_ms is None:
        return False
    return 0 < rows < limits.rows_min and since_trigger_ms < limits.delay_ms_max


class Loss(NamedTuple):
    """Messages of a queue that a batch should have had. `messages` None: nobody knows how many."""

    queue: QueueAt
    messages: int | None
    why: str

    def __str__(self) -> str:
        count = "an unknown number of" if self.messages is None else str(self.messages)
        return f"{self.queue}: {count} messages, {self.why}"


class Ranges(NamedTuple):
    """What can be read, and what cannot any more."""

    found: list[Extent]
    lost: list[Loss]


def plan_ranges(
    start: StreamPosition, end: StreamPosition, extents: Mapping[QueueAt, Extent]
) -> Ranges:
    """The rows from `start` up to `end` that queues still have; `extents` has those that exist.

    A queue that `start` does not name is new: it is read from offset 0 on.
    """
    answer = Ranges([], [])
    for queue, until in end.offsets.items():
        begin = start.offsets.get(queue, 0)
        if until < begin:
            # A query that has read nothing may have been given a later beginning meanwhile.
            if not start.is_initial:
                why = f"{until} to {begin - 1}: it ended at {begin} and ends at {until} now"
                answer.lost.append(Loss(queue, begin - until, why))
        elif queue in extents:
            _plan_one(Extent(queue, begin, until), extents[queue], answer)
        elif begin < until:
            why = f"{begin} to {until - 1}: the queue is gone"
            answer.lost.append(Loss(queue, until - begin, why))
    for queue in sorted(set(start.offsets) - set(end.offsets)):
        if not start.is_initial:
            why = f"from {start.offsets[queue]} on: the queue is gone, or not selected any more"
            answer.lost.append(Loss(queue, None, why))
    return answer


def _plan_one(asked: Extent, extent: Extent, answer: Ranges) -> None:
    queue, begin, until = asked
    first = min(max(begin, extent.low), until)
    last = max(min(until, extent.high), first)
    if first > begin:
        why = f"{begin} to {first - 1}: it begins at {extent.low} now"
        answer.lost.append(Loss(queue, first - begin, why))
    if last < until:
        why = f"{last} to {until - 1}: it ends at {extent.high} now"
        answer.lost.append(Loss(queue, until - last, why))
    if first < last:
        answer.found.append(Extent(queue, first, last))


def removed(offsets: Mapping[QueueAt, int]) -> list[Loss]:
    """The losses in topics that were removed. A query that was at 0 had read nothing, and misses
    nothing."""
    why = "its topic was removed since, and what is there now begins at 0"
    return [Loss(queue, None, f"from {at} on: {why}") for queue, at in offsets.items() if at]


def describe(lost: Iterable[Loss]) -> str:
    """All losses in one sentence, with the sum of what is known."""
    listed = list(lost)
    text = "; ".join(str(one) for one in listed[:LISTED_MAX])
    if len(listed) > LISTED_MAX:
        text += f"; and {len(listed) - LISTED_MAX} more queues"
    total = sum(one.messages or 0 for one in listed)
    return f"{text}; {total} messages in all" if len(listed) > 1 else text


def target_fault(
    target: Mapping[QueueAt, int], end: Mapping[QueueAt, int], extents: Mapping[QueueAt, Extent]
) -> str:
    """What is wrong with a batch of availableNow that ends at `end`; empty: nothing.

    The queues are those of the target, none goes beyond it, and the target is still there.
    """
    other = sorted(set(target) ^ set(end))
    if other:
        return f"{few(other)}: in the batch or in the target, not in both"
    beyond = sorted(queue for queue in end if end[queue] > target[queue])
    if beyond:
        return f"the batch goes beyond the target of {few(beyond)}"
    short = sorted(
        queue for queue in target if queue not in extents or extents[queue].high < target[queue]
    )
    if short:
        texts = [
            f"{queue} should end at {target[queue]} or later and"
            f" {f'ends at {extents[queue].high}' if queue in extents else 'is gone'}"
            for queue in short[:LISTED_MAX]
        ]
        return ", ".join(texts)
    return ""


def lag_by_queue(progress: Any) -> dict[QueueAt, int]:
    """Messages that each queue had after the batch when the batch was planned.

    `progress` is a StreamingQueryProgress, its JSON, or that as a dict; None, which a query has
    before its first batch, is no queue. Sources of other formats are left out.
    """
    if isinstance(progress, str):
        progress = json.loads(progress)
    answer: dict[QueueAt, int] = {}
    for source in _get(progress, "sources") or ():
        end, latest = _position(source, "endOffset"), _position(source, "latestOffset")
        if end is None or latest is None:
            continue
        for queue, offset in latest.offsets.items():
            lag = max(offset - end.offsets.get(queue, 0), 0)
            answer[queue] = max(lag, answer.get(queue, 0))
    return answer


def lag(progress: Any) -> int:
    """The sum over all queues."""
    return sum(lag_by_queue(progress).values())


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _position(source: Any, name: str) -> StreamPosition | None:
    found = _get(source, name)
    try:
        return parse_position(json.loads(found) if isinstance(found, str) else found)
    except (BadCheckpoint, json.JSONDecodeError):
        return None
