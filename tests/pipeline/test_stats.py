"""Figures by topic and time, over ten rows and over a golden store."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from pipeline.jobs.stats import COLUMNS, rates, stats_by_topic
from tests.support.golden import GetStore, facts

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = (
    "topic string, queueId int, tags string, keys array<string>, storeTimestamp timestamp,"
    " storeSize int"
)


def ten_rows(spark: SparkSession) -> DataFrame:
    rows = [("a", row % 2, "T" if row < 3 else None, ["k"] * (row % 3), row) for row in range(8)]
    rows += [("b", 0, None, [], 61), ("b", 3, "T", ["x", "y"], 62)]
    return spark.createDataFrame(
        [
            (topic, queue, tags, keys, NOON + timedelta(seconds=second), 100 + second)
            for topic, queue, tags, keys, second in rows
        ],
        SCHEMA,
    )


def test_each_topic_has_its_figures(spark: SparkSession) -> None:
    a, b = (row.asDict() for row in stats_by_topic(ten_rows(spark)).collect())
    assert (a["topic"], a["queues"], a["messages"], a["bytes"]) == ("a", 2, 8, 828)
    assert (a["size_min"], a["size_median"], a["size_max"]) == (100, 103, 107)
    assert (a["tagged"], a["keyed"], a["skew"]) == (3, 5, 1.0)
    assert (b["topic"], b["queues"], b["messages"], b["bytes"]) == ("b", 2, 2, 323)
    assert (b["tagged"], b["keyed"], b["skew"]) == (1, 1, 1.0)
    assert b["last"] - a["first"] == timedelta(seconds=62)


def test_a_queue_that_has_more_than_its_share_is_skew(spark: SparkSession) -> None:
    (row,) = stats_by_topic(ten_rows(spark).filter("topic = 'a' and queueId < 2")).collect()
    assert row["skew"] == 1.0
    uneven = ten_rows(spark).filter("topic = 'a' and (queueId = 0 or storeSize = 101)")
    (row,) = stats_by_topic(uneven).collect()
    assert row["skew"] == pytest.approx(4 / 5 * 2)


def test_rates_count_by_topic_and_minute(spark: SparkSession) -> None:
    rows = rates(ten_rows(spark)).selectExpr("unix_seconds(start)", "topic", "messages", "bytes")
    start = int(NOON.timestamp())
    assert [tuple(row) for row in rows.collect()] == [
        (start, "a", 8, 828),
        (start + 60, "b", 2, 323),
    ]


def test_a_golden_store_has_the_figures_of_its_facts(spark: SparkSession, golden: GetStore) -> None:
    messages = spark.read.format("keelog").option("columns", COLUMNS).load(str(golden("trimmed")))
    known = facts("trimmed").messages
    size = Counter[str]()
    for fact in known:
        size[fact["topic"]] += fact["storeSize"]
    found = stats_by_topic(messages).collect()
    assert {row["topic"]: row["bytes"] for row in found} == size
    assert sum(row["messages"] for row in found) == len(known)
