"""The sources in Spark itself: rows, types, uses of one DataFrame, what a user sees of errors."""

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.functions import col, count
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from keelog.pipeline.read.arrays import arrow_schema
from keelog.pipeline.session import register
from keelog.pipeline.source import SOURCES
from keelog.pipeline.tables import DAMAGE, KAFKA, TABLES, Column, ddl
from tests.pipeline.facts_as_rows import (
    assert_index_is,
    comparable,
    message_row,
    options_for,
    plain_rows,
    unit_row,
)
from tests.support.golden import STORES, GetStore, Row, facts

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]

NAME = "small-clean"
ALL_TABLES = {**TABLES, "kafka": KAFKA}


def load(spark: SparkSession, path: Path, form: str = "keelog", **options: str) -> DataFrame:
    return spark.read.format(form).options(**options).load(str(path))


def every_store(spark: SparkSession, golden: GetStore, form: str) -> dict[str, list[Row]]:
    """The rows of all golden stores, read as one DataFrame, by store."""
    options: dict[str, str] = {}
    for name in STORES:
        options |= options_for(name, facts(name))
    nodes = json.dumps({name: str(golden(name)) for name in STORES})
    table = spark.read.format(form).options(nodes=nodes, **options).load().toArrow()
    rows: dict[str, list[Row]] = {name: [] for name in STORES}
    for row in plain_rows(table):
        rows[row["node"]].append(row)
    return rows


def test_messages_of_every_golden_store_are_rocketmqs(
    spark: SparkSession, golden: GetStore
) -> None:
    for name, rows in every_store(spark, golden, "keelog").items():
        known = facts(name)
        rows.sort(key=lambda row: int(row["physicalOffset"]))
        assert comparable(rows, known) == [message_row(fact, name) for fact in known.messages]


@pytest.mark.spark_long
def test_units_of_every_golden_store_are_rocketmqs(spark: SparkSession, golden: GetStore) -> None:
    def place(row: Row) -> tuple[str, int, int]:
        return row["topic"], row["queueId"], row["queueOffset"]

    for name, rows in every_store(spark, golden, "keelog_queues").items():
        expected = (unit_row(fact, name) for fact in facts(name).queue_units)
        assert sorted(rows, key=place) == sorted(expected, key=place)


def test_index_entries_of_every_golden_store_answer_as_rocketmq(
    spark: SparkSession, golden: GetStore
) -> None:
    for name, rows in every_store(spark, golden, "keelog_index").items():
        assert_index_is(rows, facts(name), step=7)


@pytest.mark.parametrize("table", list(ALL_TABLES))
def test_arrow_types_are_those_that_spark_checks_for(spark: SparkSession, table: str) -> None:
    columns: tuple[Column, ...] = (*ALL_TABLES[table].columns, DAMAGE)
    types = StructType.fromDDL(ddl(columns))
    assert isinstance(types, StructType)
    wanted = to_arrow_schema(types, timezone="UTC")
    assert arrow_schema(columns).equals(wanted)
    assert spark.version.startswith("4.")


def test_two_uses_of_one_dataframe_do_not_cut_each_others_rows(
    spark: SparkSession, golden: GetStore
) -> None:
    """With pushFilters they would, in Spark 4.1 to 4.3."""
    known = facts(NAME).messages
    first, second = sorted({fact["topic"] for fact in known})[:2]
    size = {name: sum(fact["topic"] == name for fact in known) for name in (first, second)}
    df = load(spark, golden(NAME), columns="topic,queueId,queueOffset,uniqKey")
    ones, twos = df.filter(col("topic") == first), df.filter(col("topic") == second)
    assert ones.count() == size[first]
    assert df.count() == len(known)
    assert twos.count() == size[second]
    counts = {row["topic"]: row["n"] for row in _by_topic(ones.union(twos))}
    assert counts == size
    keys = ["topic", "queueId", "queueOffset"]
    assert df.alias("a").join(df.alias("b"), keys).count() == len(known)
    df.createOrReplaceTempView("messages")
    some = spark.sql(f"select * from messages where topic = '{first}'")
    assert (some.count(), spark.table("messages").count()) == (size[first], len(known))


def _by_topic(df: DataFrame) -> list[Row]:
    rows = df.groupBy("topic").agg(count("*").alias("n")).collect()
    return [row.asDict() for row in rows]


