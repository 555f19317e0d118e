"""Options as Spark hands them over, one value at a time: text in, checked values out.

`options` has lower-case names. Everything here raises BadOption, with the form that is taken.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from keelog.pipeline.errors import BadOption

Options = Mapping[str, str]

_UNIT_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,15})\s*(ms|s|m|min|h|d|)")


def one_of(options: Options, name: str, known: tuple[str, ...], default: str) -> str:
    """One of a few words, case aside."""
    value = options.get(name.lower(), default).strip().lower()
    if value not in known:
        raise BadOption(f"{name} is {value[:80]!r}", f"one of {', '.join(known)}")
    return value


def count(options: Options, name: str, high: int | None = None) -> int | None:
    """A number from 1 on, to `high` where there is one; None when it is not given."""
    text = options.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= (high or int(text)):
        upto = "on" if high is None else f"to {high}"
        raise BadOption(f"{name} is {text[:80]!r}", f"a whole number from 1 {upto}")
    return int(text)


def milliseconds(options: Options, name: str) -> int | None:
    """A moment, in milliseconds since 1970; None when it is not given."""
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isascii() or not text.strip().isdigit():
        raise BadOption(f"{name} is {text[:80]!r}", "milliseconds since 1970 in UTC")
    return int(text)


def duration_ms(options: Options, name: str, default: int) -> int:
    """A time as Spark writes it, `500ms`, `10s`, `15m`, `2h`; without a unit in milliseconds."""
    text = options.get(name.lower())
    if text is None:
        return default
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise BadOption(f"{name} is {text[:80]!r}", "500ms, 10s, 15m, 2h or 1d")
    return int(found[1]) * _UNIT_MS[found[2]]


def json_value(options: Options, name: str) -> Any:
    """JSON in which no object names a key twice."""
    try:
        return json.loads(options[name.lower()], object_pairs_hook=_each_once)
    except (json.JSONDecodeError, RecursionError) as error:
        text = options[name.lower()]
        raise BadOption(f"{name} is no JSON: {text[:80]!r}: {error}", "docs/spark.md") from None


def json_object(options: Options, name: str) -> dict[str, Any]:
    """A JSON object with something in it."""
    value = json_value(options, name)
    if not isinstance(value, dict) or not value:
        raise BadOption(f"{name} is no JSON object with anything in it", "docs/spark.md")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        twice = next(name for name, _ in pairs if [key for key, _ in pairs].count(name) > 1)
        raise BadOption(f"{twice[:80]!r} is named twice in one JSON object", "name it once")
    return dict(pairs)
