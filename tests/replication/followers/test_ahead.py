"""Who is remembered as ahead of the log, until when, and who is taken for somebody else."""

import pytest

from keelog.replication.followers.book import ENDS_MAX, HOSTS_MAX, TORN_BYTES_MAX, AheadBefore
from keelog.replication.followers.connection import FollowerGone, Gone

HOST, OTHER = "10.0.0.7", "10.0.0.8"
LATER = 10**9


def refuses(ahead: AheadBefore, report: int, host: str = HOST, sent: int = 0) -> bool:
    try:
        ahead.check(host, report, sent)
    except FollowerGone as gone:
        assert gone.kind is Gone.DIVERGED
        return True
    return False


@pytest.fixture
def ahead() -> AheadBefore:
    """A follower with 1500 was refused when the log ended at 1000, and again at 1400."""
    found = AheadBefore()
    found.note(HOST, 1500, 1000)
    found.note(HOST, 1500, 1400)
    return found


def test_the_same_report_stays_refused_whatever_its_host_was_sent(ahead: AheadBefore) -> None:
    ahead.served(HOST, LATER)
    assert refuses(ahead, 1500)
    assert refuses(ahead, 1500, sent=LATER)


def test_a_torn_end_does_not_make_it_another_follower(ahead: AheadBefore) -> None:
    assert refuses(ahead, 1499)
    assert refuses(ahead, 1001)


def test_who_reports_what_the_node_had_then_is_taken(ahead: AheadBefore) -> None:
    for report in (0, 1, 999, 1000):
        assert not refuses(ahead, report)


def test_another_follower_of_the_host_is_taken(ahead: AheadBefore) -> None:
    assert not refuses(ahead, 1501)
    assert not refuses(ahead, 1200, sent=1200)
    ahead.served(HOST, 1300)
    assert not refuses(ahead, 1300)
    assert refuses(ahead, 1301)
    assert not refuses(ahead, 1500, OTHER)


def test_nothing_above_a_cut_was_sent(ahead: AheadBefore) -> None:
    ahead.served(HOST, 1400)
    ahead.cut(1100)
    assert refuses(ahead, 1300)
    assert not refuses(ahead, 1100)


def test_a_report_far_away_refuses_no_others(ahead: AheadBefore) -> None:
    ahead.note(OTHER, 10**18, 1000)
    assert not refuses(ahead, LATER, OTHER)
    assert refuses(ahead, 10**18 - TORN_BYTES_MAX + 1, OTHER)


def test_what_is_remembered_is_bounded_and_the_first_reports_stay(ahead: AheadBefore) -> None:
    for report in range(3_000, 3_000 + 10 * ENDS_MAX):
        ahead.note(HOST, report, 1000)
    assert refuses(ahead, 1500)
    assert not refuses(ahead, 3_000 + 10 * ENDS_MAX - 1)
    for number in range(2 * HOSTS_MAX):
        ahead.served(f"host{number}", 1)
        if number < HOSTS_MAX:
            assert refuses(ahead, 1500), "it was heard a moment ago"
    assert not refuses(ahead, 1500)
