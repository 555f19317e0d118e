"""The start page: how the node is, who is late, what it does. It asks for the status alone."""

from typing import Any

from keelog.console.ask import Answer, Ask, ShownPage
from keelog.console.node_link import Sample, whole
from keelog.console.render import spark
from protocol.errors import BusyError
from protocol.names import DLQ_PREFIX

ROWS = 12
LAG_S = 15.0
"""Over so long the growth of a lag is counted: the node looks at lags every five seconds."""
TOPICS_MAX = 100
"""Topics of dead letters that are counted."""
REFRESH_S = 2.0


def overview(ask: Ask) -> Answer:
    """`/`"""
    state = ask.state()
    sees_all = ask.viewer.may_ask("status")
    raw = whole({} if state.look is None else state.look.status.raw)
    shown = state.figures or {}
    groups = raw["groups"]
    values = {
        "sees_all": sees_all,
        "raw": raw,
        "is_known": state.look is not None,
        "is_empty": not raw["log"]["appended"],
        "lines": _lines(ask.node.points()) if sees_all else [],
        "late": _late(ask, groups.get("rows", ()), state.age_s < 5.0) if sees_all else [],
        "groups_count": groups.get("groups", 0),
        "operations": sorted(
            (one for one in shown.get("operations", ()) if one["per_s"] or one["p99_ms"]),
            key=lambda one: -one["per_s"],
        )[:ROWS],
        "processes": shown.get("processes") or raw.get("processes", []),
        "dead": _dead(ask) if sees_all and state.trouble is None else None,
    }
    return ShownPage("overview.html", values, REFRESH_S)


def _lines(points: list[Sample]) -> list[dict[str, Any]]:
    """A line and its latest figure for each of what moves."""
    if not points:
        return []
    last = points[-1]
    return [
        {"name": "Messages in", "kind": "count", "last": last.in_per_s, "unit": "/s",
         "points": spark([one.in_per_s for one in points])},
        {"name": "Send p99", "kind": "ms", "last": last.p99_ms, "unit": "",
         "points": spark([one.p99_ms for one in points])},
        {"name": "Not on disk yet", "kind": "size", "last": last.unflushed_bytes, "unit": "",
         "points": spark([one.unflushed_bytes for one in points])},
        {"name": "Disk used", "kind": "percent", "last": last.disk_ratio, "unit": "",
         "points": spark([one.disk_ratio for one in points])},
        {"name": "Processor", "kind": "count", "last": last.cpu_percent, "unit": " %",
         "points": spark([one.cpu_percent for one in points])},
    ]  # fmt: skip


def _late(ask: Ask, rows: list[dict[str, Any]], is_fresh: bool) -> list[dict[str, Any]]:
    """The groups that are late, the largest lag first, each with its growth."""
    found = []
    now = ask.now_ms / 1000
    for row in rows:
        if not row["lag"]:
            continue
        name = f"group {row['group']} {row['topic']}"
        growth = ask.node.growths.note(name, row["lag"], now, LAG_S) if is_fresh else None
        found.append({**row, "growth": growth})
    return found[: ROWS + 1]


def _dead(ask: Ask) -> dict[str, int] | None:
    """How many dead letters there are, of how many groups; None while no reader replies."""
    try:
        names = [one.topic for one in ask.node.topics() if one.topic.startswith(DLQ_PREFIX)]
        spans = ask.node.spans(names[:TOPICS_MAX]) if names else {}
    except BusyError:
        return None
    counts = [sum(one.messages for one in queues) for queues in spans.values()]
    return {"letters": sum(counts), "groups": sum(1 for one in counts if one)}
