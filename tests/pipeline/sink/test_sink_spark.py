"""DataFrames and streams written to a real node by Spark itself."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession, functions

from tests.support.node import RunningNode

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]
SETTINGS = ("mapped_file_size_commit_log=16777216", "max_index_num=100000")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("sink")
    with RunningNode(folder / "store", SETTINGS, readers=1) as made:
        yield made


def messages(spark: SparkSession, count: int) -> DataFrame:
    """Rows with everything that a message can have, in two partitions."""
    return spark.range(0, count, 1, 2).select(
        functions.expr("decode(encode(cast(id AS string), 'UTF-8'), 'UTF-8')")
        .cast("binary")
        .alias("body"),
        functions.concat(functions.lit("s"), functions.col("id") % 2).alias("topic"),
        functions.expr("cast(id % 4 AS int)").alias("queueId"),
        functions.expr("if(id % 3 = 0, NULL, concat('t', id % 3))").alias("tags"),
        functions.expr("array(concat('k', id), 'all')").alias("keys"),
        functions.expr("map('row', cast(id AS string), 'ü', '€')").alias("properties"),
        functions.expr("cast(id AS int)").alias("flag"),
        functions.expr("timestamp_millis(1700000000000 + id)").alias("bornTimestamp"),
    )


def write(df: DataFrame, node: RunningNode, **options: str) -> None:
    df.write.format("keelog").mode("append").options(node=node.endpoint, **options).save()


def read(spark: SparkSession, node: RunningNode, topics: str) -> DataFrame:
    node.wait_dispatched()
    return spark.read.format("keelog").option("subscribe", topics).load(str(node.root))


def test_what_is_written_is_read_back_equal_and_in_the_order_of_its_queues(
    spark: SparkSession, node: RunningNode
) -> None:
    df = messages(spark, 1_000)
    write(df, node)
    own = functions.expr("map_filter(properties, (k, v) -> k IN ('row', 'ü'))").alias("properties")
    names = [name for name in df.columns if name != "properties"]
    found = read(spark, node, "s0,s1").select(*names, own, "queueOffset").collect()
    found.sort(key=lambda row: int(row.flag))
    expected = df.select(*names, "properties").collect()
    assert [tuple(row[:-1]) for row in found] == [tuple(row) for row in expected]
    places = [(row.topic, row.queueId, row.queueOffset, row.flag) for row in found]
    for queue in {row[:2] for row in places}:
        rows = sorted(row[2:] for row in places if row[:2] == queue)
        assert [offset for offset, _ in rows] == list(range(len(rows)))
        for start in (0, 500):
            flags = [flag for _, flag in rows if start <= flag < start + 500]
            assert flags == sorted(flags), "rows of one partition lost their order"


def test_binary_bodies_and_the_option_topic(spark: SparkSession, node: RunningNode) -> None:
    bodies = [bytes([n, 0, 255, 1, 2]) * n for n in range(50)]
    df = spark.createDataFrame([(body, "ignored") for body in bodies], "value binary, topic string")
    write(df, node, topic="binary")
    found = read(spark, node, "binary").select("body", "topic", "queueId").collect()
    assert Counter(bytes(row.body) for row in found) == Counter(bodies)
    assert {row.topic for row in found} == {"binary"}
    assert len({row.queueId for row in found}) > 4


def test_each_error_reaches_the_user_with_its_condition(
    spark: SparkSession, node: RunningNode
) -> None:
    df = spark.range(10).selectExpr("cast(id AS string) AS body")
    with pytest.raises(AnalysisException, match="KEELOG_BAD_MODE"):
        df.write.format("keelog").mode("overwrite").options(node=node.endpoint, topic="e").save()
    with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        df.write.format("keelog").options(node=node.endpoint, topic="e").save()
    with pytest.raises(AnalysisException, match=r"KEELOG_UNKNOWN_COLUMN.*'offset'"):
        write(df.withColumn("offset", functions.lit(1)), node, topic="e")
    with pytest.raises(AnalysisException, match="KEELOG_UNKNOWN_OPTION"):
        write(df, node, topic="e", subscribe="x")
    null = df.selectExpr("body", "if(body = '7', NULL, 'e') AS topic").coalesce(1)
    why = r"\[KEELOG_BAD_ROW\] partition 0, row 7: topic is NULL \(body='7', topic=None\)"
    with pytest.raises(PythonException, match=why):
        write(null, node)
    with pytest.raises(
        PythonException, match=r"\[KEELOG_NODE_UNREACHABLE\] node tcp://127.0.0.1:9"
    ):
        df.write.format("keelog").mode("append").options(
            node="tcp://127.0.0.1:9", topic="e", timeoutMs="300"
        ).save()
    assert "e" not in {topic.topic for topic in node.client.topics()}


@pytest.mark.spark_long
def test_a_stream_from_one_topic_into_another_writes_each_row_once(
    spark: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    write(spark.range(300).selectExpr("cast(id AS string) AS body"), node, topic="from")
    node.wait_dispatched()
    rows = (
        spark.readStream.format("keelog")
        .options(subscribe="from", startingOffsets="earliest", maxOffsetsPerTrigger="120")
        .load(str(node.root))
        .select("body")
    )
    into = rows.writeStream.format("keelog").options(
        node=node.endpoint, topic="to", checkpointLocation=str(tmp_path / "checkpoint")
    )
    into.trigger(availableNow=True).start().awaitTermination(120)
    # The entry of the last commit is lost: Spark repeats that batch.
    commits = sorted((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda p: int(p.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)
    into.trigger(availableNow=True).start().awaitTermination(120)
    assert commits[-1].exists(), "the last batch was not repeated"
    found = Counter(bytes(row.body) for row in read(spark, node, "to").select("body").collect())
    assert len(found) == 300
    assert set(found.values()) == {1}


RETRIED = """
import sys
from pathlib import Path
from keelog.pipeline.session import open_session

endpoint, marker = sys.argv[1:]
session = open_session("retry", "local[2,3]", {"spark.driver.memory": "1g"})

def fail_once(batches):
    yield from batches
    if not Path(marker).exists():
        Path(marker).touch()
        raise RuntimeError("the first try ends here")

df = session.range(0, 2_000, 1, 2).selectExpr("cast(id AS string) AS body")
rows = df.mapInArrow(fail_once, "body string")
rows.write.format("keelog").mode("append").options(node=endpoint, topic="retried").save()
session.stop()
"""


@pytest.mark.spark_long
def test_a_task_that_fails_once_and_is_repeated_gives_no_duplicates(
    node: RunningNode, tmp_path: Path
) -> None:
    """Repeats need `local[2, 3]`, which is a session, and so a process, of its own."""
    marker = tmp_path / "failed"
    command = [sys.executable, "-c", RETRIED, node.endpoint, str(marker)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    node.wait_dispatched()
    found: list[int] = []
    for offsets in node.client.offsets("retried"):
        at = offsets.min_offset
        while at < offsets.max_offset:
            pulled = node.client.pull("retried", offsets.queue_id, at, max_messages=1_000)
            found += [int(message.body) for message in pulled.messages]
            at = pulled.next_begin_offset
    assert sorted(found) == list(range(2_000))
