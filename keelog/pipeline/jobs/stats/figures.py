"""All figures of a store at once, as plain rows: for tables, for JSON and for the report."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from keelog.pipeline.jobs.stats.run import (
    rates,
    sizes,
    stats_by_queue,
    stats_by_topic,
    tag_rates,
    top_keys,
    top_tags,
)

WINDOWS_MAX = 120
"""Rates get windows of the shortest length of which no more than this span the store."""
OTHER = "(other)"
"""The name for all topics after the first ones."""

Row = dict[str, Any]


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
        """As JSON has it."""
        return {
            "totals": self.totals,
            "window_ms": self.window.ms,
            **{
                name: getattr(self, name)
                for name in ("topics", "queues", "sizes", "tags", "keys", "rates", "tag_rates")
            },
        }


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
    return {
        "topics": len(topics),
        "queues": sum(row["queues"] for row in topics),
        "messages": count,
        "bytes": sum(row["bytes"] for row in topics),
        "tagged": sum(row["tagged"] for row in topics),
        "keyed": sum(row["keyed"] for row in topics),
        "per_second": count / seconds if seconds else None,
        "first": first,
        "last": last,
    }


def plain_rows(rows: DataFrame) -> list[Row]:
    """Plain values: times in ms, whatever the session's zone is; names in snake_case."""
    chosen = [
        (fn.unix_millis(name) if kind == "timestamp" else fn.col(name)).alias(_snake(name))
        for name, kind in rows.dtypes
    ]
    return [row.asDict() for row in rows.select(*chosen).collect()]


def _snake(name: str) -> str:
    return "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name)
