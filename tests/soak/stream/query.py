"""A streaming query that others kill: `python -m tests.soak.stream.query`.

It is told everything as one JSON object, starts the query, and starts it again when it fails. It
goes on until SIGTERM, or until its Java is killed: then it ends with 3, and so may be started anew.
"""

import json
import signal
import sys
import time
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keelog.pipeline.session import open_session

JAVA_GONE = 3
_LOOK_S = 0.2
_REST_S = 0.5


def read_stream(spark: SparkSession, told: dict[str, Any]) -> DataFrame:
    """The source, with the place of each message in it as its key."""
    reader = spark.readStream.format("keelog").options(**told["source"])
    rows = reader.option("columns", "queueId, queueOffset, body, tags").load()
    return rows.selectExpr("queueId", "concat(queueId, '-', queueOffset) AS keys", "body", "tags")


def start(rows: DataFrame, told: dict[str, Any]) -> StreamingQuery:
    """The query, from its checkpoint on."""
    writer = rows.writeStream.format(told["sink_format"]).options(**told["sink"])
    return writer.option("checkpointLocation", told["checkpoint"]).start()


def run(told: dict[str, Any]) -> int:
    """Until SIGTERM; the exit code."""
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    conf = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": told["scratch"],
        "spark.sql.warehouse.dir": told["scratch"],
        "spark.ui.showConsoleProgress": "false",
        **told.get("conf", {}),
    }
    try:
        spark = open_session("kill-streams", told["master"], conf)
        spark.sparkContext.setLogLevel("ERROR")
        rows = read_stream(spark, told)
        while not stopping:
            _follow(start(rows, told), stopping)
    except (Py4JError, ConnectionError) as error:
        print(f"Java is gone: {error}", file=sys.stderr)
        return JAVA_GONE
    return 0


def _follow(query: StreamingQuery, stopping: list[int]) -> None:
    """Returns when the query has failed, or is to stop."""
    while query.isActive and not stopping:
        time.sleep(_LOOK_S)
    failure = query.exception()
    if failure is None:
        query.stop()
        return
    print(f"the query failed: {str(failure)[:2000]}", file=sys.stderr, flush=True)
    time.sleep(_REST_S)


if __name__ == "__main__":
    sys.exit(run(json.loads(sys.argv[1])))
