"""Reads quantities as people write them: `16MB`, `5ms`, `1.5M`, `10%`."""

import re
from collections.abc import Mapping

from protocol.errors import BadRequest

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
