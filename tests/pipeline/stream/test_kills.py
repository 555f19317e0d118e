"""Streaming queries that are killed with SIGKILL, in processes of their own: each message once.

The long run is `python -m tests.soak.stream.kills --kills 50`.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import wait_until
from tests.workers.living_log import LivingLog

ROOT = Path(__file__).resolve().parents[3]
KILLS = 6

pytestmark = [pytest.mark.spark_long, pytest.mark.process]


def query(store: LivingLog, folder: Path, dies_in: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.pipeline.stream.dying_query"]
    return subprocess.Popen([*command, str(store.root), str(folder), str(dies_in)], cwd=ROOT)


def places(store: LivingLog) -> set[tuple[str, int, int]]:
    return {
        (queue.topic, queue.queue_id, number)
        for queue, end in store.next_offset.items()
        for number in range(end)
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dies_in", [0, 1])
def test_a_new_query_that_is_killed_in_an_early_batch_still_begins_where_it_began(
    tmp_path: Path, dies_in: int
) -> None:
    """`startingOffsets` is `latest`: asked again after the kill, it would be further on."""
    store = LivingLog(tmp_path / "store")
    store.grow(40)
    before = places(store)
    first = query(store, tmp_path, dies_in)
    checkpoint = tmp_path / "checkpoint"
    wait_until(lambda: (checkpoint / "offsets" / "0").exists(), "the first batch", 200)
    store.grow(5)
    (tmp_path / "grown").touch()
    assert first.wait(300) != 0, "it was to die"
    assert not (checkpoint / "commits" / str(dies_in)).exists()
    store.grow(4)
    store.close()
    assert query(store, tmp_path, -1).wait(300) == 0
    rows = [
        tuple(row) for path in tmp_path.glob("rows-*.json") for row in json.loads(path.read_text())
    ]
    assert sorted(rows) == sorted(places(store) - before)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("source", "sink"), [("folder", "parquet"), ("tcp", "keelog")])
def test_a_few_kills_of_anything_leave_each_message_once(
    tmp_path: Path, source: str, sink: str
) -> None:
    command = [sys.executable, "-m", "tests.soak.stream.kills", "--json", "--folder", str(tmp_path)]
    command += ["--kills", str(KILLS), "--minutes", "5", "--seed", "7"]
    command += ["--source", source, "--sink", sink]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[:4000]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    checked = found["checked"]
    # A slow machine may have no time for all of them.
    assert 0 < sum(found["kills"].values()) <= KILLS
    assert checked["copied"] == checked["stored"] >= checked["acknowledged"] > 0
    assert (checked["missing"], checked["duplicates"], checked["foreign"]) == (0, 0, 0)
