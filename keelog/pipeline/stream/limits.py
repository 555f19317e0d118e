"""How far one micro-batch goes: pure functions of where it starts and where the queues end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from keelog.pipeline.bounds import QueueAt
from protocol.record.columns import Ints

Offsets = Mapping[QueueAt, int]
Sizes = Callable[[QueueAt, int, int], Ints]
"""Bytes of the messages [from, to) of a queue; fewer, from the front, where it gives up."""

DELAY_MS = 15 * 60 * 1000
"""maxTriggerDelay, as in Spark's Kafka source."""
_STEP_ROWS = 4096


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
    weights = {
        queue: rows * _mean_size(queue, start[queue], end[queue], sizes)
        for queue, rows in waiting.items()
    }
    answer = dict(end)
    for queue, share in shares(limit, weights).items():
        answer[queue] = _end_within(share, queue, start[queue], end[queue], sizes)
    return answer


def _mean_size(queue: QueueAt, start: int, end: int, sizes: Sizes) -> float:
    found = sizes(queue, start, min(end, start + _STEP_ROWS))
    return max(float(found.mean()), 1.0) if len(found) else 1.0


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
