"""Workers and readers that are killed while producers are at full speed; the check of a queue.

The long run is `python -m tests.soak.kill.anything --turns 10 --producers 8`.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keelog.bench.queue_checks import Ints, check_queue

SCRIPT = "tests.soak.kill.anything"
TURNS = 1
COUNT = 6


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_no_acknowledged_message_is_lost_when_workers_and_readers_are_killed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", SCRIPT, "--turns", str(TURNS), "--producers", "4"]
    command += ["--store", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    (found,) = json.loads(done.stdout).values()
    assert found["faults"] == []
    assert set(found["kills"].values()) == {TURNS}
    assert len(found["kills"]) == 5, "two queue workers, the index worker, two readers"
    assert found["stored"] >= found["acknowledged"] > 5_000
    assert found["followed"] == found["stored"]


def pulled() -> dict[str, Ints]:
    """A queue with six messages of one producer, as it should be."""
    numbers = np.arange(COUNT)
    return {
        "queue_offset": numbers,
        "physical_offset": 100 * numbers,
        "producer": 0 * numbers,
        "number": 10 + numbers,
    }


def told() -> Ints:
    """Their receipts: producer, topic, number, queue, queue offset, log offset, moment."""
    rows = [(0, 0, 10 + n, 0, n, 100 * n, n) for n in range(COUNT)]
    return np.array(rows, np.int64)


def test_a_whole_queue_passes_the_check() -> None:
    assert check_queue("q", pulled(), told()) == []


@pytest.mark.parametrize(
    ("column", "row", "value", "fault"),
    [
        ("queue_offset", 2, 1, "queue offsets are not 0 to 5"),
        ("physical_offset", 2, 50, "log order and queue order differ"),
        ("physical_offset", 2, 201, "1 acknowledged messages are not where they were"),
        ("number", 3, 12, "out of order, or twice"),
        ("number", 5, 99, "1 acknowledged messages are not where they were"),
        ("producer", 0, 7, "1 acknowledged messages are not where they were"),
    ],
)
def test_a_queue_with_a_fault_fails_the_check(
    column: str, row: int, value: int, fault: str
) -> None:
    queue = pulled()
    queue[column][row] = value
    assert fault in " ".join(check_queue("q", queue, told()))


def test_a_message_that_was_acknowledged_and_is_not_there_fails_the_check() -> None:
    short = {name: column[:-1] for name, column in pulled().items()}
    assert check_queue("q", short, told()) == ["q: 1 acknowledged messages are not there"]
