"""RocketMQ's controllers elect the master of three nodes, and another one when it is lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.rivals.rocketmq import missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    # One site at a time: three controllers at rest take a third of a core.
    pytest.mark.xdist_group("controllers"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def lose(folder: Path, *options: str) -> dict[str, Any]:
    """Runs the program."""
    command = [sys.executable, "-m", "tests.soak.cluster.elected_master", *options]
    command += ["--store", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_killed_masters_take_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    found = lose(tmp_path, "--kills", "20")
    assert found["kills"] == 20
    assert found["lost"] == found["lost_java"] == 0
    assert found["epochs"] >= 21
    assert found["acknowledged"] > 1_000
    assert found["acknowledged_java"] > 1_000


def test_a_master_that_was_held_acknowledges_nothing_when_it_goes_on(tmp_path: Path) -> None:
    found = lose(tmp_path, "--kills", "0", "--freezes", "4")
    assert found["freezes"] == 4
    assert found["lost"] == found["lost_java"] == 0


def test_controllers_that_agree_by_jraft_elect_too(tmp_path: Path) -> None:
    found = lose(tmp_path, "--kills", "3", "--controller", "jRaft")
    assert found["kills"] == 3
    assert found["lost"] == found["lost_java"] == 0
