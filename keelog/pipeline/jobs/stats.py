"""How many messages, how large, how fast, how even: by topic, queue, tag, key, size and time.

`collect_figures` takes all figures of a store at once, as plain rows: for tables, for JSON and for
the report.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

COLUMNS = "topic, queueId, tags, keys, storeTimestamp, storeSize"
"""What these need of the table `messages`: give it to the source as the option `columns`."""

SIZES_PER_DOUBLING = 2
"""How many classes of sizes there are from one power of two to the next."""
WINDOWS_MAX = 120
"""Rates get windows of the shortest length of which no more than this span the store."""
OTHER = "(other)"
"""The name for all topics after the first ones."""
Row = dict[str, Any]


def stats_by_topic(messages: DataFrame) -> DataFrame:
    """One row a topic, the largest first.

    `queues` and `messages` are counts, `bytes` and the sizes whole records as stored, `tagged` and
    `keyed` how many messages have TAGS and KEYS, `first` and `last` store times, `per_second` the
    messages between them. `skew` is the share of the fullest queue times the number of queues: 1
    when all have as many messages. The percentiles are Spark's approximate ones.
    """
    skew = (
        stats_by_queue(messages)
        .groupBy("topic")
        .agg(fn.count("*").alias("queues"), fn.max("evenness").alias("skew"))
    )
    at = fn.percentile_approx("storeSize", [0.5, 0.9, 0.99])
    seconds = fn.col("last").cast("double") - fn.col("first").cast("double")
    totals = (
        messages.groupBy("topic")
        .agg(
            fn.count("*").alias("messages"),
            _bytes(),
            fn.min("storeSize").alias("size_min"),
            at.alias("sizes"),
            fn.max("storeSize").alias("size_max"),
            fn.count("tags").alias("tagged"),
            fn.count_if(fn.size("keys") > 0).alias("keyed"),
            fn.min("storeTimestamp").alias("first"),
            fn.max("storeTimestamp").alias("last"),
        )
        .withColumns(
            {
                "size_median": fn.col("sizes")[0],
                "size_p90": fn.col("sizes")[1],
                "size_p99": fn.col("sizes")[2],
                "per_second": fn.when(seconds > 0, fn.col("messages") / seconds),
            }
        )
    )
    return (
        totals.join(skew, "topic")
        .select(
            *("topic", "queues", "messages", "bytes", "per_second", "size_min", "size_median"),
            *("size_p90", "size_p99", "size_max", "tagged", "keyed", "skew", "first", "last"),
        )
        .orderBy(fn.desc("bytes"), "topic")
    )


def stats_by_queue(messages: DataFrame) -> DataFrame:
    """One row a queue: `messages`, `bytes`, and `evenness`, in order of topic and queue.

    `evenness` is the queue's messages over those that it would have if all queues of the topic had
    as many: 1 is even, 2 twice its share. A queue without a message has no row, and does not count.
    """
    by_queue = _counted(messages, "topic", "queueId")
    of_topic = by_queue.groupBy("topic").agg(fn.avg("messages").alias("mean"))
    return (
        by_queue.join(of_topic, "topic")
        .select("topic", "queueId", "messages", "bytes", fn.expr("messages / mean AS evenness"))
        .orderBy("topic", "queueId")
    )


def rates(messages: DataFrame, window: str = "1 minute") -> DataFrame:
    """Messages and bytes by topic and `window` of store time, a Spark interval; in time order.

    Windows without a message have no row.
    """
    return _by_window(messages, window, "topic")


def tag_rates(messages: DataFrame, window: str = "1 minute") -> DataFrame:
    """As `rates`, by topic and tag; messages without TAGS have the tag NULL."""
    tagged = messages.withColumnRenamed("tags", "tag")
    return _by_window(tagged, window, "topic", "tag")


def _by_window(messages: DataFrame, window: str, *names: str) -> DataFrame:
    start = fn.window("storeTimestamp", window)["start"].alias("start")
    return _counted(messages, start, *names).orderBy("start", *names)


def top_tags(messages: DataFrame, count: int) -> DataFrame:
    """The tags with the most messages, by topic; messages without TAGS are left out."""
    tagged = messages.filter("tags IS NOT NULL").withColumnRenamed("tags", "tag")
    return _top(tagged, "tag", count)


def top_keys(messages: DataFrame, count: int) -> DataFrame:
    """The keys that the most messages have, by topic. A message counts for each of its keys."""
    keyed = messages.select("topic", "storeSize", fn.explode("keys").alias("key"))
    return _top(keyed, "key", count)


def _top(messages: DataFrame, name: str, count: int) -> DataFrame:
    counted = _counted(messages, "topic", name)
    return counted.orderBy(fn.desc("messages"), "topic", name).limit(count)


def _counted(messages: DataFrame, *by: str | Column) -> DataFrame:
    return messages.groupBy(*by).agg(fn.count("*").alias("messages"), _bytes())


def _bytes() -> Column:
    return fn.sum(fn.col("storeSize").cast("bigint")).alias("bytes")


def sizes(messages: DataFrame) -> DataFrame:
    """How many messages are of which size: `size_from`, `messages` and `bytes`, rising.

    A class reaches from its `size_from`, in bytes, to below the next; there are SIZES_PER_DOUBLING
    of them to a power of two. Classes without a message have no row.
    """
    number = fn.floor(fn.log2("storeSize") * SIZES_PER_DOUBLING)
    return (
        _counted(messages, number.alias("class"))
        .select(
            fn.ceil(fn.pow(fn.lit(2.0), fn.col("class") / SIZES_PER_DOUBLING)).alias("size_from"),
            "messages",
            "bytes",
        )
        .orderBy("size_from")
    )


class Window(NamedTuple):
    """A length of time, and how Spark writes it."""

    ms: int
    interval: str


WINDOWS = (
    Window(10, "10 milliseconds"),
    Window(100, "100 milliseconds"),
    Window(1_000, "1 second"),
    Window(5_000, "5 seconds"),
    Window(15_000, "15 seconds"),
    Window(60_000, "1 minute"),
    Window(300_000, "5 minutes"),
    Window(900_000, "15 minutes"),
    Window(3_600_000, "1 hour"),
    Window(21_600_000, "6 hours"),
    Window(86_400_000, "1 day"),
    Window(604_800_000, "7 days"),
    Window(2_419_200_000, "28 days"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of a store. Times are ms since 1970, sizes bytes of whole records.

    `topics`, `tags` and `keys` are the first ones, by bytes and by messages; `queues` those of
    these topics; `rates` and `tag_rates` by window, topics and tags beyond the first ones as OTHER.
    """

    totals: Row
    window: Window
    topics: list[Row]
    queues: list[Row]
    sizes: list[Row]
    tags: list[Row]
    keys: list[Row]
    rates: list[Row]
    tag_rates: list[Row]

    def document(self) -> Row:
        names = ("topics", "queues", "sizes", "tags", "keys", "rates", "tag_rates")
        lists = {name: getattr(self, name) for name in names}
        return {"totals": self.totals, "window_ms": self.window.ms, **lists}


