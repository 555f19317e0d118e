"""A streaming query whose Java is killed in the middle of a batch: a program for a process.

    python -m tests.pipeline.stream.dying_query STORE FOLDER DIES_IN

Rows of each batch go to `FOLDER/rows-<batch>.json` when the batch is over. In batch `DIES_IN` (-1:
in none) Java gets SIGKILL before that. After batch 0 it waits for `FOLDER/grown`.
"""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from keelog.pipeline.session import local_session
from tests.support.node import wait_until


def main(store: str, folder: Path, dies_in: int) -> None:
    """Runs until nothing is left, or until it dies."""
    spark = local_session("dying", conf={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.jvm.java.lang.ProcessHandle.current().pid()

    def take(rows: DataFrame, batch: int) -> None:
        found = [list(row) for row in rows.collect()]
        if batch == dies_in:
            os.kill(java, signal.SIGKILL)
        (folder / f"rows-{batch}.json").write_text(json.dumps(found))
        if batch == 0:
            wait_until(lambda: (folder / "grown").exists(), "the store grows")

    rows = (
        spark.readStream.format("keelog")
        .option("columns", "topic,queueId,queueOffset")
        .option("store.mapped_file_size_consume_queue", "200")
        .load(store)
    )
    writer = rows.writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    wait_until(lambda: query.lastProgress is not None, "the first batch is over")
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
