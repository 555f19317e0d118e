"""From ranges to partitions: every row once, within the limits."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.pipeline.bounds import PartitionLimits, Range, log_borders, plan_partitions, share

RANGES = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 300), st.floats(1, 1000)), max_size=8
).map(
    lambda items: [
        Range(place, start, start + count, size) for place, (start, count, size) in enumerate(items)
    ]
)
LIMITS = st.builds(
    PartitionLimits,
    st.integers(1, 1 << 20),
    st.one_of(st.none(), st.integers(1, 400)),
    st.integers(1, 40),
)


@given(RANGES, LIMITS)
def test_every_row_is_in_exactly_one_partition_and_in_order(
    ranges: list[Range], limits: PartitionLimits
) -> None:
    parts = plan_partitions(ranges, limits)
    for found in ranges:
        slices = [piece for part in parts for piece in part if piece.source == found.source]
        rows = [row for piece in slices for row in range(piece.start, piece.end)]
        assert rows == list(range(found.start, found.end))
    assert all(piece.rows > 0 for part in parts for piece in part)
    assert all(parts)


@given(RANGES, LIMITS)
def test_partitions_keep_the_limits(ranges: list[Range], limits: PartitionLimits) -> None:
    parts = plan_partitions(ranges, limits)
    total = sum(found.rows for found in ranges)
    assert len(parts) >= min(limits.partitions_min, total)
    if limits.records_max is not None:
        assert all(sum(piece.rows for piece in part) <= limits.records_max for part in parts)


@given(RANGES, st.integers(1, 1 << 20))
def test_bytes_are_aimed_at(ranges: list[Range], bytes_max: int) -> None:
    """A partition of long queues is over the aim by at most a row of each."""
    size = sum(found.rows * found.row_bytes for found in ranges)
    parts = plan_partitions(ranges, PartitionLimits(bytes_max))
    row = sum(found.row_bytes for found in ranges)
    if all(found.rows >= len(parts) for found in ranges):
        for part in parts:
            assert sum(piece.rows * piece.row_bytes for piece in part) <= bytes_max + row
    assert len(parts) <= size // bytes_max + 1 or len(parts) <= sum(f.rows for f in ranges)


def test_queues_that_grow_side_by_side_are_cut_side_by_side() -> None:
    ranges = [Range(0, 0, 100, 10.0), Range(1, 500, 700, 10.0)]
    assert plan_partitions(ranges, PartitionLimits(1500)) == [
        [Range(0, 0, 50, 10.0), Range(1, 500, 600, 10.0)],
        [Range(0, 50, 100, 10.0), Range(1, 600, 700, 10.0)],
    ]


@given(st.integers(0, 10**12), st.integers(0, 10**10), LIMITS)
def test_borders_of_the_log_rise_strictly_inside_it(
    start: int, size: int, limits: PartitionLimits
) -> None:
    limits = limits._replace(bytes_max=max(limits.bytes_max, size // 1000 + 1))
    borders = log_borders(start, start + size, limits)
    assert borders == sorted(set(borders))
    assert all(start < border < start + size for border in borders)
    edges = [start, *borders, start + size]
    assert all(b - a <= limits.bytes_max for a, b in pairwise(edges))
    assert len(borders) + 1 >= min(limits.partitions_min, max(size, 1))


@pytest.mark.parametrize(
    ("parts", "expected"), [((1, 1), [2, 2]), ((0, 4), [1, 4]), ((0, 0), [1, 1])]
)
def test_stores_share_the_partitions_by_size(parts: tuple[int, int], expected: list[int]) -> None:
    limits = PartitionLimits(1, None, 4)
    assert [share(limits, part, sum(parts)).partitions_min for part in parts] == expected
