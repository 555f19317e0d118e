"""Those who fail to log in: who is late, and who is not."""

import asyncio
from dataclasses import dataclass, field

from keelog.gateway import login_failures
from keelog.gateway.connection import EndReason
from keelog.gateway.login_failures import ADDRESSES_MAX, WINDOW_S, AnswerPace, LoginFailures
from node.runtime.settings import Settings
from protocol.ids import Host, parse_host

HERE, THERE = parse_host("10.0.0.1:1").ip, parse_host("10.0.0.2:1").ip
SETTINGS = Settings(auth_failures_max=10, auth_delay_ms=0)


@dataclass(eq=False)
class Peer:
    """In place of a connection."""

    peer: Host
    ends: list[EndReason] = field(default_factory=list)

    def end(self, reason: EndReason, _: str) -> None:
        self.ends.append(reason)


def paces(failures: LoginFailures, ip: bytes, count: int, now: float = 0.0) -> list[AnswerPace]:
    return [failures.pace(ip, now) for _ in range(count)]


def test_the_first_failures_of_an_address_are_answered_at_once_then_late_then_not_at_all() -> None:
    found = paces(LoginFailures(SETTINGS), HERE, 52)
    assert found[:10] == [AnswerPace.AT_ONCE] * 10
    assert found[10:50] == [AnswerPace.LATE] * 40
    assert found[50:] == [AnswerPace.NEVER] * 2


def test_another_address_is_not_late_and_a_minute_later_neither_is_this_one() -> None:
    failures = LoginFailures(SETTINGS)
    paces(failures, HERE, 60)
    assert failures.pace(THERE, 0.0) is AnswerPace.AT_ONCE
    assert failures.pace(HERE, WINDOW_S) is AnswerPace.NEVER
    assert failures.pace(HERE, WINDOW_S + 1) is AnswerPace.AT_ONCE


def test_all_addresses_of_an_ipv6_network_count_as_one() -> None:
    failures = LoginFailures(SETTINGS)
    addresses = [parse_host(f"[2001:db8::{number:x}]:1").ip for number in range(11)]
    assert [failures.pace(ip, 0.0) for ip in addresses][-1] is AnswerPace.LATE
    assert failures.pace(parse_host("[2001:db8:0:1::1]:1").ip, 0.0) is AnswerPace.AT_ONCE


def test_addresses_beyond_the_limit_push_out_the_oldest() -> None:
    failures = LoginFailures(SETTINGS)
    paces(failures, HERE, 11)
    for number in range(ADDRESSES_MAX):
        failures.pace(number.to_bytes(4, "big"), 0.0)
    assert failures.pace(HERE, 0.0) is AnswerPace.AT_ONCE


def test_a_late_refusal_is_sent_in_the_end_and_beyond_the_limit_the_connection_ends(
    monkeypatch: object,
) -> None:
    said: list[int] = []

    async def play() -> tuple[list[int], Peer]:
        failures, peer = LoginFailures(SETTINGS), Peer(parse_host("10.0.0.1:1"))
        for number in range(12):
            failures.answer(peer, lambda number=number: said.append(number), 0.0)  # type: ignore[arg-type, misc]
        at_once = list(said)
        assert failures.late == 2
        while failures.late:
            await asyncio.sleep(0)
        failures.late = login_failures.LATE_MAX
        failures.answer(peer, lambda: said.append(99), 0.0)  # type: ignore[arg-type]
        return at_once, peer

    at_once, peer = asyncio.run(play())
    assert at_once == list(range(10))
    assert said == list(range(12))
    assert peer.ends == [EndReason.LOGIN]
