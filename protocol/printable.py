"""Text as a terminal or a log line may get it: control characters are escaped as JSON does it.

Text of a message, of a topic's name or of a node's answer may hold commands for a terminal
(ESC, or U+009B alone), and signs that turn the direction of what follows.
"""

import re

_LINE_ENDS_AND_BIDI = "\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_LINE_ENDS_AND_BIDI}]")
_CONTROLS_AND_LINES = re.compile(f"[\x00-\x1f\x7f-\x9f{_LINE_ENDS_AND_BIDI}]")


def printable(text: str) -> str:
    """Escapes control characters but newlines and tabs. JSON text stays JSON of the same value."""
    return _CONTROLS.sub(_escaped, text)


def one_line(text: str) -> str:
    """Escapes newlines and tabs too."""
    return _CONTROLS_AND_LINES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
