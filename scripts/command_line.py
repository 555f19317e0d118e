"""The command line of the scripts: types of options, and figures as tables, or rows as they come.

Bad values of options are refused before any work. Progress goes to stderr by
`keelog.text.print_line`.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from keelog.text import aligned, widths_of


def whole_number(text: str) -> int:
    """A whole number above 0."""
    return int(_above_0(text, int, "whole number"))


def real_number(text: str) -> float:
    """A finite number above 0."""
    return _above_0(text, float, "number")


def _above_0(text: str, read: Callable[[str], float], what: str) -> float:
    try:
        value = read(text)
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no {what} above 0")
    return value


def old_folder(text: str) -> Path:
    """A folder that is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}; make it first")
    return path


def made_folder(text: str) -> Path:
    """A folder, which is made if there is none."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot make {text}: {error.strerror}") from None
    return path


def old_file(text: str) -> Path:
    """A file that is there."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def new_file(text: str) -> Path:
    """A file that may be written: its folder is there."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder, not a file")
    old_folder(str(path.parent))
    return path


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


def print_rows(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table in Markdown, each row as soon as it is there."""
    print(grid(head, []), flush=True)
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
