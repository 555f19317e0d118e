"""Places and times as people write them."""

from datetime import UTC, datetime

import click
import pytest

from keelog.cli.messages.selectors import (
    StartPoint,
    parse_place,
    parse_range,
    parse_time,
    time,
    time_ahead,
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
        ("-15m", StartPoint("time", NOW_MS - 15 * 60_000)),
        ("15m", StartPoint("time", NOW_MS - 15 * 60_000)),
        ("+15m", StartPoint("time", NOW_MS + 15 * 60_000)),
        ("2026-11-20T10:00+00:00", StartPoint("time", NOW_MS - 2 * 3_600_000)),
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
        ("-2h:-10", StartPoint("time", NOW_MS - 7_200_000), StartPoint("from_end", 10)),
    ],
)
def test_a_range_is_read(text: str, first: StartPoint, last: StartPoint | None) -> None:
    assert parse_range(text, NOW) == (first, last)


@pytest.mark.parametrize("at", ["", "@"])
def test_the_colons_of_times_do_not_part_a_range(at: str) -> None:
    text = f"{at}2026-11-20T10:00:30+00:00:{at}2026-11-20T11:00:00+00:00"
    first, last = parse_range(text, NOW)
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
    assert time("@1795248083173") == 1795248083173


def test_every_option_that_takes_a_time_takes_it_in_the_same_way() -> None:
    spans = {"produce --delay"}  # and those of bench
    times = {
        f"{path} {param.opts[0]}": param.type
        for path, one in leaves().items()
        for param in one.params
        if param.metavar == "TIME" and not path.startswith("bench ")
    }
    expected = {
        "msg find --since",
        "store find --until",
        "store seek --time",
        "store export --from",
    }
    assert expected | spans | {"produce --deliver-at"} <= set(times)
    wrong = {
        name
        for name, kind in times.items()
        if getattr(kind, "func", None) not in (time, time_ahead)
    }
    assert wrong == spans


def test_a_time_to_come_needs_no_sign_where_only_that_is_meant() -> None:
    before = datetime.now(UTC).timestamp() * 1000
    found = time_ahead("1h")
    assert before + 3_590_000 < found < before + 3_700_000
    assert time("1h") < before


@pytest.mark.parametrize(
    "text", ["x", "1.5", "@", "@x", "--5", "1:2:3", "@-5y", "start:x", "@-9999999999999d"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_range(text, NOW)
