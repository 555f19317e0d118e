"""Figures of topics as people read them."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from protocol.human_text import count_text, size_text


def topic_rows(topics: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The figures of topics as people read them."""
    return [
        {
            "topic": row["topic"],
            "queues": str(row["queues"]),
            "messages": f"{row['messages']:,}",
            "bytes": size_text(row["bytes"]),
            "per second": rate_text(row["per_second"]),
            "median": size_text(row["size_median"]),
            "p99": size_text(row["size_p99"]),
            "largest": size_text(row["size_max"]),
            "tagged": percent_text(row["tagged"], row["messages"]),
            "keyed": percent_text(row["keyed"], row["messages"]),
            "skew": f"{row['skew']:.2f}",
            "first": time_text(row["first"]),
            "last": time_text(row["last"]),
        }
        for row in topics
    ]


def rate_text(value: float | None) -> str:
    """A count a second; a dash where no time has passed."""
    return "-" if value is None else count_text(value)


def percent_text(part: int, whole: int) -> str:
    """A share of a hundred."""
    return f"{100 * part / whole:.0f} %" if whole else "-"


def time_text(ms: int | None) -> str:
    """A time in UTC, to the second; ms where it is after the year 9999."""
    if ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(ms)
