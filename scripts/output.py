"""What the scripts print of their figures: numbers with few digits, tables, rows as they come.

Progress goes to stderr by `keelog.text.print_line`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from keelog.text import aligned, widths_of


class Spread(NamedTuple):
    """Least, median and greatest of some rounds."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None when there are no values."""
        found = sorted(values)
        return cls(found[0], median(found), found[-1]) if found else None


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of all are below; of sorted values, or 0 without any."""
    return values[min(int(len(values) * percent / 100), len(values) - 1)] if values else 0.0


def number(value: float | None, unit: str = "") -> str:
    """Three digits that count, thousands of a rate as k and M; nothing for None."""
    if value is None:
        return ""
    if unit == "/s" and value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if unit == "/s" and value >= 1e4:
        return f"{value / 1e3:.0f} k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool = True) -> str:
    """A table for a page, or for a terminal."""
    if markdown:
        marks = ["---", *["---:"] * (len(head) - 1)]
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))
    widths = widths_of((head, *rows))
    return "\n".join(aligned(row, widths) for row in (head, *rows))


class Rows:
    """Prints rows as soon as they are there: of a table in Markdown, or objects of JSON."""

    def __init__(self, head: Sequence[str], as_json: bool = False) -> None:
        self._as_json = as_json
        if not as_json:
            print(grid(head, []), flush=True)

    def add(self, cells: Sequence[str], fields: Mapping[str, Any]) -> None:
        """Prints one row: its cells, or its fields."""
        line = json.dumps(fields) if self._as_json else f"| {' | '.join(cells)} |"
        print(line, flush=True)
