"""All kinds of messages of RocketMQ's Java client under kills, each of them accounted for.

The long run is `python -m tests.soak.clients.mixed_load --seconds 600 --every 30`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import missing

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def test_a_mixed_load_under_kills_is_accounted_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak.clients.mixed_load", "--json"]
    command += ["--seconds", "50", "--every", "7", "--store", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    run = json.loads(done.stdout)
    assert run["faults"] == []
    assert sum(run["kills"].values()) >= 4
    kinds = {one["kind"]: one["acknowledged"] for one in run["found"]["kinds"]}
    assert min(kinds.values()) > 100
    assert min(one["consumed"] for one in run["found"]["groups"]) > 1_000
    assert run["found"]["groups"][-1]["dead"] > 0
