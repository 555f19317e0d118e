"""Streaming queries in Spark itself, on a folder that grows: each message once, whatever dies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from keelog.pipeline.micro_batch import lag
from protocol.record.encode import NewMessage
from tests.support.node import wait_until
from tests.workers.living_log import LivingLog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]
SETTING = {"store.mapped_file_size_consume_queue": "200"}
Place = tuple[str, int, int]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LivingLog]:
    """A folder at rest with 40 messages, to be grown."""
    log = LivingLog(tmp_path / "store")
    log.grow(40)
    yield log
    log.close()


def source(spark: SparkSession, store: LivingLog, **options: str) -> DataFrame:
    reader = spark.readStream.format("keelog").options(**SETTING, **options)
    return reader.option("columns", "topic,queueId,queueOffset").load(str(store.root))


def into(folder: Path, rows: DataFrame) -> DataStreamWriter:
    """A sink that keeps each batch's rows once: Parquet."""
    return rows.writeStream.format("parquet").options(
        path=str(folder / "rows"), checkpointLocation=str(folder / "checkpoint")
    )


def read_back(spark: SparkSession, folder: Path) -> list[Place]:
    return sorted(tuple(row) for row in spark.read.parquet(str(folder / "rows")).collect())


def all_places(store: LivingLog) -> list[Place]:
    return sorted(
        (queue.topic, queue.queue_id, number)
        for queue, end in store.next_offset.items()
        for number in range(end)
    )


def run_out(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_available_now_reads_all_in_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, store: LivingLog, tmp_path: Path
) -> None:
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    query = run_out(into(tmp_path, source(spark, store, **options)))
    counts = [progress.numInputRows for progress in query.recentProgress]
    assert counts[0] == 0 and sum(counts) == 40 and len(counts) > 2
    assert lag(query.recentProgress[0]) == 40
    assert lag(query.lastProgress) == 0
    assert read_back(spark, tmp_path) == all_places(store)
    store.grow(5)
    # The entry of the last batch is lost, as when the driver dies before it is written.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink()
    run_out(into(tmp_path, source(spark, store, **options)))
    assert read_back(spark, tmp_path) == all_places(store)


def test_a_running_query_takes_what_comes_and_is_quiet_when_nothing_does(
    spark: SparkSession, store: LivingLog, tmp_path: Path
) -> None:
    query = into(tmp_path, source(spark, store, subscribePattern=".*")).start()
    try:
        wait_until(lambda: query.lastProgress is not None, "the first batch")
        before = all_places(store)
        store.grow(5)
        store.append(NewMessage(topic="newcomer", queue_id=3, body=b"x"))
        store.publish()
        query.processAllAvailable()
        wait_until(lambda: _input_rows(query) == 6, "six messages")
        assert read_back(spark, tmp_path) == sorted(set(all_places(store)) - set(before))
        batches = query.lastProgress.batchId  # type: ignore[union-attr]
        query.processAllAvailable()
        assert query.lastProgress.batchId <= batches + 1  # type: ignore[union-attr]
    finally:
        query.stop()


def _input_rows(query: StreamingQuery) -> int:
    return sum(progress.numInputRows for progress in query.recentProgress)


@pytest.mark.spark_long
def test_a_query_says_what_it_has_lost(
    spark: SparkSession, store: LivingLog, tmp_path: Path
) -> None:
    run_out(into(tmp_path, source(spark, store, startingOffsets="earliest")))
    store.begin_epoch(cut_at=store.starts[-9])
    store.publish()
    with pytest.raises(StreamingQueryException, match=r"\[KEELOG_DATA_LOSS\].*; 9 messages in all"):
        run_out(into(tmp_path, source(spark, store)))
    run_out(into(tmp_path, source(spark, store, failOnDataLoss="false")))
    store.grow(9)
    run_out(into(tmp_path, source(spark, store, failOnDataLoss="false")))
    assert set(all_places(store)) <= set(read_back(spark, tmp_path))


def test_once_gets_everything_in_its_only_batch(
    spark: SparkSession, store: LivingLog, tmp_path: Path
) -> None:
    rows = source(spark, store, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    into(tmp_path, rows).trigger(once=True).start().awaitTermination()
    assert read_back(spark, tmp_path) == all_places(store)
