"""Spark at a replica while its master, a broker of RocketMQ, takes load: no job touches the master,
and none finds damage that is not there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keelog.pipeline.session import local_session
from node.runtime.run_files import FOLLOWING, read_follow_state
from scripts.rivals.rocketmq import missing
from tests.cluster.java_master import TOPIC, JavaMaster, replica_of, wait_copied
from tests.soak.cluster.java_master import MASTER_SIZES
from tests.soak.harness import SMALL_FILES

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
LOAD_PAUSE_S = 2.0
"""After each two seconds of load: master, replica and Spark share the test's processors."""
AUDIT_S_MAX = 300


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    session = local_session("cluster", conf={"spark.driver.memory": "1g"})
    yield session
    session.stop()


def audit(root: Path, report: Path) -> subprocess.CompletedProcess[str]:
    """As an operator does it."""
    command = [sys.executable, "-m", "keelog", "spark", "audit", str(root), "--report", str(report)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=AUDIT_S_MAX)


def test_rows_are_counted_and_an_audit_is_clean_while_the_master_takes_load(
    spark: SparkSession, tmp_path: Path
) -> None:
    with (
        JavaMaster(tmp_path / "master", MASTER_SIZES) as master,
        replica_of(master, tmp_path / "copy", *SMALL_FILES) as node,
    ):
        master.send(4_000)
        wait_copied(master, node)
        master.begin_load(pause_s=LOAD_PAUSE_S)
        reader = spark.read.format("keelog").option("columns", "topic")
        under_load = reader.load(str(node.root)).where(f"topic = '{TOPIC}'").count()
        audited = audit(node.root, tmp_path / "report")
        state = read_follow_state(node.root)
        master.end_load()
        wait_copied(master, node)
        whole = reader.load(node.endpoint).where(f"topic = '{TOPIC}'").count()
        sent = master.sent
    assert audited.returncode == 0, audited.stdout + audited.stderr
    assert (tmp_path / "report" / "report.json").exists()
    assert state.state == FOLLOWING
    assert 4_000 <= under_load <= whole
    assert whole == sent > 4_000
