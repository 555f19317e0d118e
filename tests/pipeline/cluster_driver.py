"""The driver's program of the cluster tests. It is shipped alone and finds Keelog in the package.

spark-submit --py-files keelog.zip cluster_driver.py JOB STORE OUT
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

RANGE_BYTES = 1 << 20
PARTS = "60"


def where(_: object) -> tuple[str, str, list[str]]:
    """Run in a task: whose work folder this is, where Keelog comes from, what else could be it."""
    import keelog

    return (
        str(Path.cwd()),
        keelog.__file__ or "",
        [str(Path(path).resolve()) for path in sys.path],
    )


def read(spark: SparkSession, store: str, out: str) -> dict[str, Any]:
    """Every row of the store as a Parquet file, and where tasks ran."""
    import pyarrow.parquet as pq

    rows = spark.read.format("keelog").option("minPartitions", "8").load(store)
    pq.write_table(rows.toArrow(), out)
    found = spark.sparkContext.parallelize(range(8), 8).map(where).collect()
    return {"tasks": found, "driver": where(None)}


def export(spark: SparkSession, store: str, out: str) -> dict[str, Any]:
    from keelog.spark import ExportOptions
    from keelog.spark import export as run

    return run(spark, store, out, ExportOptions(source={"minPartitions": PARTS}))._asdict()


def rebuild(spark: SparkSession, store: str, out: str) -> dict[str, Any]:
    from keelog.spark import rebuild as run

    return run(spark, store, out=out, range_bytes=RANGE_BYTES).shape()


def main() -> None:
    from keelog.spark import open_session

    job, store, out, answer = sys.argv[1:]
    spark = open_session(job, "")
    page, number = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    sys.stdout.write(f"web page: {page} application: {number}\n")
    sys.stdout.flush()
    result = {"read": read, "export": export, "rebuild": rebuild}[job](spark, store, out)
    Path(answer).write_text(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main()
