"""Values of SQL92 filters and how RocketMQ compares them (ComparisonExpression).

A property is a text. Beside a number it is read as a number of the same kind, by Java's rules; a
text that is none raises UndecidedError, and the message is not delivered.
"""

import math
import re

Value = str | int | float | bool | None
"""None is SQL's NULL: a property that a message does not have."""
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_INTEGER_CHARS = 400
"""Longer texts count as too large."""
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"([+-]?)(?:(NaN)|(Infinity)|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)"
)
_BLANKS = "".join(map(chr, range(0x21)))
"""What Java takes off both ends of a decimal."""


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
    found = _DOUBLE.fullmatch(text.strip(_BLANKS))
    if found is None:
        raise UndecidedError("not a number")
    sign, nan, infinity, digits = found.groups()
    size = math.nan if nan else math.inf if infinity else float(digits)
    return -size if sign == "-" else size
