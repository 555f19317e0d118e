"""A page's JSON without what differs between two runs in any case: times, addresses, ids."""

import json
import re
from collections.abc import Iterator
from typing import Any

from scripts.rivals.mqadmin.masks import LOAD_KEYS, masked_text

_TIMES_MS = range(1_600_000_000_000, 2_000_000_000_000)
_RATE = re.compile(r"tps$|^cost(Time)?$|^spentTimeMills$", re.IGNORECASE)
"""Members whose value is how fast something was."""
_FIGURE = re.compile(r",\d+\b")
_STACK = "jstack"
Json = Any


def masked(value: Json, name: str = "", *, loads: bool = False) -> Json:
    """`name` is the member's. `loads`: members that LOAD_KEYS has count by their names alone.

    The order of lists does not count: many are sets in Java.
    """
    if loads and isinstance(value, str | int | float) and LOAD_KEYS.match(name):
        return "<load>"
    match value:
        case dict():
            return {
                masked_text(key): masked(one, key, loads=loads)
                for key, one in sorted(value.items())
            }
        case list():
            return sorted((masked(one, name, loads=loads) for one in value), key=json.dumps)
        case bool() | None:
            return value
        case float():
            return "<decimal>"
        case int():
            return "<n>" if _RATE.search(name) or value in _TIMES_MS else value
        case str() if name == _STACK and value:
            return "<stack>"
        case str():
            return masked_text(value)
    raise TypeError(type(value))


def drawn(value: Json) -> Json:
    """A masked chart as what is drawn: its figures are of the last minute, which the two sides look
    at in different moments, and points that look the same count once."""
    match value:
        case dict():
            return {name: drawn(one) for name, one in value.items()}
        case list():
            return sorted({_FIGURE.sub(",<n>", point) for point in value})
    return value


def lines(value: Json, place: str = "") -> Iterator[str]:
    """One line for each plain value: where it is, and what."""
    match value:
        case dict() if value:
            for name, one in value.items():
                yield from lines(one, f"{place}.{name}" if place else name)
        case list() if value:
            for number, one in enumerate(value):
                yield from lines(one, f"{place}[{number}]")
        case _:
            yield f"{place} = {value}"
