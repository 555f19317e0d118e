"""A short campaign of random faults at nodes under load: nothing acknowledged is lost.

The long one is `python -m tests.soak.campaign.run --rounds 10000`.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.soak.campaign.life import KINDS
from tests.soak.campaign.results import END_OF_STORE

ROUNDS, NODES, SEED = 80, 6, 7
ROOT = Path(__file__).resolve().parents[2]


def campaign(folder: Path, *options: str) -> dict[str, Any]:
    """The results of a run in which no fault was found."""
    results = folder / "results.json"
    command = [sys.executable, "-m", "tests.soak.campaign.run", "--resume", str(results)]
    command += ["--store", str(folder / "stores"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-8000:]}"
    found: dict[str, Any] = json.loads(results.read_text())
    return found


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_no_random_fault_loses_what_was_acknowledged(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    options = ("--rounds", str(ROUNDS), "--nodes", str(NODES), "--seed", str(SEED))
    found = campaign(tmp_path, *options)
    sums = found["sums"]
    assert found["failed"] == []
    assert sum(one["lost"] for one in sums.values()) == 0
    assert sum(one["checked"] for one in sums.values()) > ROUNDS
    done = sum(one["rounds"] for kind, one in sums.items() if kind in KINDS)
    assert done >= ROUNDS * 0.8
    assert sums[END_OF_STORE]["rounds"] >= NODES
    for kind, one in sums.items():
        record_property(f"random faults: {kind}", one["rounds"])
