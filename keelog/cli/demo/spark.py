"""The end of the demo: what a Spark job counts in the store that it made.

The job is a process of its own, `python -m keelog.cli.demo.spark STORE`: Spark's words stay apart.
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from keelog.pipeline.session import INSTALL as INSTALL
from node.supervisor.child_process import environment
from protocol.errors import MqError

JOB_S_MAX = 300.0
_SAY_EVERY_S = 10.0
_CONF = {
    "spark.driver.memory": "512m",
    # A short job: what makes long ones fast costs it more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
Row = dict[str, Any]
Say = Callable[[str], None]


class SparkJobFailed(MqError):
    """The demo's Spark job did not end as it should."""


def is_spark_there() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow"))


def spark_topics(store: str, say: Say) -> list[Row]:
    """The figures of each topic, by a Spark job on this machine. Raises SparkJobFailed.

    Says what it waits for, as starting Java and Spark takes longer than the job.
    """
    say("a Spark job counts the store by topic; Java and Spark start first, 10 to 30 s")
    command = [sys.executable, "-P", "-m", "keelog.cli.demo.spark", store]
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as job:
        try:
            out, err = _wait(job, began, say)
        finally:
            job.kill()
    if job.returncode:
        lines = err.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise SparkJobFailed(
            f"the Spark job ended with {job.returncode}: {lines[-1]}",
            f"keelog spark stats {store}, or keelog demo --no-spark",
        )
    say(f"the Spark job took {time.monotonic() - began:.1f} s, Spark's start included")
    rows: list[Row] = json.loads(out.splitlines()[-1])
    return rows


def _wait(job: subprocess.Popen[bytes], began: float, say: Say) -> tuple[bytes, bytes]:
    while True:
        try:
            return job.communicate(timeout=_SAY_EVERY_S)
        except subprocess.TimeoutExpired:
            waited = time.monotonic() - began
            if waited > JOB_S_MAX:
                raise SparkJobFailed(
                    f"the Spark job does not end within {JOB_S_MAX:.0f} s", "keelog demo --no-spark"
                ) from None
            say(f"  {waited:.0f} s")


def main() -> int:
    """Prints the figures of the store that is named, as JSON in one line."""
    from keelog.pipeline.jobs.stats import COLUMNS, plain_rows, stats_by_topic
    from keelog.pipeline.session import run_job

    def demo(session: Any) -> list[Row]:
        messages = session.read.format("keelog").option("columns", COLUMNS).load(sys.argv[1])
        return plain_rows(stats_by_topic(messages))

    rows = run_job(demo, "local[2]", _CONF, lambda line: None)
    sys.stdout.write(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
