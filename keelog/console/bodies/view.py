"""A body as a page shows it: the first form that fits, or the chosen one, a page at a time.

JSON, text, msgpack, else bytes. A browser takes seconds to paint a megabyte of text, so one page
has 64 KiB. Control characters and signs that turn the direction of text are visible.
"""

from typing import Any, NamedTuple

import msgpack

from keelog.console.bodies.json_text import SIGN, TEXT, TextPart, json_pieces
from keelog.console.bodies.unpack import Unpacked
from protocol.human_text import printable

JSON, PLAIN, MSGPACK, HEX = "json", "text", "msgpack", "hex"
FORMS = (JSON, PLAIN, MSGPACK, HEX)
PAGE_CHARS_MAX = 64 * 1024
HEX_PAGE_BYTES = 8 * 1024
PIECES_MAX = 4_000
"""More coloured words than these are shown as plain text: each one costs a browser an element."""
NODES_MAX = 2_000
"""Values of a msgpack body that are shown."""
MSGPACK_BYTES_MAX = 256 * 1024
PREVIEW_CHARS = 160
_PREVIEW_BYTES = 1_024
_CONTROLS_SHARE = 0.1
_HEX_ROW = 16


class Shown(NamedTuple):
    """One page of a body in one form."""

    form: str
    pieces: list[TextPart]
    page: int
    """From 1 on."""
    pages: int
    note: str
    """To be known of it; empty for nothing."""
    is_fallback: bool = False
    """Whether the chosen form did not fit."""


def shown(body: Unpacked, form: str, page: int) -> Shown:
    """A page of a body; `form` empty: the first that fits."""
    data, note = body.data, _note(body)
    if not data:
        return Shown(PLAIN, [], 1, 1, note or "the body is empty")
    tried = [form] if form in FORMS else [JSON, PLAIN, MSGPACK]
    for one in tried:
        pieces = _pieces(data, one)
        if pieces is not None:
            return _paged(one, pieces, page, note)
    found = _hex_page(data, page, note)
    return found._replace(is_fallback=form in FORMS and form != HEX)


def _note(body: Unpacked) -> str:
    if body.why:
        return f"shown as stored: {body.why}"
    if body.is_cut:
        return f"unpacked from {body.codec}; only the first {len(body.data):,} bytes are shown"
    return f"unpacked from {body.codec}" if body.codec else ""


def _pieces(data: bytes, form: str) -> list[TextPart] | None:
    if form == JSON:
        return json_pieces(data)
    if form == PLAIN:
        text = text_of(data)
        return None if text is None else [TextPart(TEXT, text)]
    return _msgpack_pieces(data) if form == MSGPACK else None


def text_of(data: bytes) -> str | None:
    """The body as text; None for bytes that are none."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # The body may have been cut within a character.
        if error.end < len(data) or len(data) - error.start > 3:
            return None
        text = data[: error.start].decode()
    sample = text[:4_096]
    controls = sum(one < " " and one not in "\t\r\n" for one in sample)
    if "\0" in sample or controls > _CONTROLS_SHARE * len(sample):
        return None
    return text


def _paged(form: str, pieces: list[TextPart], page: int, note: str) -> Shown:
    if len(pieces) <= PIECES_MAX and sum(len(one.text) for one in pieces) <= PAGE_CHARS_MAX:
        clean = [TextPart(one.kind, printable(one.text)) for one in pieces]
        return Shown(form, clean, 1, 1, note)
    text = printable("".join(one.text for one in pieces))
    pages = max(1, -(-len(text) // PAGE_CHARS_MAX))
    page = min(page, pages)
    part = text[(page - 1) * PAGE_CHARS_MAX : page * PAGE_CHARS_MAX]
    return Shown(form, [TextPart(TEXT, part)], page, pages, note)


def _hex_page(data: bytes, page: int, note: str) -> Shown:
    pages = max(1, -(-len(data) // HEX_PAGE_BYTES))
    page = min(page, pages)
    first = (page - 1) * HEX_PAGE_BYTES
    rows = []
    for start in range(first, min(first + HEX_PAGE_BYTES, len(data)), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        letters = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{3 * _HEX_ROW}} {letters}")
    return Shown(HEX, [TextPart(TEXT, "\n".join(rows))], page, pages, note)


def _msgpack_pieces(data: bytes) -> list[TextPart] | None:
    """The whole body has to be one map or list."""
    if len(data) > MSGPACK_BYTES_MAX or not _is_container(data[0]):
        return None
    limits = {
        "max_str_len": len(data), "max_bin_len": len(data), "max_ext_len": len(data),
        "max_array_len": len(data), "max_map_len": len(data),
    }  # fmt: skip
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False, **limits)
    except (ValueError, RecursionError, TypeError, msgpack.UnpackException):
        return None
    lines: list[str] = []
    _write(value, 0, "", lines)
    if len(lines) > NODES_MAX:
        lines[NODES_MAX:] = [f"… more than {NODES_MAX:,} values"]
    return [TextPart(SIGN, "\n".join(lines))]


def _is_container(first: int) -> bool:
    return 0x80 <= first <= 0x9F or first in (0xDC, 0xDD, 0xDE, 0xDF)


def _write(value: Any, depth: int, name: str, lines: list[str]) -> None:
    """A line for each value, as YAML has them."""
    if len(lines) > NODES_MAX:
        return
    head = f"{'  ' * depth}{name}"
    if isinstance(value, dict) and value:
        lines.append(f"{head}{{{len(value)}}}")
        for key, inner in value.items():
            _write(inner, depth + 1, f"{_scalar(key)}: ", lines)
    elif isinstance(value, list) and value:
        lines.append(f"{head}[{len(value)}]")
        for number, inner in enumerate(value):
            _write(inner, depth + 1, f"{number}: ", lines)
    else:
        lines.append(f"{head}{_scalar(value)}")


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return repr(value) if isinstance(value, str) else str(value)


def preview(body: Unpacked) -> str:
    """The begin of a body in one line, for a list."""
    data = body.data[:_PREVIEW_BYTES]
    text = text_of(data)
    if text is None:
        return data[:40].hex(" ")
    line = " ".join(text.split())
    return f"{line[:PREVIEW_CHARS]}…" if len(line) > PREVIEW_CHARS else line
