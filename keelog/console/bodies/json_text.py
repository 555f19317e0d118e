"""JSON for people: indented, with the words of the body itself, and a kind for each of them.

The text is cut into words and put together anew, so that numbers and repeated keys stay as they
were written.
"""

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

JSON_BYTES_MAX = 256 * 1024
"""A longer body is shown as text."""
DEPTH_MAX = 100
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_INDENT = "  "
_OPEN, _CLOSE = frozenset("{["), frozenset("}]")
KEY, TEXT, NUMBER, WORD, SIGN = "key", "text", "number", "word", "sign"


class TextPart(NamedTuple):
    """A word and its kind: `key`, `text`, `number`, `word` (true, null), or `sign`."""

    kind: str
    text: str


def json_pieces(data: bytes) -> list[TextPart] | None:
    """The pieces of a JSON object or list, with blanks and new lines; None for anything else."""
    if len(data) > JSON_BYTES_MAX or data.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        text = data.decode()
        words = _WORD.findall(text)
        if _depth(words) > DEPTH_MAX:
            return None
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return list(_laid_out(words))


def _depth(words: list[str]) -> int:
    depth = deepest = 0
    for word in words:
        if word in _OPEN:
            depth += 1
            deepest = max(deepest, depth)
        elif word in _CLOSE:
            depth -= 1
    return deepest


def _laid_out(words: list[str]) -> Iterator[TextPart]:
    depth = 0
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        if word in _OPEN:
            depth += 1
            yield TextPart(SIGN, word if after in _CLOSE else f"{word}\n{_INDENT * depth}")
        elif word in _CLOSE:
            depth -= 1
            is_empty = words[place - 1] in _OPEN
            yield TextPart(SIGN, word if is_empty else f"\n{_INDENT * depth}{word}")
        elif word == ",":
            yield TextPart(SIGN, f",\n{_INDENT * depth}")
        elif word == ":":
            yield TextPart(SIGN, ": ")
        else:
            yield TextPart(_kind(word, after), word)


def _kind(word: str, after: str) -> str:
    if word.startswith('"'):
        return KEY if after == ":" else TEXT
    return WORD if word in ("true", "false", "null") else NUMBER
