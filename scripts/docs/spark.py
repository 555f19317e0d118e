"""Writes the tables of columns into docs/spark.md. `--check` only tells whether they are stale."""

import re
from pathlib import Path

from pipeline.sink.columns import SINK
from pipeline.tables import KAFKA, TABLES, Table
from scripts.docs.generated_page import write_or_check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
_PART = re.compile(r"(<!-- generated: columns -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> str:
    """Each table's columns, in the order of the code."""
    lines: list[str] = []
    named = [
        *TABLES.items(),
        ("messages with schema=kafka", KAFKA),
        ("rows to write", Table("rows to write", SINK)),
    ]
    for name, table in named:
        lines += ["", f"### {name}", "", "| column | type | meaning |", "|---|---|---|"]
        for column in table.columns:
            meaning = column.meaning.replace("|", "\\|")
            lines.append(f"| `{column.name}` | {column.ddl} | {meaning} |")
    return "\n".join([*lines, "", ""])


def render(text: str) -> str:
    """The page with its tables made anew."""
    return _PART.sub(lambda part: part[1] + tables() + part[2], text)


def main() -> int:
    """0 when the page is, or has become, what the code says; 1 when `--check` finds it stale."""
    return write_or_check(PAGE, render, "python -m scripts.docs.spark")


if __name__ == "__main__":
    raise SystemExit(main())
