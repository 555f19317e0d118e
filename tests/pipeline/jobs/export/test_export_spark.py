"""Exports by Spark's tasks: what Spark reads back equals what it reads from the store."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from keelog.pipeline.errors import BadOption, CorruptRecord
from keelog.pipeline.jobs.export import export, read_export
from keelog.pipeline.options import ExportOptions
from protocol.record.encode import NewMessage
from tests.support.damaged_store import SEGMENT_BYTES, make_store
from tests.workers.living_log import LivingLog

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]

TOPICS = ("007", "42", "a=b%c d", "x/y", "日本")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Messages of topics that are odd as names of folders; queues are not made."""
    log = LivingLog(tmp_path / "store", SEGMENT_BYTES)
    for number in range(60):
        log.append(
            NewMessage(
                topic=TOPICS[number % len(TOPICS)],
                queue_id=number % 2,
                body=b"%d" % number,
                tags="A" if number % 3 else "",
                keys=("k", str(number)),
            )
        )
    log.publish()
    log.close()
    return tmp_path / "store"


def counted(rows: DataFrame) -> list[str]:
    """Each row as text, times and maps included."""
    names = sorted(name for name in rows.columns if name != "date")
    texts = rows.selectExpr(f"to_json(struct({', '.join(names)})) AS row").collect()
    return sorted(str(row["row"]) for row in texts)


@pytest.mark.spark_long
def test_spark_reads_back_what_it_reads_from_the_store(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    told = ExportOptions(source={"minPartitions": "3"})
    result = export(spark, str(store), out, told)
    assert (result.rows, result.version) == (60, 1)
    assert export(spark, str(store), out, told).rows == 0
    messages = counted(spark.read.format("keelog").load(str(store)))
    assert counted(read_export(spark, out)) == messages
    # Not all topics are numbers, so Spark takes them for texts, and unescapes their folders.
    plain = spark.read.parquet(out)
    assert counted(plain) == messages
    assert dict(plain.dtypes)["date"] == "date"


@pytest.mark.spark_long
def test_topics_that_are_numbers_stay_texts_by_the_manifest(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    rows = spark.read.format("keelog").load(str(store)).filter("topic in ('007', '42')")
    told = ExportOptions(columns="physicalOffset, queueOffset, topic")
    export(spark, str(store), out, told)
    read = read_export(spark, out)
    assert {row["topic"] for row in read.select("topic").distinct().collect()} == set(TOPICS)
    assert counted(read.filter("topic in ('007', '42')")) == counted(
        rows.select("physicalOffset", "queueOffset", "topic")
    )


def test_a_tasks_error_is_the_jobs_error_and_nothing_is_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    whole = make_store(tmp_path / "store", count=60)
    whole.flip(whole.records[20].physical_offset + 11)
    out = tmp_path / "out"
    with pytest.raises(CorruptRecord, match=f"offset {whole.records[20].physical_offset}"):
        export(spark, str(whole.root), str(out))
    with pytest.raises(BadOption, match="holds no export"):
        read_export(spark, str(out))
