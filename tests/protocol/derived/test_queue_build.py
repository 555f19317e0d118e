"""Placement of queue units against the plain rule."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.derived.file_layouts import FILLER_SIZE, FILLER_UNIT, QUEUE_UNIT, QueueUnit
from protocol.derived.queue_build import QueueEnd, UnitBatch, plan_units, unit_array

UNITS_PER_FILE = 5
Row = tuple[int, int, int, int]


def place_unit(
    state: QueueEnd, units_per_file: int, queue_offset: int, physical_end: int
) -> tuple[int, int, QueueEnd] | None:
    """Where one record's unit goes: (first filler, unit, state after it); None for no unit."""
    if physical_end <= state.physical_end:
        return None
    if state.end is None:
        base = queue_offset - queue_offset % units_per_file
        return base, queue_offset, QueueEnd(queue_offset + 1, physical_end)
    if queue_offset != 0 and queue_offset < state.end:
        return None
    return state.end, state.end, QueueEnd(state.end + 1, physical_end)


def batch_of(rows: list[Row]) -> UnitBatch:
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return UnitBatch(unit_array(columns[0], columns[1], columns[2]), columns[3])


@st.composite
def histories(draw: st.DrawFn) -> list[Row]:
    """Records of one queue: mostly in order, sometimes with a jump, a repeat or offset 0."""
    rows: list[Row] = []
    physical, offset = draw(st.integers(0, 1000)), draw(st.sampled_from([0, 0, 3, 5, 12]))
    for _ in range(draw(st.integers(0, 30))):
        size = draw(st.integers(91, 300))
        rows.append((physical, size, draw(st.integers(-(2**31), 2**62)), offset))
        physical += size + draw(st.sampled_from([0, 500]))
        offset = draw(
            st.sampled_from([offset + 1] * 12 + [offset, 0, offset + 3, max(offset - 2, 0)])
        )
    return rows


def plain_queue(rows: list[Row]) -> tuple[dict[int, bytes], QueueEnd]:
    units: dict[int, bytes] = {}
    state = QueueEnd()
    for physical, size, tags, offset in rows:
        placed = place_unit(state, UNITS_PER_FILE, offset, physical + size)
        if placed is None:
            continue
        first, at, state = placed
        units.update(dict.fromkeys(range(first, at), FILLER_UNIT))
        units[at] = QUEUE_UNIT.pack(QueueUnit(physical, size, tags))
    return units, state


@given(histories(), st.lists(st.integers(1, 7)))
def test_a_queue_placed_in_batches_equals_one_placed_record_by_record(
    rows: list[Row], cuts: list[int]
) -> None:
    units: dict[int, bytes] = {}
    state = QueueEnd()
    done = 0
    while done < len(rows):
        size = cuts.pop() if cuts else len(rows)
        plan = plan_units(state, UNITS_PER_FILE, batch_of(rows[done : done + size]))
        units.update((plan.start + i, unit.tobytes()) for i, unit in enumerate(plan.units))
        state = plan.end
        done += size
    assert (units, state) == plain_queue(rows)


@given(histories())
def test_a_batch_applied_twice_changes_nothing(rows: list[Row]) -> None:
    first = plan_units(QueueEnd(), UNITS_PER_FILE, batch_of(rows))
    again = plan_units(first.end, UNITS_PER_FILE, batch_of(rows))
    if np.count_nonzero(first.units["size"] != FILLER_SIZE) == len(rows):
        assert again.repeated == len(rows)
    assert len(again.units) == 0


def test_a_first_offset_inside_a_file_is_preceded_by_filler_units() -> None:
    plan = plan_units(QueueEnd(), UNITS_PER_FILE, batch_of([(900, 100, 7, 12)]))
    assert plan.start == 10
    assert plan.units.tobytes() == FILLER_UNIT * 2 + QUEUE_UNIT.pack(QueueUnit(900, 100, 7))
    assert plan.end == QueueEnd(13, 1000)


def test_an_offset_ahead_of_the_queue_is_placed_at_its_end_and_told() -> None:
    plan = plan_units(QueueEnd(21, 500), UNITS_PER_FILE, batch_of([(900, 100, 7, 22)]))
    assert (plan.start, plan.end, plan.has_gap) == (21, QueueEnd(22, 1000), True)
