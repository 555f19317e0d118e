"""The list of topics: names and kinds of all, and figures of the rows that are shown."""

from typing import Any

from keelog.client.results import TopicInfo
from keelog.console.ask import Answer, Ask, ShownPage, rows_file
from keelog.console.commands import command
from protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_reserved_topic

PAGE_ROWS = 50
ROWS_FILE_MAX = 20_000
REFRESH_S = 5.0
NORMAL, RETRY, DEAD, SYSTEM = KINDS = ("normal", "retry", "dead", "system")
ALL = "all"
COLUMNS = ("topic", "kind", "queues", "messages", "per_s", "retention_hours", "perm")
_PERMS = {2: "w", 4: "r", 6: "rw", 0: "\N{EN DASH}"}


def kind_of(topic: str) -> str:
    """The purpose of a topic."""
    if topic.startswith(RETRY_PREFIX):
        return RETRY
    if topic.startswith(DLQ_PREFIX):
        return DEAD
    return SYSTEM if is_reserved_topic(topic) else NORMAL


def topics(ask: Ask) -> Answer:
    """`/topics?q=&kind=&after=`"""
    wanted, kind = ask.text("q"), ask.text("kind") or NORMAL
    seen = [one for one in ask.node.topics() if ask.viewer.sees_topic(one.topic)]
    of_kind = [one for one in seen if kind == ALL or kind_of(one.topic) == kind]
    matching = [one for one in of_kind if wanted.lower() in one.topic.lower()]
    if ask.rows_as:
        return rows_file(ask, "topics", COLUMNS, _rows(ask, matching[:ROWS_FILE_MAX]))
    after = ask.text("after")
    rest = [one for one in matching if one.topic > after]
    shown = rest[:PAGE_ROWS]
    late: dict[str, list[dict[str, Any]]] = {}
    look = ask.state().look
    if look is not None and ask.viewer.may_ask("status"):
        for row in look.status.raw.get("groups", {}).get("rows", ()):
            if row["lag"]:
                late.setdefault(row["topic"], []).append(row)
    values = {
        "rows": _rows(ask, shown),
        "late": late,
        "kind": kind,
        "kinds": (*KINDS, ALL),
        "wanted": wanted,
        "matching": len(matching),
        "of_kind": len(of_kind),
        "first": len(matching) - len(rest),
        "after": shown[-1].topic if len(rest) > len(shown) else "",
        "command": command(ask, "topic", "ls", "--json"),
    }
    return ShownPage("topics.html", values, REFRESH_S)


def _rows(ask: Ask, infos: list[TopicInfo]) -> list[dict[str, Any]]:
    spans = ask.node.spans([one.topic for one in infos]) if infos else {}
    rows = []
    for one in infos:
        queues = spans.get(one.topic, [])
        ends = sum(queue.max_offset for queue in queues)
        rows.append(
            {
                "topic": one.topic,
                "kind": kind_of(one.topic),
                "queues": max(one.queues, len(queues)),
                "messages": sum(queue.messages for queue in queues),
                "per_s": ask.node.growths.note(f"topic {one.topic}", ends, ask.now_ms / 1000),
                "retention_hours": one.retention_hours,
                "perm": _PERMS.get(one.perm, str(one.perm)),
            }
        )
    return rows
