"""What a reader makes of hints: which queues to look at, and when one was lost."""

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.reader.growth_notices import GRACE_S, Hint, HintCount, parse_hint
from protocol.ids import Queue

A, B = Queue("a", 0), Queue("b", 7)


def hint(number: int, *queues: Queue) -> bytes:
    return bytes(msgpack.packb([3, number, queues]))


@pytest.fixture
def count() -> HintCount:
    """In step with a worker that has sent 5 hints."""
    count = HintCount()
    assert not count.receive(5)
    return count


def test_a_hint_names_a_shard_and_queues() -> None:
    assert parse_hint(hint(7, B, A)) == Hint(3, 7, [B, A])
    assert parse_hint(hint(8)) == Hint(3, 8, [])


def test_hints_in_a_row_are_not_missed(count: HintCount) -> None:
    assert count.receive(6)
    assert count.receive(7)


@pytest.mark.parametrize("number", [5, 7, 4, 1, 10**9])
def test_a_gap_in_the_numbers_is_seen_and_the_row_goes_on(count: HintCount, number: int) -> None:
    assert not count.receive(number)
    assert count.receive(number + 1)


def test_a_hint_that_does_not_come_is_missed_after_a_moment(count: HintCount) -> None:
    assert not count.is_missing(5, 1.0)
    assert not count.is_missing(6, 1.1)
    assert not count.is_missing(6, 1.1 + GRACE_S / 2)
    assert count.is_missing(6, 1.1 + GRACE_S)
    assert not count.is_missing(6, 9.0)


def test_a_hint_that_is_only_late_is_not_missed(count: HintCount) -> None:
    assert not count.is_missing(6, 1.0)
    assert count.receive(6)
    assert not count.is_missing(6, 9.0)


def test_a_worker_that_begins_to_count_again_is_noticed(count: HintCount) -> None:
    assert not count.is_missing(1, 1.0)
    assert count.is_missing(1, 1.0 + GRACE_S)
    assert count.receive(2)


def test_after_a_pause_everything_is_looked_at_at_once(count: HintCount) -> None:
    count.forget()
    assert count.is_missing(5, 1.0)
    assert not count.is_missing(5, 1.0)
    assert HintCount().is_missing(0, 5.0) is False


@example(msgpack.packb([0, 0, ""]))
@given(
    st.binary(max_size=60)
    | st.builds(msgpack.packb, st.lists(st.integers(-(2**63), 2**63) | st.text()))
)
def test_what_is_no_hint_is_none(message: bytes) -> None:
    assert parse_hint(message) is None
