"""How a request of RocketMQ's clients is refused that does not prove who sent it: at once, late, or
by the end of its connection (`node.access.login_failures` counts)."""

import asyncio
from collections.abc import Callable

from keelog.gateway.connection import EndReason, RemotingConnection
from node.access.login_failures import AnswerPace, FailureCounts
from node.runtime.settings import Settings

LATE_MAX = 1_024
"""Refusals that wait to be sent: instead of a further one its connection ends."""


class LoginFailures(FailureCounts):
    """One for each gateway."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.late = 0
        """Refusals that wait."""

    def answer(
        self, connection: RemotingConnection, refuse: Callable[[], None], now: float
    ) -> None:
        """Counts a failure on a connection. `refuse` answers it: at once, late, or not at all."""
        pace = self.pace(connection.peer.ip, now)
        if pace is AnswerPace.AT_ONCE:
            refuse()
        elif pace is AnswerPace.LATE and self.late < LATE_MAX:
            self.late += 1
            asyncio.get_running_loop().call_later(self.delay_s, self._refuse, refuse)
        else:
            connection.end(EndReason.LOGIN, "too many requests failed to prove who sent them")

    def _refuse(self, refuse: Callable[[], None]) -> None:
        self.late -= 1
        refuse()
