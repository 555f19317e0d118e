"""Places in a queue as people write them: `start`, `end`, `123`, `+5`, `-10`, `@-15m`, `FROM:TO`.

Also times, which every option of a command takes in the same way (`TIME`): ms since 1970,
`2026-11-20T10:00` (local time without a zone), `-15m` before now; an `@` before each is allowed.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import click

from keelog.cli.failures import BadValue
from protocol.errors import BadRequest
from protocol.quantities import seconds_of

Kind = Literal["start", "end", "offset", "from_start", "from_end", "time"]

_AGO = re.compile(r"-((?:[0-9]+[smhdw])+)")
_PART = re.compile(r"([0-9]+)([smhdw])")
_UNIT = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_NUMBER = re.compile(r"([+-]?)([0-9]{1,19})")
TIME_MS_MAX = 2**63 - 1
_KINDS: dict[str, Kind] = {"": "offset", "+": "from_start", "-": "from_end"}


@dataclass(frozen=True, slots=True)
class StartPoint:
    """One place; `value` is an offset, a count, or ms since 1970."""

    kind: Kind
    value: int = 0


def parse_time(text: str, now: datetime) -> int:
    """A time in ms since 1970. Raises BadParameter for anything that is none."""
    said = text.removeprefix("@")
    ago = _AGO.fullmatch(said)
    try:
        if ago is not None:
            moment = now
            for count, unit in _PART.findall(ago[1]):
                moment -= timedelta(**{_UNIT[unit]: int(count)})
        elif said.isascii() and said.isdigit() and int(said) <= TIME_MS_MAX:
            return int(said)
        else:
            moment = datetime.fromisoformat(said)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadValue(
            f"{text!r} is not a time", "write ms since 1970, 2026-11-20T10:00 or -15m"
        ) from None


class TimeType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """The type of every option that takes a time: ms since 1970."""

    name = "time"

    def convert(
        self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None
    ) -> int:
        """A default is ms already."""
        return value if isinstance(value, int) else parse_time(value, datetime.now().astimezone())


class SecondsType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """The type of an option that takes a duration: seconds."""

    name = "duration"

    def convert(
        self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None
    ) -> float:
        """A default is seconds already. Raises BadParameter."""
        if isinstance(value, float):
            return value
        try:
            return seconds_of(value)
        except BadRequest as error:
            raise BadValue(error.reason, "write it as 30s, 10m or 2h") from None


TIME = TimeType()
TIMES = "-15m, 2026-11-20T10:00, or ms since 1970"
"""How to write a time, for the help of options."""


def parse_place(text: str, now: datetime) -> StartPoint:
    """One place. Raises BadParameter."""
    if text in ("start", "end"):
        return StartPoint(text)  # type: ignore[arg-type]
    if text.startswith("@"):
        return StartPoint("time", parse_time(text[1:], now))
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise BadValue(
            f"{text!r} is not a place",
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
