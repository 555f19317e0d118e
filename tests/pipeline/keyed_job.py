"""A Spark program that reads from and writes to a node with keys, and prints what it saw.

Its own session writes an event log, and answers with the pages that a person would look at.
"""

import json
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from pyspark.sql import DataFrame, SparkSession

from keelog.pipeline.session import local_session


def pages(spark: SparkSession) -> str:
    """What Spark's own pages show of settings, queries and jobs."""
    base = spark.sparkContext.uiWebUrl
    assert base is not None
    paths = ["environment/", "SQL/", "SQL/execution/?id=0", "jobs/", "stages/"]
    return "\n".join(urlopen(f"{base}/{path}").read().decode() for path in paths)


def plan(df: DataFrame) -> str:
    found: Any = df
    return str(found._jdf.queryExecution().toString())


def main(endpoint: str, key: str, server_key: str, folder: str) -> None:
    logs = Path(folder) / "events"
    logs.mkdir()
    conf = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": logs.as_uri()}
    conf |= {"spark.eventLog.compress": "false"}
    spark = local_session("keys", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    keys = {"key": key, "serverKey": server_key}
    rows = spark.range(100).selectExpr("cast(id AS string) AS body", "'written' AS topic")
    rows.write.format("keelog").mode("append").options(node=endpoint, **keys).save()
    reader = spark.read.format("keelog").options(**keys).option("subscribe", "figs,written")
    batch = reader.load(endpoint)
    found = sorted(bytes(row.body).decode() for row in batch.select("body").collect())
    batch.explain(True)
    stream = (
        spark.readStream.format("keelog")
        .options(**keys)
        .option("subscribe", "figs")
        .option("startingOffsets", "earliest")
        .load(endpoint)
        .select("body")
        .writeStream.format("keelog")
        .options(node=endpoint, topic="copied", **keys)
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    stream.awaitTermination()
    shown = plan(batch) + pages(spark)
    spark.stop()
    shown += "".join(path.read_text() for path in logs.rglob("*") if path.is_file())
    sys.stdout.write("\n" + json.dumps({"found": found, "shown": shown}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
