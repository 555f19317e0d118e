"""The screen of `keelog top` as lines of text: figures in, no terminal needed."""

from collections.abc import Iterable, Sequence
from typing import Any

from keelog.cli.sizes import size
from protocol.printable import one_line

Fields = dict[str, Any]

_GAP = "  "


def lines(shown: Fields, sort: str, hint: str = "") -> list[str]:
    """How the node is, what it does, who does it. Fits into 80 columns but for a long path."""
    log, disk, rates, lag = (shown[name] for name in ("log", "disk", "rates", "dispatch_lag_bytes"))
    ready = "ready" if shown["ready"] else "not ready"
    found = [
        f"{shown['store']}: {ready}, {shown['mode']}, epoch {log['epoch']}",
        *([f"appends are refused, reads go on. {shown['cause']}"] if shown["cause"] else []),
        f"in     {rates['records_per_s']:,.0f} messages/s, "
        f"{rates['appended_bytes_per_s'] / 1e6:,.2f} MB/s",
        f"behind {size(log['appended'] - log['flushed'])} not flushed, queues "
        f"{size(lag['queues'])}, index {size(lag['index'])}",
        f"disk   {size(disk['free_bytes'])} free, {disk['used_ratio']:.1%} used",
        "",
    ]
    if shown["operations"]:
        found += [*_table(_operation_rows(shown["operations"])), ""]
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
            size(row["rss_bytes"]),
            str(row["restarts"]),
            size(row["lag_bytes"]),
            _age(row["uptime_s"]),
        ]
        for row in processes
    ]


def _time(value_ms: float | None) -> str:
    return "" if value_ms is None else f"{value_ms:,.2f}"


def _age(seconds: float) -> str:
    """`47 s`, `12 m`, `3.2 h`, `5.1 d`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} m"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, all else to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
