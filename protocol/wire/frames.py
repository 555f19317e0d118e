"""The requests and answers between processes: a msgpack header, then at most one payload frame.

docs/protocol.md is the text for people. Everything that arrives is bounded before it is read.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgpack

from protocol import errors
from protocol.errors import BadRequest, MqError, UnknownOperation
from protocol.names import DEFAULT_MAX_MESSAGE_BYTES, RECORD_EXTRA_BYTES_MAX

VERSION = 1
HEADER_BYTES_MAX = DEFAULT_MAX_MESSAGE_BYTES + RECORD_EXTRA_BYTES_MAX
"""A header can carry the body of a `send`."""
PAYLOAD_BYTES_MAX = DEFAULT_MAX_MESSAGE_BYTES + RECORD_EXTRA_BYTES_MAX
FRAMES_MAX = 2
"""Header and payload; the identity in front of them is ZeroMQ's."""
LIST_ITEMS_MAX = 1_000
MAP_ITEMS_MAX = 1_000
ITEMS_MAX = 4_096
"""Everything in a request's header, at any depth: empty lists cost 70 times their bytes."""
TEXT_BYTES_MAX = 512 * 1024
"""All text in a request's header: one wide character makes its string four times as large."""
REQUEST_ID_MAX = 2**63 - 1
ID_WITHIN_BYTES = 1024
"""So far a header is searched for its id when it cannot be unpacked."""

Header = dict[str, Any]

# Text and bytes are no longer than their frame, which is measured before.
_REQUEST_RULES = {
    "strict_map_key": True,
    "max_array_len": LIST_ITEMS_MAX,
    "max_map_len": MAP_ITEMS_MAX,
    "max_ext_len": 0,
}
_ANSWER_RULES = {"strict_map_key": False, "max_ext_len": 0}
_PACKER_BYTES_MAX = 64 * 1024


class HeaderPacker:
    """Packs one header after the other, in a buffer that stays. Not for two threads."""

    def __init__(self) -> None:
        self._packer = msgpack.Packer()

    def __call__(self, header: Mapping[str, Any]) -> bytes:
        """A header as msgpack. Raises BadRequest for what msgpack cannot hold."""
        try:
            packed: bytes = self._packer.pack(header)
        except (TypeError, ValueError, OverflowError) as error:
            self._packer = msgpack.Packer()
            raise BadRequest(
                f"not for the wire: {error}",
                "send text without lone surrogates, bytes, 64-bit numbers",
            ) from None
        if len(packed) > _PACKER_BYTES_MAX:
            self._packer = msgpack.Packer()  # gives the memory back
        return packed


def pack(header: Mapping[str, Any]) -> bytes:
    """As a `HeaderPacker` that is used once."""
    return HeaderPacker()(header)


def unpack(frame: bytes | memoryview, bytes_max: int = HEADER_BYTES_MAX) -> Header:
    """The map in `frame`. Raises BadRequest for anything else, whatever the bytes are."""
    if len(frame) > bytes_max:
        raise BadRequest(f"the header has {len(frame)} bytes, {bytes_max} are allowed")
    if len(frame) > ITEMS_MAX:
        _check_items(frame)
    return _load_map(frame, "the header", _REQUEST_RULES)


def _check_items(frame: bytes | memoryview) -> None:
    """Walks over the marks of msgpack without building anything; what a body holds is skipped.

    Raises BadRequest for more items or more text than a request can need. Bytes that are not
    msgpack end the walk: the unpacker names them.
    """
    place = text_bytes = 0
    for _ in range(ITEMS_MAX):
        if place >= len(frame):
            return
        mark = frame[place]
        rest, length_bytes = _REST[mark], _LENGTH_BYTES[mark]
        place += 1
        if length_bytes:
            rest += int.from_bytes(frame[place : place + length_bytes], "big")
            place += length_bytes
        if mark in _TEXT_MARKS:
            text_bytes += rest
            if text_bytes > TEXT_BYTES_MAX:
                raise BadRequest(
                    f"the header holds more than {TEXT_BYTES_MAX} bytes of text",
                    "send large content as the body",
                )
        place += rest
    if place < len(frame):
        raise BadRequest(
            f"the header holds more than {ITEMS_MAX} items", "no request needs so many fields"
        )


def _marks() -> tuple[bytes, bytes, frozenset[int]]:
    """For each first byte of an item: fixed bytes after it, bytes of its length, and the text's.

    The items of lists and maps come after them as items of their own, so they count as nothing.
    """
    rest, length_bytes = bytearray(256), bytearray(256)
    for mark in range(0xA0, 0xC0):
        rest[mark] = mark - 0xA0
    for first, sizes in ((0xCA, (4, 8)), (0xCC, (1, 2, 4, 8)), (0xD0, (1, 2, 4, 8))):
        for mark, size in enumerate(sizes, first):
            rest[mark] = size
    for mark, size in enumerate((2, 3, 5, 9, 17), 0xD4):  # extensions, with their type
        rest[mark] = size
    for mark, size in enumerate((1, 2, 4), 0xC7):
        rest[mark], length_bytes[mark] = 1, size
    for first in (0xC4, 0xD9):  # bytes, text
        for mark, size in enumerate((1, 2, 4), first):
            length_bytes[mark] = size
    for mark, size in ((0xDC, 2), (0xDD, 4), (0xDE, 2), (0xDF, 4)):  # lists and maps
        rest[mark] = size
    return bytes(rest), bytes(length_bytes), frozenset({*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB})


