"""What is counted of followers: the end that enough of them have, and how late they are."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from keelog.replication.followers.book import MOMENTS_MAX, FollowerBook
from keelog.replication.followers.connection import (
    FollowerConnection,
    FollowerGone,
    FollowerPace,
    Gone,
)

PACE = FollowerPace(5.0, 20.0)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


def connections(stack: ExitStack, *acknowledged: int | None) -> list[FollowerConnection]:
    found = []
    for number, end in enumerate(acknowledged):
        ours = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        one = FollowerConnection(ours, f"10.0.0.{number}:1", PACE, 0.0, 0)
        stack.callback(one.close)
        one.acknowledged = end
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("needed", "acknowledged", "expected"),
    [
        (1, (), 0),
        (1, (None,), 0),
        (1, (7, 9, 8), 9),
        (2, (7, 9, 8), 8),
        (3, (7, 9, 8), 7),
        (3, (7, 9, None), 0),
    ],
)
def test_as_many_followers_as_needed_must_have_it(
    stack: ExitStack, needed: int, acknowledged: tuple[int | None, ...], expected: int
) -> None:
    book = FollowerBook(needed, 100)
    assert book.acknowledged(connections(stack, *acknowledged)) == expected


def test_a_lag_is_as_old_as_the_first_byte_that_is_missing() -> None:
    book = FollowerBook(1, 100)
    for second in range(10):
        book.note_end(1_000 * (second + 1), float(second))
    assert book.lag_s(10_000, 10_000, 9.5) == 0.0
    assert book.lag_s(9_999, 10_000, 9.5) == pytest.approx(0.5)
    assert book.lag_s(3_000, 10_000, 9.5) == pytest.approx(6.5)
    assert book.lag_s(0, 10_000, 9.5) == pytest.approx(9.5)


def test_a_lag_grows_while_the_log_stands_still() -> None:
    book = FollowerBook(1, 100)
    book.note_end(10, 0.0)
    book.note_end(20, 0.4)  # within the same second: noted by a later look
    book.note_end(20, 1.1)
    book.note_end(20, 60.0)
    assert book.lag_s(10, 20, 61.1) == pytest.approx(60.0)


def test_the_moments_are_bounded() -> None:
    book = FollowerBook(1, 100)
    for second in range(2 * MOMENTS_MAX):
        book.note_end(second + 1, float(second))
    now = 2.0 * MOMENTS_MAX
    assert book.lag_s(0, int(now), now) == pytest.approx(MOMENTS_MAX)


def test_a_follower_that_tries_again_and_again_is_gone_since_its_first_try(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    book, end_of_log = FollowerBook(1, 100), 9
    clock = iter(range(1_000, 9_000, 1_000))
    monkeypatch.setattr("keelog.replication.followers.book.now_ms", lambda: next(clock))
    served, away = connections(stack, 5, None)
    book.state([served], end_of_log, 0.0)
    book.went(served, FollowerGone(Gone.SILENT, "silent"), 1.0)
    for second in range(3):
        away.address = f"10.0.0.1:{second}"
        book.went(away, FollowerGone(Gone.DIVERGED, f"try {second}"), float(second))
    found = book.state([], end_of_log, 9.0).ended
    assert [(end.address, end.at_ms) for end in found] == [
        ("10.0.0.1:2", 2_000),
        ("10.0.0.0:1", 1_000),
    ]
    assert found[0].reason == "try 2"
    # The one that was silent comes back; the other one does not.
    served.address = "10.0.0.0:77"
    assert [end.address for end in book.state([served], end_of_log, 9.0).ended] == ["10.0.0.1:2"]


def test_the_same_end_of_one_host_is_logged_once_a_minute(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    book = FollowerBook(1, 100)
    (one,) = connections(stack, 5)
    for second in range(0, 121, 5):
        book.went(one, FollowerGone(Gone.DIVERGED, "its log is another"), float(second))
    said = [record for record in caplog.records if "ended" in record.message]
    assert len(said) == 3
