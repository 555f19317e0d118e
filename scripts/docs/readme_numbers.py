"""Fills the table of figures in README.md from that of docs/performance.md.

`python -m scripts.docs.readme_numbers` rewrites it, `--check` only says whether it is stale.
"""

import re
from pathlib import Path

from scripts.docs.generated_page import write_or_check

ROOT = Path(__file__).resolve().parents[2]
PAGE, SOURCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
ROWS = (
    "send, batches of 100 x 128 B",
    "one by one, 64 callers, 128 B",
    "SYNC_FLUSH, 64 callers, 128 B",
    "end to end at 1,000/s, p50",
    "consume 5 M x 128 B, raw",
    "look-up by key, p50",
    "restart to first send, 8 GiB",
    "memory under load, server processes",
    "CPU s per million, batches, both sides",
)
"""One for each kind of use, whoever is ahead."""
_NAME, _UNIT, _OURS, _THEIRS, _RATIO = 0, 2, 3, 4, 5
_CELLS_MIN = 6
_PART = re.compile(r"(<!-- generated: numbers -->\n).*?(<!-- end -->)", re.DOTALL)
_MARKS = re.compile(r"<!-- compare_rocketmq: begin -->\n(.*?)<!-- compare_rocketmq", re.DOTALL)


def table(source: str) -> str:
    """The machine, and the medians of the rows. Raises KeyError when one is missing."""
    marked = _MARKS.search(source)
    if marked is None:
        raise KeyError(f"{SOURCE} has no table")
    lines = marked[1].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {row[_NAME]: row for row in cells if len(row) >= _CELLS_MIN}
    rows = [
        f"| {name} | {found[name][_UNIT]} | {_median(found[name][_OURS])} |"
        f" {_median(found[name][_THEIRS])} | {_median(found[name][_RATIO])} |"
        for name in ROWS
    ]
    head = ("| | unit | Keelog | RocketMQ | ratio |", "|---|---|---:|---:|---:|")
    machine = lines[0].partition("; 5 rounds")[0].rstrip(".")
    return "\n".join((machine + ":", "", *head, *rows))


def _median(cell: str) -> str:
    """Of `least / median / greatest` the median; a single value as it is."""
    parts = cell.split(" / ")
    return parts[len(parts) // 2]


def render(text: str) -> str:
    """The page with its table made anew."""
    fresh = table(SOURCE.read_text(encoding="utf-8"))
    return _PART.sub(lambda part: f"{part[1]}\n{fresh}\n\n{part[2]}", text)


def main() -> int:
    """0 when the page is, or has become, what the source says; 1 when `--check` finds it stale."""
    return write_or_check(PAGE, render, "python -m scripts.docs.readme_numbers")


if __name__ == "__main__":
    raise SystemExit(main())
