"""How far a micro-batch goes: Kafka's shares, by rows and by bytes, and the wait for enough."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.bounds import QueueAt
from keelog.pipeline.micro_batch import (
    TriggerLimits,
    end_by_bytes,
    end_by_rows,
    is_to_wait,
    pending,
)
from protocol.record.columns import Ints

QUEUES = [QueueAt("t", "n", number) for number in range(5)]
OFFSETS = st.integers(0, 2**60)
WAITING = st.dictionaries(
    st.sampled_from(QUEUES), st.tuples(OFFSETS, st.integers(0, 2**60)), min_size=1
)
Pair = tuple[dict[QueueAt, int], dict[QueueAt, int]]


def bounds(waiting: dict[QueueAt, tuple[int, int]]) -> Pair:
    start = {queue: at for queue, (at, _) in waiting.items()}
    return start, {queue: at + rows for queue, (at, rows) in waiting.items()}


@given(WAITING, st.integers(1, 2**62))
def test_a_limit_by_rows_is_kept_and_every_queue_moves(
    waiting: dict[QueueAt, tuple[int, int]], limit: int
) -> None:
    start, end = bounds(waiting)
    found = end_by_rows(limit, start, end)
    assert found.keys() == end.keys()
    for queue in end:
        assert start[queue] <= found[queue] <= end[queue]
        assert (found[queue] > start[queue]) == (end[queue] > start[queue])
    busy = pending(start, end)
    total = sum(busy.values())
    small = [queue for queue, rows in busy.items() if limit * rows < total]
    assert sum(pending(start, found).values()) <= limit + len(small)
    if total <= limit:
        assert found == end


def test_shares_are_kafkas() -> None:
    start = dict.fromkeys(QUEUES[:4], 100)
    end = {QUEUES[0]: 170, QUEUES[1]: 129, QUEUES[2]: 101, QUEUES[3]: 100}
    found = end_by_rows(10, start, end)
    # 10 * 70/100, 10 * 29/100 rounded down, 10 * 1/100 rounded up to one.
    assert [found[queue] - 100 for queue in QUEUES[:4]] == [7, 2, 1, 0]


@given(
    st.lists(st.lists(st.integers(1, 500), max_size=40), min_size=1, max_size=5),
    st.integers(1, 9000),
)
def test_a_limit_by_bytes_is_kept_and_every_queue_moves(
    records: list[list[int]], limit: int
) -> None:
    start = {queue: 7 for queue, _ in zip(QUEUES, records, strict=False)}
    end = {queue: 7 + len(of) for queue, of in zip(start, records, strict=True)}
    sizes_of = dict(zip(start, records, strict=True))

    def sizes(queue: QueueAt, first: int, last: int) -> Ints:
        return np.array(sizes_of[queue][first - 7 : last - 7], np.int64)

    found = end_by_bytes(limit, start, end, sizes)
    total = 0
    for queue, of in sizes_of.items():
        taken = of[: found[queue] - 7]
        assert bool(taken) == bool(of)
        total += sum(taken) if len(taken) > 1 else 0
    assert total <= limit
    steps = 0
    while start != end:
        start = end_by_bytes(limit, start, end, sizes)
        steps += 1
        assert steps <= 200, "it must end"


def test_a_large_backlog_is_cut_by_bytes_exactly() -> None:
    """More rows than are looked at in one step."""

    def sizes(_queue: QueueAt, first: int, last: int) -> Ints:
        return np.full(last - first, 100, np.int64)

    start, end = {QUEUES[0]: 5}, {QUEUES[0]: 1_000_005}
    assert end_by_bytes(2_000_050, start, end, sizes) == {QUEUES[0]: 20_005}
    assert end_by_bytes(10**12, start, end, sizes) == end


def test_a_batch_waits_for_enough_rows_but_not_longer_than_the_delay() -> None:
    limits = TriggerLimits(rows_min=10, delay_ms_max=1000)
    assert is_to_wait(limits, 9, 999)
    assert not is_to_wait(limits, 10, 0)
    assert not is_to_wait(limits, 9, 1000)
    assert not is_to_wait(limits, 9, None), "the first batch never waits"
    assert not is_to_wait(limits, 0, 0), "nothing to wait with"
    assert not is_to_wait(TriggerLimits(), 1, 0)
