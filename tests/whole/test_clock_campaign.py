"""A short run of clocks that are set under load: every message is accounted for.

The long one is `python -m tests.soak.clocks.run --rounds 2000`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.clocks.account import Clock, ClockStep, Figures, Kind, Waited, judge

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_no_clock_loses_a_message_or_delivers_one_early_or_late(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.soak.clocks.run", "--rounds", "20", "--seed", "3"]
    command += ["--kill-every", "8", "--store", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-8000:]}"
    found = json.loads(done.stdout)
    assert (found["rounds"], found["faults"]) == (20, [])
    assert all(found["came"][kind] > 0 for kind in Kind if kind is not Kind.CANCELLED)


def judged(one: Waited, times: list[float], kills: list[float] | None = None) -> list[str]:
    clock = Clock(1000.0, [ClockStep(0.0, 0.0), ClockStep(50.0, 3600.0), ClockStep(52.0, 0.0)])
    figures = Figures()
    came = {"it": times} if times else {}
    judge({"it": one}, came, clock, kills or [], 200.0, figures)
    return figures.faults


def test_the_account_finds_what_is_lost_early_late_invented_or_comes_again() -> None:
    level = Waited(Kind.LEVEL, 10.0, 3.0, None, 10.1)
    assert judged(level, [13.2]) == []
    assert "early" in judged(level, [12.5])[0]
    assert "late" in judged(level, [80.0])[0]
    assert "lost" in judged(level, [])[0]
    assert judged(Waited(Kind.LEVEL, 10.0, 3.0), []) == [], "nobody knows"
    assert "again" in judged(level, [13.2, 14.0])[0]
    assert judged(level, [13.2, 14.0], [13.5]) == []
    assert "cancelled" in judged(Waited(Kind.CANCELLED, 10.0, 3.0, None, 10.1), [14.0])[0]
    at = Waited(Kind.AT, 10.0, 0.0, 1100.0, 10.1)
    assert judged(at, [50.1]) == [], "the clock was ahead then"
    assert "early" in judged(at, [49.0])[0]
    figures = Figures()
    judge({}, {"it": [1.0]}, Clock(0.0, [ClockStep(0.0, 0.0)]), [], 2.0, figures)
    assert figures.faults == ["it was invented"]
