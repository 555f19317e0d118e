"""A rebuild goes on when an executor is killed in the middle, and gives the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.pipeline.jobs.rebuild.test_rebuild import tree
from tests.workers.living_log import SETTING_OPTIONS, SETTINGS, LivingLog
from workers.rebuild import rebuild as rebuild_by_workers

pytestmark = [
    pytest.mark.spark_long,
    pytest.mark.process,
    pytest.mark.xdist_group("spark"),
]

DEADLINE_S = 300
EXECUTORS = 2


def executors(driver: psutil.Process) -> list[psutil.Process]:
    """The executors' own JVMs."""
    found = []
    for process in driver.children(recursive=True):
        try:
            if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def wait_for_a_range(root: Path, driver: "subprocess.Popen[bytes]") -> None:
    """Until a task has ended: its keys have their name below the folder that is being made."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        assert driver.poll() is None, "the job ended before it could be disturbed"
        if any(root.glob("rebuild.building/*/keys/" + "[0-9]" * 8)):
            return
        time.sleep(0.005)
    pytest.fail("no range was read in time")


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize("plan", ["inplace", "shuffle"])
def test_a_killed_executor_changes_nothing_in_the_result(tmp_path: Path, plan: str) -> None:
    for name in ("a", "b"):
        log = LivingLog(tmp_path / name, segment_bytes=16 * 1024)
        log.grow(1500)
        log.close()
    rebuild_by_workers(tmp_path / "a", settings=SETTINGS)
    root = tmp_path / "b"
    command = [
        *(sys.executable, "-m", "keelog", "spark", "rebuild", str(root), "--plan", plan),
        *("--master", f"local-cluster[{EXECUTORS},1,1024]", *SETTING_OPTIONS, "--json"),
        *("--conf", "spark.driver.memory=1g", "--conf", "spark.executor.memory=512m"),
    ]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path / "spark")}
    with (
        (tmp_path / "talk").open("wb") as talk,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=talk, env=environment) as driver,
    ):
        try:
            wait_for_a_range(root, driver)
            victims = executors(psutil.Process(driver.pid))
            assert victims
            victims[0].send_signal(signal.SIGKILL)
            out, _ = driver.communicate(timeout=DEADLINE_S)
        finally:
            driver.kill()
    assert driver.returncode == 0, (tmp_path / "talk").read_text()[-3000:]
    assert json.loads(out)["records"] == 1500
    assert tree(root) == tree(tmp_path / "a")
    assert not (root / "rebuild.building").exists()
