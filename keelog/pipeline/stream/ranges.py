"""What one micro-batch reads of each queue, and what of that is lost: pure functions."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from keelog.pipeline.bounds import Extent, QueueAt
from keelog.pipeline.errors import few
from keelog.pipeline.plan.offsets import StreamPosition

LISTED_MAX = 10
"""So many queues an error names; of the others it says how many they are."""


class QueueRange(NamedTuple):
    """Rows [`start`, `end`) of a queue."""

    queue: QueueAt
    start: int
    end: int


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

    found: list[QueueRange]
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
            _plan_one(QueueRange(queue, begin, until), extents[queue], answer)
        elif begin < until:
            why = f"{begin} to {until - 1}: the queue is gone"
            answer.lost.append(Loss(queue, until - begin, why))
    for queue in sorted(set(start.offsets) - set(end.offsets)):
        if not start.is_initial:
            why = f"from {start.offsets[queue]} on: the queue is gone, or not selected any more"
            answer.lost.append(Loss(queue, None, why))
    return answer


def _plan_one(asked: QueueRange, extent: Extent, answer: Ranges) -> None:
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
        answer.found.append(QueueRange(queue, first, last))


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
