"""kill -9 of all that a node is made of, under RocketMQ's Java client, and of a broker beside it.

The long run is `python -m tests.soak.clients.kills --kills 100 --broker-kills 15`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import missing

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
KILLS, BROKER_KILLS = 20, 4


def test_kills_under_java_clients_lose_nothing_and_commit_nothing_unconsumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "tests.soak.clients.kills", "--kills", str(KILLS)]
    command += ["--broker-kills", str(BROKER_KILLS), "--store", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, f"{done.stdout[:3000]}\n{done.stderr[-3000:]}"
    found = json.loads(done.stdout)
    with capsys.disabled():
        for name, one in found.items():
            shown = {key: one[key] for key in sorted(one) if key.endswith(("twice", "again"))}
            sys.stdout.write(f"\n{name}: kills {one['kills']}, repeats {shown}\n")
    ours = found["Keelog"]
    assert ours["faults"] == []
    assert ours["kills"] == dict.fromkeys(
        ("gateway", "writer", "reader", "tasks", "node"), KILLS // 5
    )
    assert (ours["lost"], ours["unconsumed"]) == (0, 0)
    assert ours["consumed"] >= ours["acknowledged"] > 1_000
    assert ours["offset_checks"] >= 4 * KILLS, "of each queue after each kill"
    assert found["RocketMQ"]["kills"] == {"broker": BROKER_KILLS}