_REST, _LENGTH_BYTES, _TEXT_MARKS = _marks()


def unpack_answer(frame: bytes | memoryview) -> Header:
    """As `unpack`, for answers, which may be longer lists than requests."""
    return _load_map(frame, "the answer's header", _ANSWER_RULES)


def _load_map(frame: bytes | memoryview, what: str, rules: Mapping[str, Any]) -> Header:
    try:
        header = msgpack.unpackb(frame, **rules)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        why = str(error) or type(error).__name__
        raise BadRequest(f"{what} is no msgpack map: {why}") from None
    if not isinstance(header, dict):
        raise BadRequest(f"{what} is no msgpack map", "a map with v, op and id was expected")
    return header


def request_id(header: Header) -> int:
    """The request's id, 0 when it has no usable one, so that every answer can name it."""
    value = header.get("id")
    return value if type(value) is int and 0 <= value <= REQUEST_ID_MAX else 0


def id_within(frame: bytes | memoryview) -> int:
    """The id at the beginning of a header that `unpack` refuses, so that the refusal can name it.

    0 when none comes before what is wrong, within ID_WITHIN_BYTES.
    """
    unpacker = msgpack.Unpacker(**_REQUEST_RULES)
    unpacker.feed(bytes(frame[:ID_WITHIN_BYTES]))
    with suppress(ValueError, TypeError, msgpack.UnpackException, RecursionError):
        for _ in range(unpacker.read_map_header()):
            if unpacker.unpack() == "id":
                return request_id({"id": unpacker.unpack()})
            unpacker.skip()
    return 0


def check_envelope(header: Header) -> str:
    """The operation's name. Raises UnknownOperation for another version, BadRequest for no name."""
    version = header.get("v")
    if type(version) is not int or version != VERSION:
        # Only a number is shown: the text of a deeply nested value would need a deep stack.
        shown = version if type(version) is int else type(version).__name__
        raise UnknownOperation(f"protocol version {shown}", f"this node speaks version {VERSION}")
    operation = header.get("op")
    if not isinstance(operation, str):
        raise BadRequest("the header has no operation", "name it as op")
    number = header.get("id")
    if type(number) is not int or not 0 <= number <= REQUEST_ID_MAX:
        raise BadRequest(f"the header has no id in [0, {REQUEST_ID_MAX}]", "number your requests")
    return operation


def answer(request: int, **fields: Any) -> Header:
    """The header of a good answer."""
    return {"v": VERSION, "id": request, "ok": True, **fields}


def refusal(request: int, error: MqError) -> Header:
    """The header of a refusal: what went wrong, as data."""
    extra = {
        name: value
        for name in (
            *("earliest", "latest", "retry_after", "where", "offset", "found"),
            *("queue_offset", "next_offset", "generation", "local"),
        )
        if (value := getattr(error, name, None)) is not None
    }
    return {
        "v": VERSION,
        "id": request,
        "ok": False,
        "error": {
            "kind": type(error).__name__,
            "code": error.code,
            "status": error.status,
            "reason": error.reason,
            "hint": error.hint,
            "retriable": error.retriable,
            **extra,
        },
    }


def refusal_error(header: Header) -> MqError:
    """Returns the error that a refusal describes.

    A kind that this side does not know becomes the family that its `retriable` names.
    """
    error = header.get("error")
    if not isinstance(error, dict):
        error = {}
    kind = getattr(errors, str(error.get("kind")), None)
    reason, hint = _text(error, "reason", "no reason given"), _text(error, "hint")
    if not (isinstance(kind, type) and issubclass(kind, MqError)):
        retriable = bool(error.get("retriable"))
        kind = errors.BusyError if retriable else errors.RefusedError
    if issubclass(kind, errors.CorruptError):
        damage = _text(error, "where"), _number(error, "offset"), _text(error, "found", reason)
        if issubclass(kind, errors.MessageDamaged):
            places = _number(error, "queue_offset"), _number(error, "next_offset")
            return kind(*damage, hint, *places)
        return kind(*damage, hint)
    if issubclass(kind, errors.TopicRemoved):
        return kind(reason, hint, _number(error, "generation"))
    if issubclass(kind, errors.OffsetOutOfRange):
        return kind(reason, hint, _number(error, "earliest"), _number(error, "latest"))
    refused = kind(reason, hint)
    if isinstance(refused, errors.NotLoggedIn):
        refused.local = _text(error, "local") or None
    wait_s = error.get("retry_after")
    if isinstance(refused, errors.NodeBusy) and isinstance(wait_s, int | float):
        refused.retry_after = wait_s
    return refused


def _text(error: Mapping[str, Any], name: str, default: str = "") -> str:
    value = error.get(name)
    return value if isinstance(value, str) else default


def _number(error: Mapping[str, Any], name: str) -> int:
    value = error.get(name)
    return value if isinstance(value, int) else 0
