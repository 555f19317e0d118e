"""`consume -f`: format strings with one letter for each part of a message.

%t topic, %q queue, %o offset, %k keys, %v value (or %s), %V its size, %d store time in ms,
%h properties, %g tags, %x physical offset, %% a percent sign; after a letter {hex}, {base64} or
{json}. \\n, \\t, \\r, \\0, \\\\ and \\xHH are the usual bytes.
"""

import base64
import json
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from keelog.cli.failures import BadValue
from keelog.cli.shapes import properties_shape, text_or_b64
from protocol.human_text import printable
from protocol.record.codec import Record

_PART = re.compile(
    r"%(?P<letter>[a-zA-Z%])(?:\{(?P<how>[a-z0-9]*)\})?|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)"
    r"|(?P<text>[^%\\]+)|(?P<bad>.)",
    re.DOTALL,
)
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}

Value = bytes | str | int | list[str] | dict[str, Any]
_Letters = dict[str, Callable[[Record], Value]]
_LETTERS: _Letters = {
    "t": lambda record: record.topic,
    "q": lambda record: record.head.queue_id,
    "o": lambda record: record.head.queue_offset,
    "k": lambda record: record.keys,
    "d": lambda record: record.head.store_timestamp,
    "h": properties_shape,
    "g": lambda record: record.tags,
    "x": lambda record: record.head.physical_offset,
}
_HOWS: dict[str, Callable[[Value], bytes]] = {
    "": lambda value: _plain(value),
    "hex": lambda value: _plain(value).hex().encode(),
    "base64": lambda value: base64.b64encode(_plain(value)),
    "json": lambda value: _json(value),
}

Formatter = Callable[[Record], bytes]


def compile_format(text: str, body: Formatter = attrgetter("body")) -> Formatter:
    """A function from a message to its bytes; `body` gives a message's body.

    Raises BadParameter for what is not known.
    """
    letters = _LETTERS | {"v": body, "s": body, "V": lambda record: len(body(record))}
    parts = [_part(match, letters) for match in _PART.finditer(text)]

    def render(record: Record) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(record) for part in parts)

    return render


def _part(match: re.Match[str], letters: _Letters) -> bytes | Formatter:
    if match["text"] is not None:
        return match["text"].encode()
    if match["hex"] is not None:
        return bytes.fromhex(match["hex"])
    if match["escape"] is not None and match["escape"] in _ESCAPES:
        return _ESCAPES[match["escape"]]
    letter, how = match["letter"], match["how"] or ""
    if letter == "%":
        return b"%" + (f"{{{match['how']}}}".encode() if match["how"] is not None else b"")
    take, write = letters.get(letter or ""), _HOWS.get(how)
    if take is None or write is None:
        raise BadValue(
            f"{match[0]!r} is not known",
            f"letters are {' '.join(letters)}, modifiers {{hex}} {{base64}} {{json}}",
        )
    return lambda record: write(take(record))


def _plain(value: Value) -> bytes:
    match value:
        case bytes():
            return value
        case list():
            return " ".join(value).encode()
        case dict():
            pairs = (
                f"{name}={one if isinstance(one, str) else one['b64']}"
                for name, one in value.items()
            )
            return ",".join(pairs).encode()
        case _:
            return str(value).encode()


def _json(value: Value) -> bytes:
    shown = text_or_b64(value) if isinstance(value, bytes) else value
    return printable(json.dumps(shown, ensure_ascii=False)).encode()
