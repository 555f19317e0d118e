"""Fills the tables of request fields in docs/protocol.md from `protocol/requests.py`.

`python -m scripts.docs.protocol` rewrites the page, `--check` only says whether it is stale.
"""

import re
from pathlib import Path

from protocol.requests import REQUESTS
from scripts.docs.generated_page import write_or_check

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
_PART = re.compile(r"(<!-- generated: request ([a-z_]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(text: str) -> str:
    """The page with its tables made anew. Raises KeyError for an operation that is not there."""
    return _PART.sub(lambda part: f"{part[1]}\n{REQUESTS[part[2]].table()}\n\n{part[3]}", text)


def parts_of(text: str) -> list[str]:
    """The operations whose tables are on the page, in order."""
    return [part[2] for part in _PART.finditer(text)]


def main() -> int:
    """0 when the page is, or has become, what the code says; 1 when `--check` finds it stale."""
    return write_or_check(PAGE, render, "python -m scripts.docs.protocol")


if __name__ == "__main__":
    raise SystemExit(main())
