"""What a node that delivers nothing says of delayed messages, also where their files are odd."""

from pathlib import Path

import pytest

from node.runtime.run_files import read_timer_state
from node.runtime.state_page import run_dir
from node.writer.delays import Undelivered
from protocol.derived.file_layouts import QUEUE_UNIT, UNIT_BYTES, QueueUnit
from protocol.ids import Queue
from protocol.names import (
    CONSUME_QUEUE_DIR,
    DELAY_OFFSETS_FILE,
    SCHEDULE_TOPIC,
    TIMER_CHECK_FILE,
    TIMER_WHEEL_FILE,
    offset_file_name,
)

DUE_MS = 5_000
LEVEL = Queue(SCHEDULE_TOPIC, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three messages wait at level 2."""
    run_dir(tmp_path).mkdir(parents=True)
    (tmp_path / "config").mkdir()
    folder = tmp_path / CONSUME_QUEUE_DIR / LEVEL.topic / str(LEVEL.queue_id)
    folder.mkdir(parents=True)
    units = b"".join(QUEUE_UNIT.pack(QueueUnit(100 * n, 100, DUE_MS + n)) for n in range(3))
    (folder / offset_file_name(0)).write_bytes(units)
    return tmp_path


def shown_late_ms(counted: Undelivered, root: Path) -> int:
    counted.turn(1.0, DUE_MS + 700)
    return read_timer_state(root).late_ms


def test_the_first_message_that_waits_is_late(root: Path) -> None:
    counted = Undelivered(root, {LEVEL: 3}, is_delivered=False)
    assert (counted.count, shown_late_ms(counted, root)) == (3, 700)


def test_files_of_a_queue_that_cannot_be_read_do_not_stop_a_start(root: Path) -> None:
    folder = root / CONSUME_QUEUE_DIR / LEVEL.topic / str(LEVEL.queue_id)
    (folder / offset_file_name(7 * UNIT_BYTES)).write_bytes(b"x" * UNIT_BYTES)
    counted = Undelivered(root, {LEVEL: 3}, is_delivered=False)
    assert (counted.count, shown_late_ms(counted, root)) == (3, 0)


def test_files_of_timers_that_cannot_be_read_do_not_stop_a_start(root: Path) -> None:
    for name in (TIMER_CHECK_FILE, TIMER_WHEEL_FILE, DELAY_OFFSETS_FILE):
        (root / name).mkdir(parents=True)
    assert Undelivered(root, {LEVEL: 3}, is_delivered=False).count == 3
