"""Anything of a node is killed at random moments under load: nothing acknowledged is lost.

The long run is `python -m tests.soak.kill.anything --kills 2000`.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.runtime.settings import ASYNC_FLUSH, SYNC_FLUSH
from tests.soak.power_disk import why_not

SCRIPT = "tests.soak.kill.anything"
NO_POWER = why_not()
KILLS = 200
CUTS = 12


Record = Callable[[str, object], None]


def kill_anything(folder: Path, record: Record, *options: str) -> dict[str, dict[str, Any]]:
    """The figures of a run, by flush mode; the sums go into the summary behind the tests' dots."""
    command = [sys.executable, "-m", SCRIPT, "--json", "--store", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[:4000]}\n{done.stderr[-4000:]}"
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    for flush, figures in found.items():
        harm = figures["lost"] + figures["invented"] + figures["changed"]
        assert (harm, figures["faults"]) == (0, [])
        for kind, count in figures["kills"].items():
            record(f"killed under load: {kind}", count)
        record(f"stores that were killed or lost power, {flush}", figures["histories"])
        record("acknowledged while things were killed", figures["acknowledged"])
        record("lost, invented or changed", harm)
        assert figures["acknowledged"] > 0
        assert figures["checks"] > figures["histories"], "no round ended with the whole node"
    return found


def kills_of(found: dict[str, dict[str, Any]], kind: str) -> int:
    return sum(figures["kills"].get(kind, 0) for figures in found.values())


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_two_hundred_kills_of_anything_lose_nothing(
    tmp_path: Path, record_property: Record
) -> None:
    found = kill_anything(tmp_path / "kills", record_property, "--kills", str(KILLS), "--seed", "1")
    assert sum(sum(figures["kills"].values()) for figures in found.values()) >= KILLS
    kinds = ("writer", "queue", "index", "reader", "supervisor", "node", "starting node")
    assert [kind for kind in kinds if not kills_of(found, kind)] == []


def cut_power(folder: Path, record: Record, cuts: int, flush: str) -> dict[str, Any]:
    """As `kill_anything`, but each round ends with the power; `cuts` of them at least."""
    # The third producer waits for the disk: its flushes would leave the power nothing to take.
    producers = "2" if flush == ASYNC_FLUSH else "3"
    options = ("--power", "--kills", str(cuts), "--flush", flush, "--producers", producers)
    return kill_anything(folder, record, *options, "--seed", "5")[flush]


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.skipif(NO_POWER != "", reason=NO_POWER)
@pytest.mark.parametrize("flush", [SYNC_FLUSH, ASYNC_FLUSH])
def test_power_losses_take_at_most_what_was_not_flushed(
    tmp_path: Path, record_property: Record, flush: str
) -> None:
    """In ASYNC_FLUSH a suffix may be gone; what stays is as it was, without a hole."""
    figures = cut_power(tmp_path / "cuts", record_property, CUTS, flush)
    assert figures["kills"]["power"] >= CUTS
    # Else the power was not really lost, and SYNC_FLUSH has shown nothing.
    assert (figures["gone"] > 0) == (flush == ASYNC_FLUSH)
