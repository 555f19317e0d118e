"""Quantities as people write them: 5ms, 100K, 1KiB, 10%, and back."""

import re

from protocol.errors import BadRequest

_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%µ]*)")
_SECONDS = {
    "": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_BYTES = {
    "": 1, "b": 1, "k": 1000, "kb": 1000, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
}  # fmt: skip


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{text!r} is no {what}", f"write it as {example}")
    return float(found[1]), found[2]


def seconds_of(text: str) -> float:
    """`5ms`, `30s`, `10m`; a plain number counts seconds. Raises BadRequest."""
    number, unit = _split(text, "duration", "5ms, 30s or 10m")
    if unit not in _SECONDS:
        raise BadRequest(f"{text!r} is no duration", "write it as 5ms, 30s or 10m")
    return number * _SECONDS[unit]


def count_of(text: str) -> float:
    """`1000`, `100K`, `1.5M`, with or without `/s`. Raises BadRequest."""
    number, unit = _split(text.removesuffix("/s"), "count", "1000, 100K or 1.5M")
    if unit.lower() not in _COUNTS:
        raise BadRequest(f"{text!r} is no count", "write it as 1000, 100K or 1.5M")
    return number * _COUNTS[unit.lower()]


def bytes_of(text: str) -> int:
    """`128`, `1KiB`, `4MB`. Raises BadRequest."""
    number, unit = _split(text, "size", "128, 1KiB or 4MB")
    if unit.lower() not in _BYTES:
        raise BadRequest(f"{text!r} is no size", "write it as 128, 1KiB or 4MB")
    return round(number * _BYTES[unit.lower()])


def share_of(text: str) -> float:
    """`10%` or `0.1` as 0.1. Raises BadRequest."""
    number, unit = _split(text, "share", "10% or 0.1")
    if unit not in ("", "%"):
        raise BadRequest(f"{text!r} is no share", "write it as 10% or 0.1")
    return number / 100 if unit else number
