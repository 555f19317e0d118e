"""Quantities as people write and read them, and lines of a table."""

import re
from collections.abc import Mapping, Sequence

from protocol import printable
from protocol.errors import BadRequest

_GAP = "  "
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%µ]*)")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60, "min": 60, "h": 3600}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTES = (
    _COUNTS
    | {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    | {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
)


def seconds_of(text: str) -> float:
    """Reads `5ms`, `30s` or `10m`; a plain number counts seconds. Raises BadRequest."""
    return _read(text, _SECONDS, "duration", "5ms, 30s or 10m", any_case=False)


def count_of(text: str) -> float:
    """Reads `1000`, `100K` or `1.5M`, with or without `/s`. Raises BadRequest."""
    return _read(text.removesuffix("/s"), _COUNTS, "count", "1000, 100K or 1.5M")


def bytes_of(text: str) -> int:
    """Reads `128`, `1KiB` or `4MB`. Raises BadRequest."""
    return round(_read(text, _BYTES, "size", "128, 1KiB or 4MB"))


def share_of(text: str) -> float:
    """Reads `10%` or `0.1` as 0.1. Raises BadRequest."""
    return _read(text, {"": 1.0, "%": 0.01}, "share", "10% or 0.1")


def _read(
    text: str, units: Mapping[str, float], what: str, example: str, any_case: bool = True
) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    number, unit = found.groups() if found else ("", "?")
    factor = units.get(unit.lower() if any_case else unit)
    if factor is None:
        raise BadRequest(f"{text!r} is no {what}", f"write it as {example}")
    return float(number) * factor


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
