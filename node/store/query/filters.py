"""Filters of subscriptions: each selects messages by their tags, or by properties in SQL92.

Tags are compared by the hash in the queue unit, then by the text. A broker compares hashes only and
leaves the text to its client (DefaultMessageFilter, FilterAPI).

A filter in SQL92 looks at the properties as they are stored, and compares values as RocketMQ does
(ComparisonExpression). A property is a text. Beside a number it is read as a number of the same
kind, by Java's rules; a text that is none raises UndecidedError, and the message is not delivered.
Its language is in `sql`, loaded for the first such filter.
"""

import math
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from node.store.queues import Units
from protocol.errors import BadRequest
from protocol.layout import Readable
from protocol.record import codec
from protocol.record.java_hash import java_hash, java_text
from protocol.record.properties import (
    CRC_PROPERTY_BYTES,
    crc_property,
    decode_properties,
    decode_raw_properties,
)

if TYPE_CHECKING:
    from node.store.query.sql import Evaluation, Properties

ALL = "*"
Value = str | int | float | bool | None
"""None is SQL's NULL: a property that a message does not have."""
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_TAG_SEPARATOR = "||"
_LOOKS_LIKE_SQL = re.compile(
    r"\s(?:AND|OR|BETWEEN)\s|\s(?:[<>]=?|<>|=)\s|[<>]=?\s*['\"\d]|=\s*['\"]|\sIN\s*\("
    r"|\bIS\s+(?:NOT\s+)?NULL\b"
)
"""Comparisons and their words, as RocketMQ's SQL92 filters have them; a tag may hold one sign."""
_MAGIC_V1 = codec.MAGIC_V1.to_bytes(4, "big")
_INT = struct.Struct(">i").unpack_from
_EXT_ADDRESS_MAX = -(2**31) - 1
"""At or below this a unit's code is an address in another file (ConsumeQueueExt), not a hash."""
_INTEGER_CHARS = 400
"""Longer texts count as too large."""
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)"
)
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""What Java takes off both ends of a decimal."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags of a subscription, and their hashes."""

    tags: frozenset[str]
    hashes: NDArray[np.int32]

    def takes_units(self, units: Units) -> NDArray[np.bool_]:
        """Marks the units whose hash fits; a unit whose hash is in another file passes."""
        codes: NDArray[Any] = units["tags_code"].astype(np.int64)
        return np.isin(codes.astype(np.int32), self.hashes) | (codes <= _EXT_ADDRESS_MAX)

    def takes_record(self, raw: Readable) -> bool:
        """True if the tag's text fits, and for what is not a record: its reader reports that."""
        properties = stored_properties(bytes(raw))
        if properties is None:
            return True
        tags = decode_raw_properties(properties).get(b"TAGS", b"")
        if java_text(tags) in self.tags:
            return True
        # Rare: another tag of the same hash, or damage, which must not be passed over in silence.
        return not isinstance(codec.decode(raw, 0), codec.Record)


def stored_properties(raw: bytes) -> bytes | None:
    """A record's properties by its lengths alone; None when these do not agree."""
    if len(raw) < codec.RECORD_BYTES_MIN:
        return None
    (sys_flag,) = _INT(raw, codec.SYS_FLAG_POSITION)
    head_bytes = codec.record_head(sys_flag).size
    topic_length_bytes = 1 if raw[4:8] == _MAGIC_V1 else 2
    if len(raw) < head_bytes:
        return None
    (body_length,) = _INT(raw, head_bytes - 4)
    topic_at = head_bytes + body_length
    topic_length = int.from_bytes(raw[topic_at : topic_at + topic_length_bytes], "big")
    start = topic_at + topic_length_bytes + topic_length + 2
    length = int.from_bytes(raw[start - 2 : start], "big")
    return raw[start:] if body_length >= 0 and start + length == len(raw) else None


