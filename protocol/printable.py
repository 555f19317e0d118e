"""Text for people: quantities, and the text of others made safe for a terminal or a log line.

Control characters are escaped as JSON does it. A message, a topic's name or a node's answer may
hold commands for a terminal (ESC, or U+009B alone), and signs that turn the direction of text.
"""

import re
from collections.abc import Sequence

_LINE_ENDS_AND_BIDI = "\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_LINE_ENDS_AND_BIDI}]")
_CONTROLS_AND_LINES = re.compile(f"[\x00-\x1f\x7f-\x9f{_LINE_ENDS_AND_BIDI}]")


def printable(text: str) -> str:
    """Escapes control characters but newlines and tabs. JSON text stays JSON of the same value."""
    return _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    """Escapes newlines and tabs too."""
    return _CONTROLS_AND_LINES.sub(_escaped, text)


def size_text(value: float, decimals: int | None = None) -> str:
    """Returns bytes as `3.42 MiB`, of three digits that count or of this many decimals.

    With decimals a number that changes keeps its width.
    """
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"), decimals)


def count_text(value: float) -> str:
    """Returns a count as `1.5k`."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T"), None)


def _scaled(value: float, base: int, units: Sequence[str], decimals: int | None) -> str:
    for unit in units:
        if abs(value) < base - 0.5 or unit == units[-1]:  # else it is rounded up to the base
            break
        value /= base
    if decimals is not None:
        return f"{value:.{0 if unit == units[0] else decimals}f}{unit}"
    return f"{number_text(value)}{unit}"


def number_text(value: float) -> str:
    """Returns a number with three digits that count, and never with an exponent: `1,000`."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
