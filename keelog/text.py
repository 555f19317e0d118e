"""Quantities as people read them, and lines of a table."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from protocol import human_text

GAP_CHARS = 2
_GAP = " " * GAP_CHARS


def counted(count: int, what: str) -> str:
    """Returns a count with its word: `1 message`, `2,000 messages`."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def size_text(count: int | None) -> str:
    """Returns bytes as `3.4 MiB`, and nothing for what is not known."""
    return "" if count is None else human_text.size_text(count, decimals=1)


def disk_text(disk: Mapping[str, Any]) -> str:
    """The disk of a status: what is free, used, and what so full a disk costs."""
    text = f"{size_text(disk['free_bytes'])} free, {disk['used_ratio']:.1%} used"
    shortage = disk.get("shortage")  # a node of an earlier version does not say
    return f"{text}. {shortage}" if shortage else text


def duration_text(seconds: float) -> str:
    """Returns a duration as `12 s`, `3 m 20 s`, `2 h 5 m` or `4 d 3 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60} s"
    hours = whole // 3600
    return f"{hours} h {whole % 3600 // 60} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def time_text(ms: int) -> str:
    """Returns a time in ms since 1970 as `2026-11-23T20:15:03Z`."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ms_text(ms: float | None) -> str:
    """Returns milliseconds with three digits that count; `-` for none."""
    if ms is None:
        return "-"
    return f"{human_text.number_text(ms)} ms"


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(cells: Sequence[str], widths: Sequence[int], numbers_from: int | None = None) -> str:
    """Returns one line of a table; from the column `numbers_from` on cells end at the right."""
    first = len(cells) if numbers_from is None else numbers_from
    return _GAP.join(
        cell.ljust(width) if column < first else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()
