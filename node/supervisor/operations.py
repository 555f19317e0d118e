"""Sums up, for `status`, the requests of a node and their latency, from its stats pages."""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

from node.runtime.stats import SUM, Histogram, SlotStats
from node.runtime.stats_series import DURATION, LOG_FLUSH, OK, REQUESTS
from protocol.status import Fact

FLUSH = "log_flush"
"""A row beside those of requests: flushes of the log."""
_NS_PER_MS = 1e6
NO_TIMES = Histogram((0,) * SUM, 0)


class OperationStatus(NamedTuple):
    """Requests of one kind, and their times."""

    op: Annotated[str, Fact("append, pull, …, log_flush")]
    requests: int
    failed: Annotated[int, Fact("answered otherwise than OK")]
    p50_ms: Annotated[float | None, Fact("of all of them, exact to a power of two")]
    p99_ms: float | None
    buckets: tuple[int, ...]
    """Bucket n counts times in [2**(n - 1), 2**n) ns, without zeros at the end. The difference of
    two rows is the time between them."""


def operations(slots: Iterable[SlotStats]) -> tuple[OperationStatus, ...]:
    """A row for each operation with a request, summed over all slots and restarts."""
    all_times: dict[str, Histogram] = {}
    requests: dict[str, int] = {}
    failed: dict[str, int] = {}
    for slot in slots:
        for one, times in slot.histograms.items():
            if one.family in (DURATION, LOG_FLUSH):
                op = dict(one.labels)["op"] if one.family is DURATION else FLUSH
                all_times[op] = all_times.get(op, NO_TIMES).plus(times)
                requests.setdefault(op, 0)
                requests[op] += times.total if op is FLUSH else 0
        for one, count in slot.values.items():
            if one.family is REQUESTS and count:
                labels = dict(one.labels)
                op = labels["op"]
                requests[op] = requests.get(op, 0) + count
                failed[op] = failed.get(op, 0) + (0 if labels["code"] == OK else count)
    return tuple(
        _row(op, count, failed.get(op, 0), all_times.get(op, NO_TIMES))
        for op, count in requests.items()
        if count
    )


def _row(op: str, requests: int, failed: int, times: Histogram) -> OperationStatus:
    buckets = list(times.buckets)
    while buckets and not buckets[-1]:
        buckets.pop()
    return OperationStatus(op, requests, failed, *quantiles(times), tuple(buckets))


def quantiles(times: Histogram) -> tuple[float | None, float | None]:
    """p50 and p99 in ms, exact to a power of two; None without times."""
    p50, p99 = (
        None if (value_ns := times.quantile(part)) is None else round(value_ns / _NS_PER_MS, 3)
        for part in (0.5, 0.99)
    )
    return p50, p99
