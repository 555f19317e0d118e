"""Quantities and lines of a table, as people read them."""

from collections.abc import Sequence

from protocol import printable

_GAP = "  "


def size_text(count: int | None) -> str:
    """Returns bytes as `3.4 MiB`, and nothing for what is not known."""
    return "" if count is None else printable.size_text(count, decimals=1)


def duration_text(seconds: float) -> str:
    """Returns the time that is left as `12 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def age_text(seconds: float) -> str:
    """Returns a process's age as `47 s`, `12 m`, `3.2 h` or `5.1 d`, which is never long."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} m"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} d"


def ms_text(ms: float | None) -> str:
    """Returns milliseconds with three digits that count; `-` for none."""
    if ms is None:
        return "-"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Returns the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def aligned(cells: Sequence[str], widths: Sequence[int], numbers_from: int | None = None) -> str:
    """Returns one line of a table; from the column `numbers_from` on cells end at the right."""
    first = len(cells) if numbers_from is None else numbers_from
    return _GAP.join(
        cell.ljust(width) if column < first else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()
