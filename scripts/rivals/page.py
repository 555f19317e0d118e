"""Puts measured figures into a page, between two marks that say which script made them."""

from pathlib import Path


def fill_page(page: Path, mark: str, text: str) -> None:
    """Replaces what stands between the marks of `mark`. Raises ValueError when they are missing."""
    page.write_text(filled(page.read_text(encoding="utf-8"), mark, text), encoding="utf-8")


def filled(page: str, mark: str, text: str) -> str:
    """The page with `text` between `<!-- MARK: begin -->` and `<!-- MARK: end -->`."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part between {begin} and {end}")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"
