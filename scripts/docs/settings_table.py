"""Fills the settings table of docs/settings.md from `node/runtime/settings.py`.

`python -m scripts.docs.settings_table` rewrites it, `--check` only says whether it is stale.
"""

import dataclasses
import re
from pathlib import Path

from keelog.cli.settings.given import value_text
from node.runtime.settings import Settings
from scripts.docs.generated_page import write_or_check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_PART = re.compile(r"(<!-- generated: settings -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    """Returns one row for each setting, in the order of the code."""
    rows = [
        f"| `{field.name}` | {value_text(field.default)} | {field.metadata['meaning']} |"
        for field in dataclasses.fields(Settings)
    ]
    return "\n".join(("| setting | default | what it does |", "|---|---|---|", *rows))


def render(text: str) -> str:
    """The page with its table made anew."""
    return _PART.sub(lambda part: f"{part[1]}\n{table()}\n\n{part[2]}", text)


def main() -> int:
    """0 when the page is, or has become, what the code says; 1 when `--check` finds it stale."""
    return write_or_check(PAGE, render, "python -m scripts.docs.settings_table")


if __name__ == "__main__":
    raise SystemExit(main())
