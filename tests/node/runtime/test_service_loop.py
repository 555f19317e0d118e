"""When is something committed or flushed: cases, and RocketMQ's loops as plain models."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.runtime.service_loop import (
    PAGE_BYTES,
    LoopPace,
    ServiceLoop,
    commit_pace,
    due,
    flush_pace,
    index_pace,
    queue_pace,
)
from node.runtime.settings import Settings

SEGMENT_BYTES = 1 << 20
P = PAGE_BYTES


@pytest.mark.parametrize(
    ("done", "end", "least_pages", "expected"),
    [
        (0, 0, 0, False),  # nothing new is never worth it
        (P, P, 4, False),
        (0, 1, 0, True),  # thorough: a single byte
        (0, 4 * P - 1, 4, False),
        (0, 4 * P, 4, True),
        (P - 1, 5 * P - 1, 4, True),  # page numbers count, as in isAbleToFlush, not bytes
        (1, 4 * P + 1, 4, True),
        (P - 1, 4 * P - 1, 4, False),
        (SEGMENT_BYTES - 1, SEGMENT_BYTES, 4, True),  # isFull
        (SEGMENT_BYTES, SEGMENT_BYTES + 1, 4, False),
    ],
)
def test_least_pages_decide_and_a_full_file_is_always_worth_it(
    done: int, end: int, least_pages: int, expected: bool
) -> None:
    assert due(done, end, least_pages, SEGMENT_BYTES) is expected


def test_the_defaults_are_rocketmqs() -> None:
    assert flush_pace(Settings()) == LoopPace(0.5, 4, 10.0, wakes=False)
    assert commit_pace(Settings()) == LoopPace(0.2, 4, 0.2, wakes=True)
    assert queue_pace(Settings()) == LoopPace(1.0, 2, 60.0, wakes=False)
    assert index_pace(Settings()) == LoopPace(1.0, 0, 0.0, wakes=False)


def test_timed_sleeps_the_interval_out_and_untimed_is_woken() -> None:
    timed = ServiceLoop(flush_pace(Settings()), 100.0, 100.0)
    woken = ServiceLoop(flush_pace(Settings(flush_commit_log_timed=False)), 100.0, 100.0)
    for loop in (timed, woken):
        assert loop.turn(100.1) is None
        loop.wake()
    assert timed.turn(100.1) is None
    assert woken.turn(100.1) == 4
    assert woken.turn(100.2) is None, "one wake-up, one turn"
    assert timed.turn(100.5) == 4
    assert woken.turn(100.6) == 4


def test_a_wake_up_while_nobody_looks_is_remembered() -> None:
    loop = ServiceLoop(commit_pace(Settings()), 100.0, 100.0)
    loop.wake()
    loop.wake()
    assert loop.turn(100.0) == 4
    assert loop.turn(100.0) is None


def test_each_thorough_interval_one_turn_takes_everything() -> None:
    loop = ServiceLoop(flush_pace(Settings()), 100.0, 100.0)
    least = {now / 2: loop.turn(now / 2) for now in range(201, 262)}
    assert [at for at, pages in least.items() if pages == 0] == [110.0, 120.0, 130.0]
    assert {pages for at, pages in least.items() if at % 10} == {4}


# -- against RocketMQ's loops, written down plainly ------------------------------------------------

Append = tuple[int, int]
"""A time in ms, and bytes."""

appends = st.lists(st.tuples(st.integers(0, 40_000), st.integers(1, 6 * P)), max_size=60).map(
    sorted
)


def appended_at(events: list[Append], now: int) -> int:
    return sum(size for at, size in events if at <= now)


def flush_service(events: list[Append], settings: Settings, until: int) -> list[Append]:
    """FlushRealTimeService, timed: (time, flushed end).

    Theirs judges whether a turn is thorough before it sleeps, ours when it acts, as
    FlushConsumeQueueService does: the bound, thorough interval and one interval, is the same.
    """
    flushes: list[Append] = []
    now, flushed, last = 0, 0, 0
    while now < until:
        now += settings.flush_interval_commit_log
        least = settings.flush_commit_log_least_pages
        if now >= last + settings.flush_commit_log_thorough_interval:
            last, least = now, 0
        end = appended_at(events, now)
        if end > flushed and (least == 0 or end // P - flushed // P >= least):
            flushed = end
            flushes.append((now, end))
    return flushes


def ours(events: list[Append], pace: LoopPace, until: int, step: int) -> list[Append]:
    loop = ServiceLoop(pace, 0.0, 0.0)
    flushes: list[Append] = []
    flushed = 0
    for now in range(0, until + 1, step):
        least = loop.turn(now / 1000)
        end = appended_at(events, now)
        if least is not None and due(flushed, end, least, 1 << 40):
            flushed = end
            flushes.append((now, end))
    return flushes


def done_by(flushes: list[Append], now: int) -> int:
    return max((end for at, end in flushes if at <= now), default=0)


@given(appends)
def test_flushes_are_those_of_flush_real_time_service(events: list[Append]) -> None:
    mine = ours(events, flush_pace(Settings()), 60_000, step=50)
    assert mine == flush_service(events, Settings(), 60_000)


@given(appends, st.sampled_from([10, 50]))
def test_nothing_waits_longer_than_its_bound(events: list[Append], step: int) -> None:
    flushes = ours(events, flush_pace(Settings()), 60_000, step)
    commits = ours(events, commit_pace(Settings()), 60_000, step)
    for at, _ in events:
        end = appended_at(events, at)
        assert done_by(flushes, at + 10_500 + step) >= end
        assert done_by(commits, at + 400 + step) >= end


def commit_real_time_service(events: list[Append], settings: Settings) -> list[Append]:
    """CommitRealTimeService with wake-ups at every append: (time, committed end)."""
    commits: list[Append] = []
    now, committed, last = 0, 0, 0
    while now <= 4_000:
        least = settings.commit_commit_log_least_pages
        if now >= last + settings.commit_commit_log_thorough_interval:
            last, least = now, 0
        end = appended_at(events, now)
        if end > committed and (least == 0 or end // P - committed // P >= least):
            committed, last = end, now
            commits.append((now, end))
        woken = [at for at, _ in events if now < at < now + settings.commit_interval_commit_log]
        now = min(woken, default=now + settings.commit_interval_commit_log)
    return commits


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 6 * P)), max_size=60).map(sorted))
def test_commits_are_those_of_commit_real_time_service(events: list[Append]) -> None:
    settings = Settings()
    pace = LoopPace(200, 4, 200, wakes=True)  # a clock in ms, which floats hold exactly
    loop = ServiceLoop(pace, -1000, 0)
    mine: list[Append] = []
    committed = 0
    arrivals = {at for at, _ in events}
    for now in range(4_001):
        if now in arrivals:
            loop.wake()
        least = loop.turn(now)
        if least is None:
            continue
        end = appended_at(events, now)
        if due(committed, end, least, 1 << 40):
            committed, loop.thorough_at = end, now
            mine.append((now, end))
    assert mine == commit_real_time_service(events, settings)
