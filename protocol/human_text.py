"""Text for people: quantities written and read, and the text of others made safe to show.

`size_text` and its kind write quantities; `bytes_of`, `seconds_of` and theirs read them as people
write them: `16MB`, `5ms`, `1.5M`, `10%`. Control characters are escaped as JSON does it. A message,
a topic's name or a node's answer may hold commands for a terminal (ESC, or U+009B alone), and signs
that turn the direction of text.
"""

import re
from collections.abc import Mapping, Sequence

from protocol.errors import BadRequest

_LINE_ENDS_AND_BIDI = "\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_LINE_ENDS_AND_BIDI}]")
_CONTROLS_AND_LINES = re.compile(f"[\x00-\x1f\x7f-\x9f{_LINE_ENDS_AND_BIDI}]")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z%µ]*)")
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60, "min": 60, "h": 3600}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_BYTES = (
    _COUNTS
    | {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
    | {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
)


def printable(text: str) -> str:
    """Escapes control characters but newlines and tabs. JSON text stays JSON of the same value."""
    return _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    """Escapes newlines and tabs too."""
    return _CONTROLS_AND_LINES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def size_text(value: float, decimals: int | None = None) -> str:
    """Returns bytes as `3.42 MiB`, of three digits that count or of this many decimals.

    With decimals a number that changes keeps its width.
    """
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"), decimals)


def count_text(value: float) -> str:
    """Returns a count as `1.5k`."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T"), None)


def number_text(value: float) -> str:
    """Returns a number with three digits that count, and never with an exponent: `1,000`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def _scaled(value: float, base: int, units: Sequence[str], decimals: int | None) -> str:
    for unit in units:
        if abs(value) < base - 0.5 or unit == units[-1]:  # else it is rounded up to the base
            break
        value /= base
    if decimals is not None:
        return f"{value:.{0 if unit == units[0] else decimals}f}{unit}"
    return f"{number_text(value)}{unit}"


def seconds_of(text: str) -> float:
    """Reads `5ms`, `30s` or `10m`; a plain number counts seconds. Raises BadRequest."""
    return _read_quantity(text, _SECONDS, "duration", "5ms, 30s or 10m", any_case=False)


def count_of(text: str) -> float:
    """Reads `1000`, `100K` or `1.5M`, with or without `/s`. Raises BadRequest."""
    return _read_quantity(text.removesuffix("/s"), _COUNTS, "count", "1000, 100K or 1.5M")


def bytes_of(text: str) -> int:
    """Reads `128`, `1KiB` or `4MB`. Raises BadRequest."""
    return round(_read_quantity(text, _BYTES, "size", "128, 1KiB or 4MB"))


def share_of(text: str) -> float:
    """Reads `10%` or `0.1` as 0.1. Raises BadRequest."""
    return _read_quantity(text, {"": 1.0, "%": 0.01}, "share", "10% or 0.1")


def _read_quantity(
    text: str, units: Mapping[str, float], what: str, example: str, any_case: bool = True
) -> float:
    found = _QUANTITY.fullmatch(text.strip())
    number, unit = found.groups() if found else ("", "?")
    factor = units.get(unit.lower() if any_case else unit)
    if factor is None:
        raise BadRequest(f"{text!r} is no {what}", f"write it as {example}")
    return float(number) * factor
