"""Places and times as people write them."""

from datetime import UTC, datetime

import click
import pytest

from keelog.cli.messages.selectors import (
    TIME,
    StartPoint,
    parse_place,
    parse_range,
    parse_time,
)
from tests.cli.tree import leaves

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("start", StartPoint("start")),
        ("end", StartPoint("end")),
        ("123", StartPoint("offset", 123)),
        ("+5", StartPoint("from_start", 5)),
        ("-10", StartPoint("from_end", 10)),
        ("@-15m", StartPoint("time", NOW_MS - 15 * 60_000)),
        ("@1763640000000", StartPoint("time", 1763640000000)),
        ("@2026-11-20T10:00+00:00", StartPoint("time", NOW_MS - 2 * 3_600_000)),
    ],
)
def test_a_place_is_read(text: str, place: StartPoint) -> None:
    assert parse_place(text, NOW) == place
    assert parse_range(text, NOW) == (place, None)


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("start:end", StartPoint("start"), StartPoint("end")),
        ("5:10", StartPoint("offset", 5), StartPoint("offset", 10)),
        (":10", StartPoint("start"), StartPoint("offset", 10)),
        ("5:", StartPoint("offset", 5), None),
        (
            "@-2h:@-1h",
            StartPoint("time", NOW_MS - 7_200_000),
            StartPoint("time", NOW_MS - 3_600_000),
        ),
    ],
)
def test_a_range_is_read(text: str, first: StartPoint, last: StartPoint | None) -> None:
    assert parse_range(text, NOW) == (first, last)


def test_the_colons_of_times_do_not_part_a_range() -> None:
    first, last = parse_range("@2026-11-20T10:00:30+00:00:@2026-11-20T11:00:00+00:00", NOW)
    assert first == StartPoint("time", NOW_MS - 7_170_000)
    assert last == StartPoint("time", NOW_MS - 3_600_000)


def test_a_time_without_a_zone_is_local_time() -> None:
    local = datetime(2026, 11, 20, 10, 0).astimezone()
    assert parse_time("2026-11-20T10:00", NOW) == int(local.timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "before_s"), [("-90s", 90), ("@-15m", 900), ("-1h30m", 5400), ("-1w", 604_800)]
)
def test_a_time_may_be_so_long_ago(text: str, before_s: int) -> None:
    assert parse_time(text, NOW) == NOW_MS - before_s * 1000
    assert TIME.convert("@1795248083173", None, None) == 1795248083173


def test_every_option_that_takes_a_time_takes_it_in_the_same_way() -> None:
    named = {"--since", "--until", "--time", "--from-time", "--to-time"}
    times = {
        f"{path} {param.opts[0]}": param.type
        for path, one in leaves().items()
        for param in one.params
        if named & set(param.opts)
    }
    assert {"msg find --since", "store find --until", "store seek --time"} <= set(times)
    assert all(kind is TIME for kind in times.values()), times


@pytest.mark.parametrize(
    "text", ["x", "1.5", "@", "@x", "--5", "1:2:3", "@-5y", "start:x", "@-9999999999999d"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_range(text, NOW)
