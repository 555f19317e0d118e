"""Counts of the gateway for metrics: requests, refusals, connections, and what they hold."""

from pathlib import Path
from typing import TYPE_CHECKING

from keelog.gateway.connection import EndReason
from node.runtime import stats_series
from node.runtime.stats import StatsPage
from protocol.remoting.codes import ResponseCode

if TYPE_CHECKING:
    from keelog.gateway.service import GatewayService

_GOOD = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
        ResponseCode.QUERY_NOT_FOUND,
    }
)
"""Outcomes other than refusals: messages were stored, or there is nothing."""


class GatewayStats:
    """For the gateway's one thread."""

    def __init__(self, root: Path) -> None:
        self._page = StatsPage(root, stats_series.GATEWAY, 0)
        counts = self._page.counts
        self._numbers = counts.numbers
        self._requests = {
            int(code): counts.place(stats_series.GATEWAY_REQUESTS, request_code=code.name.lower())
            for code in stats_series.GATEWAY_CODES
        }
        self._other = counts.place(stats_series.GATEWAY_REQUESTS, request_code=stats_series.OTHER)
        self._refusals = {
            int(code): counts.place(stats_series.GATEWAY_REFUSALS, response_code=code.name.lower())
            for code in stats_series.GATEWAY_REFUSED
        }
        self._other_refusal = counts.place(
            stats_series.GATEWAY_REFUSALS, response_code=stats_series.OTHER
        )
        self._ends = {
            one: counts.place(stats_series.GATEWAY_ENDED, reason=one) for one in EndReason
        }
        self._checks = counts.place(stats_series.GATEWAY_CHECKS)
        self._gauges = [counts.place(family) for family in stats_series.GATEWAY_GAUGES]

    def answered(self, code: int, outcome: int) -> None:
        numbers = self._numbers
        place = self._requests.get(code)
        numbers[self._other if place is None else place] += 1
        if outcome and outcome not in _GOOD:
            numbers[self._refusals.get(outcome, self._other_refusal)] += 1

    def ended(self, reason: EndReason) -> None:
        self._numbers[self._ends[reason]] += 1

    def publish(self, service: "GatewayService") -> None:
        """Shows what was counted, and the gauges."""
        now = (
            len(service.connections),
            service.pulls.desk.holds.count,
            service.buffers.held,
            len(service.asked),
            len(service.members.producers_by_id),
            service.checks.open,
        )
        for place, value in zip(self._gauges, now, strict=True):
            self._numbers[place] = value
        self._numbers[self._checks] = service.checks.asked
        self._page.publish()

    def close(self, service: "GatewayService") -> None:
        """Shows the last counts; the file stays."""
        self.publish(service)
        self._page.close()
