"""A master's machine is lost under load: nothing that was acknowledged as replicated is."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def lose(folder: Path, mode: str, losses: int) -> dict[str, Any]:
    """Runs the program."""
    command = [sys.executable, "-m", "tests.soak.cluster.lost_master", "--losses", str(losses)]
    command += ["--mode", mode, "--store", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["losses"] == losses
    assert found["acknowledged"] > 100 * losses
    return found


@pytest.mark.parametrize(("mode", "losses"), [("sync", 20), ("replicated", 6)])
def test_lost_masters_take_nothing_that_was_replicated(
    tmp_path: Path, mode: str, losses: int
) -> None:
    assert lose(tmp_path, mode, losses)["lost"] == 0


def test_what_is_lost_without_waiting_is_no_more_than_the_lag_that_was_shown(
    tmp_path: Path,
) -> None:
    found = lose(tmp_path, "async", 6)
    assert found["lost"] > 0, "the flush every 500 ms is too late for some"
    assert 0 < found["lost_bytes"] <= found["shown_lag_bytes"]