def collect_figures(messages: DataFrame, top: int) -> Figures:
    """Reads `messages`, which has the columns COLUMNS, once, and counts everything.

    `top` is how many topics, tags and keys are named. Raises what reading raises.
    """
    kept = messages.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        every = plain_rows(stats_by_topic(kept))
        named = [row["topic"] for row in every[:top]]
        totals = _totals(every)
        window = window_for((totals["last"] or 0) - (totals["first"] or 0))
        tags = plain_rows(top_tags(kept, top))
        folded = kept.withColumn("topic", _or_other("topic", named))
        with_tags = folded.withColumn("tags", _or_other("tags", [row["tag"] for row in tags]))
        return Figures(
            totals=totals,
            window=window,
            topics=every[:top],
            queues=plain_rows(stats_by_queue(kept.filter(fn.col("topic").isin(named)))),
            sizes=plain_rows(sizes(kept)),
            tags=tags,
            keys=plain_rows(top_keys(kept, top)),
            rates=plain_rows(rates(folded, window.interval)),
            tag_rates=plain_rows(tag_rates(with_tags, window.interval)),
        )
    finally:
        kept.unpersist()


def window_for(span_ms: int) -> Window:
    """The shortest window of which no more than WINDOWS_MAX make `span_ms`."""
    return next((one for one in WINDOWS if span_ms <= one.ms * WINDOWS_MAX), WINDOWS[-1])


def _or_other(name: str, known: list[str]) -> Any:
    column = fn.col(name)
    return fn.when(column.isNull() | column.isin(known), column).otherwise(OTHER)


def _totals(topics: list[Row]) -> Row:
    first = min((row["first"] for row in topics if row["first"] is not None), default=None)
    last = max((row["last"] for row in topics if row["last"] is not None), default=None)
    count = sum(row["messages"] for row in topics)
    seconds = (last - first) / 1000 if first is not None and last is not None else 0
    sums = ("queues", "messages", "bytes", "tagged", "keyed")
    return {
        "topics": len(topics),
        **{name: sum(row[name] for row in topics) for name in sums},
        "per_second": count / seconds if seconds else None,
        "first": first,
        "last": last,
    }


def plain_rows(rows: DataFrame) -> list[Row]:
    """Plain values: times in ms, whatever the session's zone is; names in snake_case."""
    chosen = []
    for name, kind in rows.dtypes:
        value = fn.unix_millis(name) if kind == "timestamp" else fn.col(name)
        chosen.append(value.alias(re.sub("[A-Z]", lambda sign: f"_{sign[0].lower()}", name)))
    return [row.asDict() for row in rows.select(*chosen).collect()]
