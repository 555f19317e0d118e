"""Places in a queue as people write them: `start`, `end`, `123`, `+5`, `-10`, `-15m`, `FROM:TO`.

A place may be a time, which every option of a command takes in the same way: `-15m` before now,
`+15m` after it, `2026-11-20T10:00` (local time without a zone), ms since 1970; an `@` before each
is allowed. A number alone is ms since 1970 where only a time can be meant (`TIME`); among places it
is an offset, or a count of messages with a sign, unless there is an `@`.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import click

from keelog.cli.failures import BadValue
from protocol.errors import BadRequest
from protocol.human_text import seconds_of

Kind = Literal["start", "end", "offset", "from_start", "from_end", "time"]

_SPAN = re.compile(r"([+-]?)((?:[0-9]+[smhdw])+)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}.*")
_PART = re.compile(r"([0-9]+)([smhdw])")
_UNIT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_NUMBER = re.compile(r"([+-]?)([0-9]{1,19})")
TIME_MS_MAX = 2**63 - 1
_KINDS: dict[str, Kind] = {"": "offset", "+": "from_start", "-": "from_end"}
TIMES = "-15m, 2026-11-20T10:00, or ms since 1970"
"""How to write a time, for the help of options."""


@dataclass(frozen=True, slots=True)
class StartPoint:
    """One place; `value` is an offset, a count, or ms since 1970."""

    kind: Kind
    value: int = 0


def parse_time(text: str, now: datetime, is_ahead: bool = False) -> int:
    """A time in ms since 1970; `15m` without a sign is before now, or with `is_ahead` after it.
    Raises BadParameter for anything that is none."""
    said = text.removeprefix("@")
    span = _SPAN.fullmatch(said)
    try:
        if span is not None:
            length = sum(
                (timedelta(**{_UNIT[unit]: int(count)}) for count, unit in _PART.findall(span[2])),
                timedelta(),
            )
            moment = now + length if span[1] == "+" or (is_ahead and not span[1]) else now - length
        elif said.isascii() and said.isdigit() and int(said) <= TIME_MS_MAX:
            return int(said)
        else:
            moment = datetime.fromisoformat(said)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadValue(
            f"{text!r} is not a time", "write ms since 1970, 2026-11-20T10:00 or -15m"
        ) from None


def time(value: Any) -> int:
    """The type of every option that takes a time: ms since 1970, as a default is already."""
    return value if isinstance(value, int) else parse_time(value, datetime.now().astimezone())


def time_ahead(value: Any) -> int:
    """As `time`, but `1h` is after now."""
    return value if isinstance(value, int) else parse_time(value, datetime.now().astimezone(), True)


def duration(value: Any) -> float:
    """The type of an option that takes a duration: seconds, as a default is already."""
    try:
        return value if isinstance(value, float) else seconds_of(value)
    except BadRequest as error:
        raise BadValue(error.reason, "write it as 30s, 10m or 2h") from None


def parse_place(text: str, now: datetime) -> StartPoint:
    """One place. Raises BadParameter."""
    if text in ("start", "end"):
        return StartPoint(text)  # type: ignore[arg-type]
    if text.startswith("@") or _SPAN.fullmatch(text) or _DATE.fullmatch(text):
        return StartPoint("time", parse_time(text.removeprefix("@"), now))
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise BadValue(
            f"{text!r} is not a place",
            "write start, end, 123, +5, -10, 2026-11-20T10:00 or -15m: keelog help places",
        )
    return StartPoint(_KINDS[number[1]], int(number[2]))


def parse_range(text: str, now: datetime) -> tuple[StartPoint, StartPoint | None]:
    """`FROM` or `FROM:TO`. A time may hold colons itself: the whole text is tried first."""
    colons = [match.start() for match in re.finditer(":", text)]
    for end in [len(text), *reversed(colons)]:
        try:
            first = parse_place(text[:end] or "start", now)
            last = parse_place(text[end + 1 :], now) if text[end + 1 :] else None
        except click.BadParameter:
            continue
        return first, last
    return parse_place(text, now), None
