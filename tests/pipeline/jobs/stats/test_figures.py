"""Figures by topic and time, over ten rows and over a golden store."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from keelog.pipeline.jobs.stats import (
    COLUMNS,
    OTHER,
    collect_figures,
    rates,
    sizes,
    stats_by_queue,
    stats_by_topic,
    top_keys,
    top_tags,
)
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
    assert (a["size_p90"], a["size_p99"]) == (107, 107)
    assert (a["per_second"], b["per_second"]) == (pytest.approx(8 / 7), 2)


def test_a_queue_that_has_more_than_its_share_is_skew(spark: SparkSession) -> None:
    (row,) = stats_by_topic(ten_rows(spark).filter("topic = 'a' and queueId < 2")).collect()
    assert row["skew"] == 1.0
    uneven = ten_rows(spark).filter("topic = 'a' and (queueId = 0 or storeSize = 101)")
    (row,) = stats_by_topic(uneven).collect()
    assert row["skew"] == pytest.approx(4 / 5 * 2)


def test_each_queue_is_held_against_an_even_share(spark: SparkSession) -> None:
    uneven = ten_rows(spark).filter("topic = 'b' or queueId = 0 or storeSize = 101")
    assert [tuple(row) for row in stats_by_queue(uneven).collect()] == [
        ("a", 0, 4, 412, 1.6),
        ("a", 1, 1, 101, 0.4),
        ("b", 0, 1, 161, 1.0),
        ("b", 3, 1, 162, 1.0),
    ]


def test_tags_keys_and_sizes_are_counted(spark: SparkSession) -> None:
    rows = ten_rows(spark)
    assert [tuple(row) for row in top_tags(rows, 5).collect()] == [
        ("a", "T", 3, 303),
        ("b", "T", 1, 162),
    ]
    # A message that names a key twice counts twice for it: row % 3 times k.
    keys = [tuple(row)[:3] for row in top_keys(rows, 2).collect()]
    assert keys == [("a", "k", 7), ("b", "x", 1)]
    assert [tuple(row) for row in sizes(rows).collect()] == [(91, 8, 828), (128, 2, 323)]


def test_figures_are_plain_rows_with_times_in_ms_whatever_the_zone(spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        figures = collect_figures(ten_rows(spark), 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    noon = int(NOON.timestamp() * 1000)
    assert (figures.totals["first"], figures.totals["last"]) == (noon, noon + 62_000)
    assert (figures.totals["messages"], figures.totals["bytes"]) == (10, 1151)
    assert [row["topic"] for row in figures.topics] == ["a"]
    assert {row["topic"] for row in figures.queues} == {"a"}
    assert {row["topic"] for row in figures.rates} == {"a", OTHER}
    assert sum(row["messages"] for row in figures.rates) == 10
    assert {row["tag"] for row in figures.tag_rates} == {"T", None}
    assert figures.rates[0]["start"] == noon
    json.dumps(figures.document())


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
