"""Rewrites a page whose generated parts come from the code, or tells that it is stale."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def write_or_check(page: Path, render: Callable[[str], str], command: str) -> int:
    """0 when the page is, or has become, what the code says; 1 when `--check` finds it stale."""
    parser = argparse.ArgumentParser(command, description=f"Makes the generated parts of {page}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when stale")
    options = parser.parse_args()
    text = page.read_text(encoding="utf-8")
    fresh = render(text)
    if fresh == text:
        return 0
    if options.check:
        print(f"{page} is stale: {command}", file=sys.stderr)
        return 1
    page.write_text(fresh, encoding="utf-8")
    print(f"{page} written")
    return 0
