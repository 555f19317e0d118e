"""Sums up, for `status`, the requests of a node and their latency, from its stats pages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from node.runtime.stats import SUM, Histogram, SlotStats
from node.runtime.stats_series import DURATION, LOG_FLUSH, OK, REQUESTS

FLUSH = "log_flush"
"""A row beside those of requests: flushes of the log."""
_NS_PER_MS = 1e6
NO_TIMES = Histogram((0,) * SUM, 0)


@dataclass(slots=True)
class _Operation:
    times: Histogram = NO_TIMES
    requests: int = 0
    failed: int = 0


def operations(slots: Iterable[SlotStats]) -> list[dict[str, Any]]:
    """A row for each operation with a request, summed over all slots and restarts.

    `buckets`: bucket n counts times in [2**(n - 1), 2**n) ns, without zeros at the end. The
    difference of two rows is the time between them.
    """
    found: dict[str, _Operation] = {}
    for slot in slots:
        for one, times in slot.histograms.items():
            if one.family is DURATION:
                operation = found.setdefault(dict(one.labels)["op"], _Operation())
                operation.times = operation.times.plus(times)
            elif one.family is LOG_FLUSH:
                operation = found.setdefault(FLUSH, _Operation())
                operation.times = operation.times.plus(times)
                operation.requests += times.total
        for one, count in slot.values.items():
            if one.family is REQUESTS and count:
                labels = dict(one.labels)
                operation = found.setdefault(labels["op"], _Operation())
                operation.requests += count
                operation.failed += 0 if labels["code"] == OK else count
    return [_row(op, operation) for op, operation in found.items() if operation.requests]


def _row(op: str, found: _Operation) -> dict[str, Any]:
    buckets = list(found.times.buckets)
    while buckets and not buckets[-1]:
        buckets.pop()
    return {
        "op": op,
        "requests": found.requests,
        "failed": found.failed,
        **quantiles(found.times),
        "buckets": buckets,
    }


def quantiles(times: Histogram) -> dict[str, float | None]:
    """p50 and p99 in ms, exact to a power of two; null without times."""
    return {name: _ms(times.quantile(part)) for name, part in (("p50_ms", 0.5), ("p99_ms", 0.99))}


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else round(value_ns / _NS_PER_MS, 3)
