"""Makes the generated parts of our pages anew, from the code and from measured figures.

    python -m scripts.docs.pages            # rewrites the pages
    python -m scripts.docs.pages --check    # writes nothing; ends with 1 when a page is stale

Each generated part is between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from keelog.cli.settings import value_text
from keelog.pipeline.tables import KAFKA, SINK, TABLES
from node.runtime.settings import Settings
from protocol.request_fields import request_table
from protocol.requests import REQUESTS
from scripts.docs.format import PARTS

_PART = re.compile(r"(<!-- generated: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
ROOT = Path(__file__).resolve().parents[2]
README_ROWS = (
    "send, batches of 100 x 128 B",
    "one by one, 64 callers, 128 B",
    "SYNC_FLUSH, 64 callers, 128 B",
    "end to end at 1,000/s, p50",
    "consume 5 M x 128 B, raw",
    "the same, as message objects",
    "look-up by key, p50",
    "store alone, single puts",
    "restart to first send, 8 GiB",
    "memory under load, server processes",
    "CPU s per million, batches, both sides",
)
"""Figures of the README, one for each kind of use, whoever is ahead."""
_NAME, _UNIT, _OURS, _THEIRS, _RATIO = 0, 2, 3, 4, 5
_CELLS_MIN = 6


def parts_of(text: str) -> dict[str, str]:
    """The names of the generated parts, in order, and what each holds."""
    return {part[2]: part[3].strip() for part in _PART.finditer(text)}


def rendered(text: str, make: Callable[[str], str | None]) -> str:
    """The page with every part that `make` returns, by its name; the others stay."""

    def fresh(part: re.Match[str]) -> str:
        made = make(part[2])
        return part[0] if made is None else f"{part[1]}\n{made.strip()}\n\n{part[4]}"

    return _PART.sub(fresh, text)


def fill_part(page: Path, name: str, text: str) -> None:
    """Rewrites one part of a page. Raises ValueError when it has none of this name."""
    old = page.read_text(encoding="utf-8")
    if name not in parts_of(old):
        raise ValueError(f"{page} has no part <!-- generated: {name} --> … <!-- end -->")
    page.write_text(rendered(old, {name: text}.get), encoding="utf-8")


def settings_table() -> str:
    """One row for each setting, in the order of the code."""
    rows = [
        f"| {_setting(field.name, value_text(field.default))} | {field.metadata['meaning']} |"
        for field in dataclasses.fields(Settings)
    ]
    return "\n".join(("| setting: default | what it does |", "|---|---|", *rows))


def _setting(name: str, default: str) -> str:
    return f"`{name}`: {default}" if default else f"`{name}`"


def column_tables() -> str:
    """The columns of each Spark table, in the order of the code."""
    columns = {name: table.columns for name, table in TABLES.items()}
    columns |= {"messages with schema=kafka": KAFKA.columns, "rows to write": SINK}
    lines: list[str] = []
    for name, found in columns.items():
        lines += ["", f"### {name}", "", "| column, type | meaning |", "|---|---|"]
        for column in found:
            meaning = column.meaning.replace("|", "\\|")
            lines.append(f"| `{column.name}`: {column.ddl} | {meaning} |")
    return "\n".join(lines)


def readme_numbers(performance: str) -> str:
    """The machine, and medians of docs/performance.md. Raises KeyError when a row is missing."""
    lines = parts_of(performance)["compare_rocketmq"].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {row[_NAME]: row for row in cells if len(row) >= _CELLS_MIN}
    rows = [
        f"| {name} | {found[name][_UNIT]} | {_median(found[name][_OURS])} |"
        f" {_median(found[name][_THEIRS])} | {_median(found[name][_RATIO])} |"
        for name in README_ROWS
    ]
    head = ("| | unit | Keelog | RocketMQ | ratio |", "|---|---|---:|---:|---:|")
    machine = lines[0].partition("; 5 rounds")[0].rstrip(".")
    return "\n".join((machine + ":", "", *head, *rows))


def _median(cell: str) -> str:
    """The median of `least / median / greatest`; a single value as it is."""
    parts = cell.split(" / ")
    return parts[len(parts) // 2]


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "numbers": lambda: readme_numbers((ROOT / "docs/performance.md").read_text("utf-8"))
    },
    "docs/format.md": PARTS,
    "docs/protocol.md": {
        f"request {name}": partial(request_table, *of) for name, of in REQUESTS.items()
    },
    "docs/settings.md": {"settings": settings_table},
    "docs/spark.md": {"columns": column_tables},
}
"""Each page's parts, by name. Scripts that measure fill those of docs/performance.md."""


def render(page: str, text: str) -> str:
    """The text of a page, its parts made anew. Raises KeyError for an unknown part."""
    return rendered(text, lambda name: PAGES[page][name]())


def main() -> int:
    """Ends with 0 when the pages are, or have become, what the code says."""
    parser = argparse.ArgumentParser("python -m scripts.docs.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    is_check = parser.parse_args().check
    stale = 0
    for name in PAGES:
        page = ROOT / name
        text = page.read_text(encoding="utf-8")
        fresh = render(name, text)
        if fresh != text:
            stale += 1
            print(f"{name} {'is stale' if is_check else 'written'}", file=sys.stderr)
            if not is_check:
                page.write_text(fresh, encoding="utf-8")
    return int(is_check and stale > 0)


if __name__ == "__main__":
    raise SystemExit(main())
