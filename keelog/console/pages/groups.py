"""Consumer groups: who is late, who reads what now."""

from typing import Any

from keelog.console.ask import Answer, Ask, ShownPage, rows_file
from keelog.console.commands import command
from protocol.errors import NotFound

PAGE_ROWS = 50
COLUMNS = ("group", "topics", "members", "lag", "in_flight", "lag_ms")
QUEUE_COLUMNS = (
    "topic", "queue_id", "committed", "max", "lag", "in_flight", "lag_ms", "client_id", "pulled",
)  # fmt: skip
REFRESH_S = 5.0


def groups(ask: Ask) -> Answer:
    """`/groups?q=&after=`: the largest lag first, as far as the node's last look at it has them."""
    wanted = ask.text("q")
    rows = [row for row in _rows(ask) if wanted.lower() in row["group"].lower()]
    if ask.rows_as:
        return rows_file(ask, "groups", COLUMNS, rows)
    first = min(ask.number("from", 1, 10_000_000) - 1, max(0, len(rows) - 1))
    shown = rows[first : first + PAGE_ROWS]
    values = {
        "rows": shown,
        "wanted": wanted,
        "matching": len(rows),
        "first": first,
        "more": first + PAGE_ROWS + 1 if first + PAGE_ROWS < len(rows) else 0,
        "command": command(ask, "group", "ls", "--json"),
    }
    return ShownPage("groups.html", values, REFRESH_S)


def _rows(ask: Ask) -> list[dict[str, Any]]:
    """All groups that have a place or a member, and what is known of their lag."""
    found: dict[str, dict[str, Any]] = {}

    def row(name: str) -> dict[str, Any]:
        usual: dict[str, Any] = {"members": 0, "lag": 0, "in_flight": 0, "lag_ms": 0}
        return found.setdefault(name, {"group": name, "topics": 0, **usual, "is_known": False})

    for name, topics in ask.node.committed().items():
        row(name)["topics"] = len(topics)
    for name, here in ask.node.members().items():
        one = row(name)
        one["members"] = len(here.get("members", ()))
        one["topics"] = max(one["topics"], len(here.get("topics", ())))
    look = ask.state().look
    for lag in [] if look is None else look.status.raw.get("groups", {}).get("rows", ()):
        one = row(lag["group"])
        one["is_known"] = True
        one["lag"] += lag["lag"]
        one["in_flight"] += lag["in_flight"]
        one["lag_ms"] = max(one["lag_ms"] or 0, lag.get("lag_ms") or 0)
    seen = [one for one in found.values() if ask.viewer.sees_group(one["group"])]
    return sorted(seen, key=lambda one: (-one["lag"], one["group"]))


def group(ask: Ask) -> Answer:
    """`/groups/{group}`"""
    name = ask.path["group"]
    found = ask.node.client.groups(name)
    if not found:
        raise NotFound(f"group {name} does not exist", "a group is there once it has read")
    info = found[0]
    queues = [one for one in info.queues if ask.viewer.sees_topic(one.topic)]
    rows = [{name: getattr(one, name) for name in QUEUE_COLUMNS} for one in queues]
    if ask.rows_as:
        return rows_file(ask, "group", QUEUE_COLUMNS, rows)
    lag = sum(one.lag for one in queues)
    growth = ask.node.growths.note(f"of group {name}", lag, ask.now_ms / 1000)
    moved = [one.committed_ms for one in queues if one.committed_ms]
    values = {
        "group": name,
        "info": info,
        "rows": rows,
        "lag": lag,
        "growth": growth,
        "left_s": lag / -growth if growth is not None and growth < -0.05 else None,
        "moved_ms": max(moved, default=None),
        "is_cursor": not info.members and not any(one.pulled for one in queues),
        "topics": sorted({one.topic for one in queues}),
        "command": command(ask, "group", "describe", name),
    }
    return ShownPage("group.html", values, REFRESH_S)