def test_a_selection_gives_its_rows_and_columns(spark: SparkSession, golden: GetStore) -> None:
    fact = facts(NAME).queue_units[0]
    topic, queue = fact["topic"], fact["queueId"]
    df = load(
        spark,
        golden(NAME),
        columns="queueOffset,storeTimestamp",
        assign=json.dumps({topic: [queue]}),
        startingOffsets=json.dumps({topic: {str(queue): 3}}),
        minPartitions="2",
    )
    expected = sorted(
        (fact["queueOffset"], fact["storeTimestamp"])
        for fact in facts(NAME).messages
        if (fact["topic"], fact["queueId"]) == (topic, queue) and fact["queueOffset"] >= 3
    )
    assert df.columns == ["queueOffset", "storeTimestamp"]
    rows = df.selectExpr("queueOffset", "unix_millis(storeTimestamp)").collect()
    assert sorted(tuple(row) for row in rows) == expected


def test_a_schema_of_the_users_own_reads_these_columns_alone(
    spark: SparkSession, golden: GetStore
) -> None:
    reader = spark.read.format("keelog").schema("queueOffset bigint, topic string")
    assert reader.load(str(golden(NAME))).count() == len(facts(NAME).messages)
    for schema, word in (("offset bigint", "queueOffset"), ("queueId bigint", "INT")):
        with pytest.raises(AnalysisException, match=rf"\[KEELOG_UNKNOWN_COLUMN\].*{word}"):
            spark.read.format("keelog").schema(schema).load(str(golden(NAME))).count()


def test_a_read_without_rows_is_an_empty_table(spark: SparkSession, golden: GetStore) -> None:
    df = load(spark, golden(NAME), subscribePattern="no such topic")
    assert df.collect() == []


def test_sql_can_make_a_view_of_a_store(spark: SparkSession, golden: GetStore) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW units USING keelog_queues OPTIONS (path '{golden(NAME)}')")
    assert spark.sql("select count(*) from units").head()[0] == len(facts(NAME).queue_units)  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"colums": "topic"}, "UNKNOWN_OPTION"),
        ({"columns": "offset"}, "UNKNOWN_COLUMN"),
        ({"subscribe": "nosuch"}, "UNKNOWN_TOPIC"),
        ({"startingOffsets": "soon"}, "BAD_OPTION"),
    ],
)
def test_a_user_sees_the_condition_of_a_plan_that_fails(
    spark: SparkSession, golden: GetStore, options: dict[str, str], condition: str
) -> None:
    with pytest.raises(AnalysisException, match=rf"\[KEELOG_{condition}\]"):
        load(spark, golden(NAME), **options).count()


def test_a_user_sees_that_a_path_is_no_store(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException, match=rf"\[KEELOG_NOT_A_STORE\] {tmp_path}"):
        load(spark, tmp_path)


def test_a_user_sees_where_a_record_is_damaged(spark: SparkSession, golden_copy: GetStore) -> None:
    root, offset = golden_copy(NAME), facts(NAME).messages[9]["physicalOffset"]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(offset + 11)
        file.write(b"\x7f")
    with pytest.raises(PythonException, match=rf"\[KEELOG_CORRUPT_RECORD\].*offset {offset}"):
        load(spark, root).count()
    reported = load(spark, root, onCorruptRecord="report").filter("damage is not null")
    assert [row["physicalOffset"] for row in reported.collect()] == [offset]


def test_spark_finds_the_format_by_itself_and_three_after_register(spark: SparkSession) -> None:
    from pyspark_keelog import DefaultSource

    assert DefaultSource.name() == "keelog"
    assert [source.name() for source in SOURCES] == ["keelog", "keelog_queues", "keelog_index"]
    assert all(not hasattr(source, "pushFilters") for source in SOURCES)
    assert spark.version


def test_a_table_of_the_catalog_is_refused_and_a_view_named_in_its_place(
    spark: SparkSession, golden: GetStore
) -> None:
    with pytest.raises(AnalysisException) as caught:
        spark.sql(f"CREATE TABLE kept USING keelog OPTIONS (path '{golden(NAME)}')")
    assert "[KEELOG_BAD_OPTION] a table of Spark's catalog keeps no options" in str(caught.value)
    assert "Try: CREATE TEMPORARY VIEW name USING keelog OPTIONS" in str(caught.value)


def test_formats_that_the_session_has_are_not_registered_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark warns of a second one, and finds `keelog` by itself where it is installed."""
    again: list[str] = []
    monkeypatch.setattr(
        DataSourceRegistration, "register", lambda _self, source: again.append(source.name())
    )
    register(spark)
    assert again == []
    other = spark.newSession()
    register(other)
    assert "keelog" not in again
