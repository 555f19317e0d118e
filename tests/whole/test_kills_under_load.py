"""The short form of `scripts/kill_under_load.py`: the whole one is for people and takes minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "kill_under_load.py"
ROUNDS = 2


@pytest.mark.process
@pytest.mark.timeout(180)
def test_no_acknowledged_message_is_lost_when_workers_and_readers_are_killed(
    tmp_path: Path,
) -> None:
    command = [sys.executable, str(SCRIPT), "--rounds", str(ROUNDS), "--seconds", "5"]
    command += ["--finds", "3000", "--store", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    outcome = json.loads(done.stdout)
    assert outcome["faults"] == []
    assert set(outcome["restarts"].values()) == {ROUNDS}
    assert len(outcome["restarts"]) == 5
    assert outcome["pulled"] >= outcome["acknowledged"] > 10_000
    assert outcome["verify_exit"] == 0
