"""Broken requests by the thousand against a whole node (`tests/soak/fuzz/frames.py`)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.soak.fuzz.requests import CONTROL, READER, WRITER, Fuzz

SCRIPT = "tests.soak.fuzz.frames"


def fuzz(root: Path, count: int, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", SCRIPT, "--count", str(count), "--seed", str(seed)]
    command += ["--store", str(root / "store"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-3000:]
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert outcome["faults"] == []
    assert done.returncode == 0
    return outcome


def check(outcome: dict[str, Any], count: int) -> None:
    assert outcome["frames"] == count
    assert outcome["broken"] > count // 2
    assert outcome["refused"]["BadRequest"] > count // 4
    assert {"UnknownOperation", "IllegalMessage", "NotFound"} <= outcome["refused"].keys()
    # Whatever was acknowledged is stored, the honest client's messages too, and nothing else.
    assert outcome["stored"] == outcome["acknowledged"] > count // 10
    assert outcome["honest_calls"] > 10
    assert sum(outcome["bad_connections"].values()) > 10
    assert outcome["verify_exit"] == 0


@pytest.mark.process
def test_broken_requests_harm_nobody(tmp_path: Path) -> None:
    check(fuzz(tmp_path, 3_000, seed=1), 3_000)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_hundred_thousand_broken_requests_harm_nobody_and_take_no_memory(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, 100_000, seed=2)
    check(outcome, 100_000)
    for name, (before, _, after) in outcome["rss_mib"].items():
        assert 0 < after < before + 64, f"{name} has grown from {before} to {after} MiB"


def test_a_store_that_is_there_already_gets_no_broken_requests(tmp_path: Path) -> None:
    command = [sys.executable, "-m", SCRIPT, "--count", "10", "--store", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{tmp_path} is there already: name a new folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_seed_gives_the_same_requests_and_another_one_others() -> None:
    def made(seed: int) -> list[list[bytes]]:
        source = Fuzz(seed)
        return [source.request(kind, 7) for kind in (WRITER, READER, CONTROL) for _ in range(50)]

    assert made(5) == made(5)
    assert made(5) != made(6)
