"""The generated parts of a page, each between `<!-- generated: NAME -->` and `<!-- end -->`."""

import re
from collections.abc import Callable
from pathlib import Path

_PART = re.compile(r"(<!-- generated: ([\w -]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


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
