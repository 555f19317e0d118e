"""How the clock was set is known to processes that begin later."""

from pathlib import Path

import pytest

from node.runtime.stored_times import (
    ClockHistory,
    ClockSet,
    Moment,
    clock_sets,
    read_clock,
    set_since,
    write_clock,
)

NOON = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "keelog/run").mkdir(parents=True)
    return tmp_path


def test_a_time_tells_how_the_clock_was_set_since_it_was_shown(root: Path) -> None:
    sets = (ClockSet(10_000, 5 * HOUR_MS), ClockSet(20_000, -7 * HOUR_MS))
    write_clock(root, ClockHistory(Moment(NOON - 2 * HOUR_MS + 20_000, 20_000), sets))
    now = Moment(NOON - 2 * HOUR_MS + 30_000, 30_000)
    for shift, steady, set_by in ((0, 5_000, -2), (5, 15_000, -7), (-2, 25_000, 0)):
        assert set_since(root, NOON + shift * HOUR_MS + steady, now) == set_by * HOUR_MS
    assert set_since(root, 0, now) == 0, "nobody knows"
    later = Moment(NOON + 40_000, 40_000)
    assert clock_sets(root, later)[-1] == ClockSet(40_000, 2 * HOUR_MS), "no writer has seen it"
    assert set_since(root, NOON - 2 * HOUR_MS + 25_000, later) == 2 * HOUR_MS


def test_what_is_no_history_of_this_run_of_the_machine_is_none(root: Path) -> None:
    assert read_clock(root) is None
    write_clock(root, ClockHistory(Moment(NOON, 5), ()))
    path = root / "keelog/run/clock"
    assert read_clock(root) == ClockHistory(Moment(NOON, 5), ())
    path.write_text(path.read_text().replace('"boot": "', '"boot": "other'))
    assert read_clock(root) is None
    path.write_text("{")
    assert read_clock(root) is None
    assert set_since(root, NOON, Moment(NOON, 5)) == 0
