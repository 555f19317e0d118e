"""Words that make our sentences hard: how often they stand in the product's code and pages.

Each number may only fall. Write after for behind, returns for answers, reports for tells, "is not
a" for "is no", "up to" for "so many", and begin a sentence with its actor.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("protocol", "node", "workers", "keelog")

LIMITS = {
    r"\bbehind\b": 37,
    r"\b(told|tells|tell)\b": 27,
    r"\bstands?\b": 47,
    r"\b(is|are) no\b": 113,
    r"\bso (many|far)\b": 13,
    r"(?<!reader\.)\b[Aa]nswers\b": 96,
    r"(^|[.;:] )(Who|What|Whoever|Whatever) ": 16,
}


def pages() -> list[Path]:
    code = [path for top in CODE for path in sorted((ROOT / top).rglob("*.py"))]
    return [*code, *sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def count(pattern: str) -> int:
    word = re.compile(pattern, re.MULTILINE)
    return sum(len(word.findall(path.read_text())) for path in pages())


@pytest.mark.parametrize("pattern", LIMITS)
def test_hard_words_become_no_more(pattern: str) -> None:
    assert count(pattern) <= LIMITS[pattern]