def parse_tags(expression: str | None) -> TagFilter | None:
    """Parses `A || B`; None for `*`, the empty text and no text, which take everything.

    Raises BadRequest if the text names no tag, or is a condition in SQL, which as a tag would find
    nothing.
    """
    if expression is None or expression.strip() in ("", ALL):
        return None
    if _LOOKS_LIKE_SQL.search(expression):
        raise BadRequest(
            f"{expression[:80]!a} looks like SQL, which is not supported as a filter",
            "write tags as 'A || B'; filter by properties in the program that reads",
        )
    tags = [tag for tag in (part.strip() for part in expression.split(_TAG_SEPARATOR)) if tag]
    if not tags:
        raise BadRequest(f"{expression[:80]!a} names no tag", "write 'A || B', or * for all")
    hashes = np.array(sorted({java_hash(tag) for tag in tags}), np.int32)
    return TagFilter(frozenset(tags), hashes)


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """An expression; it decides as a TagFilter does, but not by units."""

    value: "Evaluation"

    def takes_units(self, units: Units) -> NDArray[np.bool_]:
        """Marks all units."""
        return np.ones(len(units), np.bool_)

    def takes_record(self, raw: Readable) -> bool:
        """True if the properties fit, and for what is not a record: its reader reports that."""
        data = bytes(raw)
        properties = stored_properties(data)
        if properties is None or self.takes(decode_properties(properties)):
            return True
        # Damage must not be passed over in silence.
        return not _is_sealed(data) and not isinstance(codec.decode(data, 0), codec.Record)

    def takes(self, properties: "Properties") -> bool:
        """True if the expression is TRUE: not if it is FALSE or NULL, or cannot be decided."""
        try:
            return self.value(properties) is True
        except UndecidedError:
            return False


def _is_sealed(data: bytes) -> bool:
    """Whether the record's last property is the checksum of the rest."""
    seal = data[-CRC_PROPERTY_BYTES:]
    return seal == crc_property(zlib.crc32(memoryview(data)[:-CRC_PROPERTY_BYTES]))


def sql_filter(expression: str) -> SqlFilter:
    """The filter of an expression. Raises BadRequest."""
    # Only here: each process that reads would load the language, and few ever meet it.
    from node.store.query.sql import parse_sql

    return SqlFilter(parse_sql(expression))


class UndecidedError(ValueError):
    """Two values cannot be compared: a broker fails, and delivers nothing."""


def is_equal(left: Value, right: Value) -> bool | None:
    """`=`: NULL beside NULL is equal. Raises UndecidedError."""
    if left is None or right is None:
        return None if right is not None else left is None
    if isinstance(left, bool) or isinstance(right, bool):
        return _is_equal_truth(left, right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return _ordered(left, right) == 0


def _is_equal_truth(left: Value, right: Value) -> bool:
    if isinstance(left, str):
        return (left.lower() == "true") == right
    if isinstance(right, str):
        raise UndecidedError("a truth value cannot be compared with a text on its right")
    return isinstance(left, bool) and isinstance(right, bool) and left == right


def compared(left: Value, right: Value) -> int | None:
    """-1, 0 or 1 as `left` is less, equal or greater; None beside NULL. Raises UndecidedError."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return _order(java_double(left), java_double(right))
    return _ordered(left, right)


def _ordered(left: str | int | float, right: str | int | float) -> int:
    """Of two values that are not both texts: a text becomes what the other one is."""
    if isinstance(left, str):
        assert not isinstance(right, str)
        left = _as_kind_of(right, left)
    elif isinstance(right, str):
        right = _as_kind_of(left, right)
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return _order(float(left), float(right))


def _as_kind_of(number: int | float, text: str) -> int | float:
    if isinstance(number, float):
        return java_double(text)
    # A broker has -2147483648 as the negative of a long.
    if INT32_MIN < number <= INT32_MAX:
        return java_integer(text, INT32_MIN, INT32_MAX)
    return java_integer(text, INT64_MIN, INT64_MAX)


def _order(left: float, right: float) -> int:
    """Java's order of doubles."""
    first, second = _double_key(left), _double_key(right)
    return (first > second) - (first < second)


def _double_key(number: float) -> tuple[bool, float, float]:
    """NaN is equal to itself and the greatest, -0.0 is less than 0.0."""
    return (True, 0.0, 0.0) if math.isnan(number) else (False, number, math.copysign(1, number))


def java_integer(text: str, low: int, high: int) -> int:
    """`Integer.valueOf`, or `Long.valueOf`, by the bounds. Raises UndecidedError."""
    if len(text) > _INTEGER_CHARS or not _INTEGER.fullmatch(text):
        raise UndecidedError("not an integer")
    number = int(text)
    if not low <= number <= high:
        raise UndecidedError("out of range")
    return number


def java_double(text: str) -> float:
    """`Double.valueOf`, without its hexadecimal form. Raises UndecidedError."""
    found = _DOUBLE.fullmatch(text.strip(_JAVA_BLANKS))
    if found is None:
        raise UndecidedError("not a number")
    sign, nan, infinity, digits = found.groups()
    size = math.nan if nan else math.inf if infinity else float(digits)
    return -size if sign == "-" else size
