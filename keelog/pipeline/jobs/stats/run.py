"""How many messages, how large, how fast, how even: by topic, queue, tag, key, size and time."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

COLUMNS = "topic, queueId, tags, keys, storeTimestamp, storeSize"
"""What these need of the table `messages`: give it to the source as the option `columns`."""

SIZES_PER_DOUBLING = 2
"""How many classes of sizes there are from one power of two to the next."""


def _bytes() -> Column:
    return fn.sum(fn.col("storeSize").cast("bigint")).alias("bytes")


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
    by_queue = messages.groupBy("topic", "queueId").agg(fn.count("*").alias("messages"), _bytes())
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
    start = fn.window("storeTimestamp", window)["start"]
    return (
        messages.groupBy(start.alias("start"), *names)
        .agg(fn.count("*").alias("messages"), _bytes())
        .select("start", *names, "messages", "bytes")
        .orderBy("start", *names)
    )


def top_tags(messages: DataFrame, count: int) -> DataFrame:
    """The tags with the most messages, by topic; messages without TAGS are left out."""
    tagged = messages.filter("tags IS NOT NULL").withColumnRenamed("tags", "tag")
    return _top(tagged, "tag", count)


def top_keys(messages: DataFrame, count: int) -> DataFrame:
    """The keys that the most messages have, by topic. A message counts for each of its keys."""
    keyed = messages.select("topic", "storeSize", fn.explode("keys").alias("key"))
    return _top(keyed, "key", count)


def _top(messages: DataFrame, name: str, count: int) -> DataFrame:
    return (
        messages.groupBy("topic", name)
        .agg(fn.count("*").alias("messages"), _bytes())
        .select("topic", name, "messages", "bytes")
        .orderBy(fn.desc("messages"), "topic", name)
        .limit(count)
    )


def sizes(messages: DataFrame) -> DataFrame:
    """How many messages are of which size: `size_from`, `messages` and `bytes`, rising.

    A class reaches from its `size_from`, in bytes, to below the next; there are SIZES_PER_DOUBLING
    of them to a power of two. Classes without a message have no row.
    """
    number = fn.floor(fn.log2("storeSize") * SIZES_PER_DOUBLING)
    return (
        messages.groupBy(number.alias("class"))
        .agg(fn.count("*").alias("messages"), _bytes())
        .select(
            fn.ceil(fn.pow(fn.lit(2.0), fn.col("class") / SIZES_PER_DOUBLING)).alias("size_from"),
            "messages",
            "bytes",
        )
        .orderBy("size_from")
    )
