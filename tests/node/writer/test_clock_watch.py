"""One line for a clock that was set, and for a store that lies ahead of it."""

import logging
from pathlib import Path

import pytest

from node.runtime.stored_times import Moment, clock_sets
from node.writer.store import ClockWatch

NOON = 1_700_000_000_000
HOUR_MS = 3_600_000


def test_each_change_is_one_line(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "keelog/run").mkdir(parents=True)
    caplog.set_level(logging.WARNING, "keelog.writer")
    watch, newest, steady = ClockWatch(tmp_path), 0, 0
    for shift, lines in ((0, 0), (2, 1), (0, 2), (0, 2), (3, 3)):
        for _ in range(3):
            steady += 500
            now = Moment(NOON + shift * HOUR_MS + steady, steady)
            newest = max(newest, now.wall_ms)
            watch.turn(newest, now)
            assert len(caplog.records) == lines
    found = clock_sets(tmp_path, Moment(NOON + HOUR_MS + steady, steady))
    assert [one.by_ms // HOUR_MS for one in found] == [2, -2, 3, -2]
    again = ClockWatch(tmp_path)
    again.turn(newest, Moment(NOON + steady, steady))
    assert len(caplog.records) == lines + 1, "it was set while no writer ran"


def test_a_store_that_lies_ahead_at_the_start_is_one_line(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "keelog/run").mkdir(parents=True)
    caplog.set_level(logging.WARNING, "keelog.writer")
    watch = ClockWatch(tmp_path)
    for steady in range(0, 5_000, 500):
        watch.turn(NOON + HOUR_MS, Moment(NOON + steady, steady))
    (line,) = caplog.records
    assert "the clock is wrong, or was ahead" in line.message
