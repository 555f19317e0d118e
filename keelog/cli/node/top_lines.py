"""The screen of `keelog top` as lines of text: figures in, no terminal needed."""

from collections.abc import Iterable, Sequence
from typing import Any

from keelog.text import aligned, disk_text, duration_text, size_text, widths_of
from protocol.human_text import one_line

Fields = dict[str, Any]
GROUPS_SHOWN_MAX = 10
"""Pairs of a group and a topic, the largest lag first."""


def lines(shown: Fields, sort: str, hint: str = "") -> list[str]:
    """Returns state, rates and processes of the node, within 80 columns but for long names."""
    log, disk, rates, lag = (shown[name] for name in ("log", "disk", "rates", "dispatch_lag_bytes"))
    ready = "ready" if shown["ready"] else "not ready"
    found = [
        f"{shown['store']}: {ready}, {shown['mode']}, epoch {log['epoch']}",
        *([f"appends are refused, reads go on. {shown['cause']}"] if shown["cause"] else []),
        f"in     {rates['records_per_s']:,.0f} messages/s, "
        f"{rates['appended_bytes_per_s'] / 1e6:,.2f} MB/s",
        f"behind {size_text(log['appended'] - log['flushed'])} not flushed, queues "
        f"{size_text(lag['queues'])}, index {size_text(lag['index'])}",
        f"disk   {disk_text(disk)}",
        "",
    ]
    if shown["operations"]:
        found += [*_table(_operation_rows(shown["operations"])), ""]
    if rows := shown.get("groups", {}).get("rows"):  # an older node has none
        found += [*_table(_group_rows(rows)), ""]
    found += [*_table(_process_rows(shown["processes"])), f"sorted by {sort}{hint}"]
    return [one_line(line) for line in found]


def fitted(found: Sequence[str], columns: int, rows: int) -> list[str]:
    """As many lines as there is room for, none longer than the screen is wide."""
    cut = [line if len(line) <= columns else line[: columns - 1] + "…" for line in found]
    if len(cut) <= rows:
        return cut
    hidden = len(cut) - rows + 1
    return [*cut[: rows - 1], f"… {hidden} more lines"]


def _operation_rows(operations: Iterable[Fields]) -> list[list[str]]:
    head = ["operation", "per s", "failed", "p50 ms", "p99 ms"]
    return [head] + [
        [
            row["op"],
            f"{row['per_s']:,.0f}",
            f"{row['failed_per_s']:,.0f}",
            _time(row["p50_ms"]),
            _time(row["p99_ms"]),
        ]
        for row in operations
    ]


def _process_rows(processes: Iterable[Fields]) -> list[list[str]]:
    head = ["process", "pid", "state", "cpu", "memory", "restarts", "lag", "up"]
    return [head] + [
        [
            f"{row['role']} {row['index']}",
            "" if row["pid"] is None else str(row["pid"]),
            row["state"],
            "" if row["cpu_percent"] is None else f"{row['cpu_percent']:.0f}%",
            size_text(row["rss_bytes"]),
            str(row["restarts"]),
            size_text(row["lag_bytes"]),
            duration_text(row["uptime_s"]),
        ]
        for row in processes
    ]


def _group_rows(rows: Sequence[Fields]) -> list[list[str]]:
    head = ["group", "topic", "members", "lag", "in flight", "oldest"]
    return [head] + [
        [
            row["group"],
            row["topic"],
            str(row["members"]),
            f"{row['lag']:,}",
            f"{row['in_flight']:,}",
            # Null where the message cannot be read, absent at a node of an earlier version.
            duration_text(row["lag_ms"] / 1000) if row.get("lag_ms") else "",
        ]
        for row in rows[:GROUPS_SHOWN_MAX]
    ]


def _time(value_ms: float | None) -> str:
    return "" if value_ms is None else f"{value_ms:,.2f}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, names to the left and all else to the right."""
    widths = widths_of(rows)
    return [aligned(row, widths, numbers_from=1) for row in rows]
