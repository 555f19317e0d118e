"""How many messages, how large, how fast: by topic, and by topic and time."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

COLUMNS = "topic, queueId, tags, keys, storeTimestamp, storeSize"
"""What both need of the table `messages`: give it to the source as the option `columns`."""


def stats_by_topic(messages: DataFrame) -> DataFrame:
    """One row a topic, the largest first.

    `queues` and `messages` are counts, `bytes` and the sizes whole records as stored, `tagged` and
    `keyed` how many messages have TAGS and KEYS, `first` and `last` store times. `skew` is the
    share of the fullest queue times the number of queues: 1 when all have as many messages.
    """
    by_queue = messages.groupBy("topic", "queueId").agg(fn.count("*").alias("in_queue"))
    skew = by_queue.groupBy("topic").agg(
        fn.count("*").alias("queues"),
        (fn.max("in_queue") * fn.count("*") / fn.sum("in_queue")).alias("skew"),
    )
    totals = messages.groupBy("topic").agg(
        fn.count("*").alias("messages"),
        fn.sum(fn.col("storeSize").cast("bigint")).alias("bytes"),
        fn.min("storeSize").alias("size_min"),
        fn.percentile_approx("storeSize", 0.5).alias("size_median"),
        fn.max("storeSize").alias("size_max"),
        fn.count("tags").alias("tagged"),
        fn.count_if(fn.size("keys") > 0).alias("keyed"),
        fn.min("storeTimestamp").alias("first"),
        fn.max("storeTimestamp").alias("last"),
    )
    return (
        totals.join(skew, "topic")
        .select(
            *("topic", "queues", "messages", "bytes", "size_min", "size_median", "size_max"),
            *("tagged", "keyed", "skew", "first", "last"),
        )
        .orderBy(fn.desc("bytes"), "topic")
    )


def rates(messages: DataFrame, window: str = "1 minute") -> DataFrame:
    """Messages and bytes by topic and `window` of store time, a Spark interval; in time order.

    Windows without a message have no row.
    """
    start = fn.window("storeTimestamp", window)["start"]
    return (
        messages.groupBy(start.alias("start"), "topic")
        .agg(
            fn.count("*").alias("messages"),
            fn.sum(fn.col("storeSize").cast("bigint")).alias("bytes"),
        )
        .select("start", "topic", "messages", "bytes")
        .orderBy("start", "topic")
    )
