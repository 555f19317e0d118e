"""The change in a node between two looks at its status: rates, times, shares of processors."""

from collections.abc import Callable, Mapping
from typing import Any

from node.runtime.stats import SUM, Histogram
from node.supervisor.operations import quantiles

Fields = dict[str, Any]

SORTS: Mapping[str, Callable[[Fields], Any]] = {
    "process": lambda _row: 0,
    "cpu": lambda row: -(row["cpu_percent"] or 0.0),
    "memory": lambda row: -(row["rss_bytes"] or 0),
    "lag": lambda row: -(row["lag_bytes"] or 0),
    "restarts": lambda row: -row["restarts"],
}
"""Sort orders of the table of processes; the first keeps the node's own order."""
_TARGETS = {"queues": "queue", "index": "index"}


def figures(before: Fields, after: Fields, seconds: float, sort: str = "process") -> Fields:
    """The later status, with what came between both.

    `rates`: messages and bytes that were appended, a second; `operations` and `processes`: of
    the interval; `dispatch_lag_bytes`: of the slowest worker of each kind.
    """
    earlier = {(row["role"], row["index"]): row for row in before["processes"]}
    rows = [
        {**row, "cpu_percent": _share(earlier.get((row["role"], row["index"])), row, seconds)}
        for row in after["processes"]
    ]
    return {
        **after,
        "interval_s": round(seconds, 3),
        "rates": rates(before, after, seconds),
        "operations": _operations(before, after, seconds),
        "dispatch_lag_bytes": {
            name: max((row["lag_bytes"] or 0 for row in rows if row["role"] == role), default=0)
            for name, role in _TARGETS.items()
        },
        "processes": sorted(rows, key=SORTS[sort]),
    }


def rates(before: Fields, after: Fields, seconds: float) -> dict[str, float]:
    """Growth between two replies, a second; 0 when the node was restarted between them."""
    grown = {
        f"{name}_per_s": after["log"][field] - before["log"][field]
        for name, field in (("records", "records"), ("appended_bytes", "appended"))
    }
    return {name: round(max(0, count) / seconds, 1) for name, count in grown.items()}


def _operations(before: Fields, after: Fields, seconds: float) -> list[Fields]:
    """Requests a second and their times, of the interval alone. An older node reports none."""
    earlier = {row["op"]: row for row in before.get("operations", ())}
    rows = []
    for row in after.get("operations", ()):
        last = earlier.get(row["op"], {"requests": 0, "failed": 0, "buckets": []})
        times = _histogram(row["buckets"]).since(_histogram(last["buckets"]))
        # Counts begin anew where a page was replaced: that interval has no times.
        known = times if min(times.buckets) >= 0 else _histogram([])
        rows.append(
            {
                "op": row["op"],
                "per_s": round(max(0, row["requests"] - last["requests"]) / seconds, 1),
                "failed_per_s": round(max(0, row["failed"] - last["failed"]) / seconds, 1),
                **quantiles(known),
            }
        )
    return rows


def _histogram(buckets: list[int]) -> Histogram:
    return Histogram((*buckets, *(0,) * (SUM - len(buckets))), 0)


def _share(before: Fields | None, after: Fields, seconds: float) -> float | None:
    """Of one processor, in percent; null for a process that was not there all the time."""
    if before is None or before["pid"] != after["pid"]:
        return None
    if before["cpu_s"] is None or after["cpu_s"] is None:
        return None
    used_s = float(after["cpu_s"]) - float(before["cpu_s"])
    return round(max(0.0, used_s) / seconds * 100, 1)
