"""Refusals of those who fail to log in: at once, late, or not at all."""

import asyncio
from dataclasses import dataclass, field

from keelog.gateway import login_failures
from keelog.gateway.connection import EndReason
from keelog.gateway.login_failures import LoginFailures
from node.runtime.settings import Settings
from protocol.ids import Host, parse_host

SETTINGS = Settings(auth_failures_max=10, auth_delay_ms=0)


@dataclass(eq=False)
class Peer:
    """In place of a connection."""

    peer: Host
    ends: list[EndReason] = field(default_factory=list)

    def end(self, reason: EndReason, _: str) -> None:
        self.ends.append(reason)


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
