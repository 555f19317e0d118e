"""Those who fail to log in: who is late, and who is not."""

import pytest

from node.access.login_failures import ADDRESSES_MAX, WINDOW_S, AnswerPace, FailureCounts
from node.runtime.settings import Settings
from protocol.ids import parse_host

HERE, THERE = parse_host("10.0.0.1:1").ip, parse_host("10.0.0.2:1").ip
SETTINGS = Settings(auth_failures_max=10, auth_delay_ms=0)


def paces(failures: FailureCounts, ip: bytes, count: int, now: float = 0.0) -> list[AnswerPace]:
    return [failures.pace(ip, now) for _ in range(count)]


@pytest.mark.attack(22)
def test_the_first_failures_of_an_address_are_answered_at_once_then_late_then_not_at_all() -> None:
    found = paces(FailureCounts(SETTINGS), HERE, 52)
    assert found[:10] == [AnswerPace.AT_ONCE] * 10
    assert found[10:50] == [AnswerPace.LATE] * 40
    assert found[50:] == [AnswerPace.NEVER] * 2


@pytest.mark.attack(22)
def test_another_address_is_not_late_and_a_minute_later_neither_is_this_one() -> None:
    failures = FailureCounts(SETTINGS)
    paces(failures, HERE, 60)
    assert failures.pace(THERE, 0.0) is AnswerPace.AT_ONCE
    assert failures.pace(HERE, WINDOW_S) is AnswerPace.NEVER
    assert failures.pace(HERE, WINDOW_S + 1) is AnswerPace.AT_ONCE


def test_all_addresses_of_an_ipv6_network_count_as_one() -> None:
    failures = FailureCounts(SETTINGS)
    addresses = [parse_host(f"[2001:db8::{number:x}]:1").ip for number in range(11)]
    assert [failures.pace(ip, 0.0) for ip in addresses][-1] is AnswerPace.LATE
    assert failures.pace(parse_host("[2001:db8:0:1::1]:1").ip, 0.0) is AnswerPace.AT_ONCE


def test_addresses_beyond_the_limit_push_out_the_oldest() -> None:
    failures = FailureCounts(SETTINGS)
    paces(failures, HERE, 11)
    for number in range(ADDRESSES_MAX):
        failures.pace(number.to_bytes(4, "big"), 0.0)
    assert failures.pace(HERE, 0.0) is AnswerPace.AT_ONCE
