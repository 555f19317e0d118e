"""Counters that a restart does not turn back."""

from hypothesis import assume, given
from hypothesis import strategies as st

from node.supervisor.monitoring.metrics import HighWater, RunTotals

RUNS = st.lists(st.lists(st.integers(1, 1000), max_size=6), min_size=1, max_size=5)


@given(RUNS)
def test_a_count_that_begins_anew_with_each_process_grows_by_what_each_has_counted(
    runs: list[list[int]],
) -> None:
    totals, counted, before, seen = RunTotals(), 0, 0, [0.0]
    for pid, steps in enumerate(runs):
        # The page shows the predecessor's count until the new process has stored one; a first
        # count that is just that one says nothing.
        assume(not steps or steps[0] != before)
        seen.append(totals.of("slot", pid, before))
        count = before if not steps else 0
        for step in steps:
            count += step
            counted += step
            seen.append(totals.of("slot", pid, count))
            assert seen[-1] == counted
        before = count
    assert seen == sorted(seen)


def test_slots_are_counted_apart() -> None:
    totals = RunTotals()
    assert [totals.of("a", 1, 5), totals.of("b", 2, 7), totals.of("a", 1, 6)] == [5, 7, 6]


def test_an_offset_that_is_shown_too_low_for_a_while_does_not_turn_back() -> None:
    highest = HighWater()
    assert [highest.of(value) for value in (10, 4, 12)] == [10, 10, 12]
