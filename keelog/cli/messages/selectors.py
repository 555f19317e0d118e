"""Places in a queue as people write them: `start`, `end`, `123`, `+5`, `-10`, `@-15m`, `FROM:TO`.

Also times: ms since 1970, `2026-11-20T10:00` (local time without a zone), `-15m` before now.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import click

from keelog.cli.failures import BadValue

Kind = Literal["start", "end", "offset", "from_start", "from_end", "time"]

_AGO = re.compile(r"-([0-9]+)([smhd])")
_UNIT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NUMBER = re.compile(r"([+-]?)([0-9]{1,19})")
_KINDS: dict[str, Kind] = {"": "offset", "+": "from_start", "-": "from_end"}


@dataclass(frozen=True, slots=True)
class StartPoint:
    """One place; `value` is an offset, a count, or ms since 1970."""

    kind: Kind
    value: int = 0


def parse_time(text: str, now: datetime) -> int:
    """A time in ms since 1970. Raises BadParameter for anything that is none."""
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            moment = now - timedelta(**{_UNIT[ago[2]]: int(ago[1])})
        elif text.isdigit():
            return int(text)
        else:
            moment = datetime.fromisoformat(text)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadValue(
            f"{text!r} is no time", "write ms since 1970, 2026-11-20T10:00 or -15m"
        ) from None


def parse_place(text: str, now: datetime) -> StartPoint:
    """One place. Raises BadParameter."""
    if text in ("start", "end"):
        return StartPoint(text)  # type: ignore[arg-type]
    if text.startswith("@"):
        return StartPoint("time", parse_time(text[1:], now))
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise BadValue(
            f"{text!r} is no place",
            "write start, end, 123, +5, -10, @2026-11-20T10:00 or @-15m: keelog help places",
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
