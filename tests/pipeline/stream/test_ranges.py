"""What a batch reads and what of it is lost: nothing asked for vanishes without a word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.bounds import Extent, QueueAt
from keelog.pipeline.micro_batch import (
    StreamPosition,
    describe,
    plan_ranges,
    target_fault,
)

A, B = QueueAt("t", "n", 0), QueueAt("t", "n", 1)
QUEUES = [QueueAt(topic, "n", number) for topic in "ab" for number in range(2)]
OFFSETS = st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 30))


@st.composite
def extents(draw: st.DrawFn) -> dict[QueueAt, Extent]:
    lows = draw(OFFSETS)
    return {queue: Extent(queue, low, low + draw(st.integers(0, 9))) for queue, low in lows.items()}


@given(OFFSETS, OFFSETS, extents())
def test_every_row_that_is_asked_for_is_read_or_reported(
    start: dict[QueueAt, int], end: dict[QueueAt, int], there: dict[QueueAt, Extent]
) -> None:
    ranges = plan_ranges(StreamPosition(start), StreamPosition(end), there)
    for queue in set(start) | set(end):
        begin, until = start.get(queue, 0), end.get(queue)
        read = sum(found.high - found.low for found in ranges.found if found.queue == queue)
        lost = [loss for loss in ranges.lost if loss.queue == queue]
        if until is None:
            assert [loss.messages for loss in lost] == [None]
            assert not read
        else:
            assert read + sum(loss.messages or 0 for loss in lost) == abs(until - begin)
    for queue, first, last in ranges.found:
        assert there[queue].low <= first < last <= there[queue].high
        assert start.get(queue, 0) <= first < last <= end[queue]


@pytest.mark.parametrize(
    ("start", "end", "low", "high", "text"),
    [
        (5, 9, 7, 20, "t/0 of n: 2 messages, 5 to 6: it begins at 7 now"),
        (5, 9, 0, 8, "t/0 of n: 1 messages, 8 to 8: it ends at 8 now"),
        (9, 5, 0, 5, "t/0 of n: 4 messages, 5 to 8: it ended at 9 and ends at 5 now"),
        (None, 9, 3, 9, "t/0 of n: 3 messages, 0 to 2: it begins at 3 now"),
        (5, 9, None, None, "t/0 of n: 4 messages, 5 to 8: the queue is gone"),
        (5, None, None, None, "t/0 of n: an unknown number of messages, from 5 on: the queue is"),
        (5, 5, 9, 9, ""),
    ],
)
def test_a_loss_names_queue_count_and_offsets(
    start: int | None, end: int | None, low: int | None, high: int, text: str
) -> None:
    there = {} if low is None else {A: Extent(A, low, high)}
    ranges = plan_ranges(
        StreamPosition({} if start is None else {A: start}),
        StreamPosition({} if end is None else {A: end}),
        there,
    )
    assert describe(ranges.lost).startswith(text)
    assert bool(ranges.lost) == bool(text)


def test_the_first_batch_may_have_been_given_a_later_beginning() -> None:
    """It read nothing, died, and `latest` is further on when it is asked again."""
    there = {A: Extent(A, 0, 30)}
    assert plan_ranges(StreamPosition({A: 30, B: 3}, True), StreamPosition({A: 15}), there) == (
        [],
        [],
    )
    assert plan_ranges(StreamPosition({A: 3}, True), StreamPosition({A: 5}), there).found == [
        Extent(A, 3, 5)
    ]


def test_many_losses_are_summed_up() -> None:
    many = {QueueAt("t", "n", number): 4 for number in range(25)}
    lost = plan_ranges(StreamPosition(dict.fromkeys(many, 1)), StreamPosition(many), {}).lost
    assert "and 15 more queues; 75 messages in all" in describe(lost)


@pytest.mark.parametrize(
    ("end", "high", "words"),
    [
        ({A: 5, B: 5}, 5, ""),
        ({A: 2, B: 5}, 9, ""),
        ({A: 5}, 9, "t/1 of n: in the batch or in the target, not in both"),
        ({A: 5, B: 6}, 9, "beyond the target of t/1 of n"),
        ({A: 5, B: 5}, 4, "t/0 of n should end at 5 or later and ends at 4"),
        ({A: 5, B: 5}, None, "is gone"),
    ],
)
def test_a_target_that_moved_says_how(
    end: dict[QueueAt, int], high: int | None, words: str
) -> None:
    there = {} if high is None else {queue: Extent(queue, 0, high) for queue in (A, B)}
    fault = target_fault({A: 5, B: 5}, end, there)
    assert words in fault
    assert bool(fault) == bool(words)
