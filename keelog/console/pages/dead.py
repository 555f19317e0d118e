"""Dead letters: messages that a group could not do with, as often as they were tried."""

from typing import Any

from keelog.cli.shapes import MESSAGE_COLUMNS
from keelog.console import reading
from keelog.console.ask import Answer, Ask, ShownPage, rows_file
from keelog.console.bodies.unpack import unpacked
from keelog.console.bodies.view import preview
from keelog.console.commands import command
from keelog.console.pages.topic import FILE_ROWS, FILE_ROWS_MAX, shape_of
from protocol.names import DLQ_PREFIX
from protocol.record.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC

TOPICS_MAX = 500
PAGE_ROWS = 50
REFRESH_S = 5.0
_PREVIEW_BYTES = 4_096
COLUMNS = ("group", "letters")


def dead(ask: Ask) -> Answer:
    """`/dead`: the groups that have some, the most first."""
    names = [
        one.topic
        for one in ask.node.topics()
        if one.topic.startswith(DLQ_PREFIX) and ask.viewer.may_ask("pull", topic=one.topic)
    ]
    spans = ask.node.spans(names[:TOPICS_MAX]) if names else {}
    counts = {topic: sum(one.messages for one in queues) for topic, queues in spans.items()}
    rows = [
        {"group": topic.removeprefix(DLQ_PREFIX), "letters": count}
        for topic, count in sorted(counts.items(), key=lambda one: -one[1])
        if count
    ]
    if ask.rows_as:
        return rows_file(ask, "dead", COLUMNS, rows)
    values = {"rows": rows, "left_out": max(0, len(names) - TOPICS_MAX)}
    return ShownPage("dead.html", values, REFRESH_S)


def letters(ask: Ask) -> Answer:
    """`/dead/{group}`: its letters, the newest first."""
    group = ask.path["group"]
    topic = f"{DLQ_PREFIX}{group}"
    client = ask.node.client
    queues = client.offsets(topic)
    begins = {one.queue_id: one.min_offset for one in queues}
    ends = {one.queue_id: one.max_offset for one in queues}
    if ask.rows_as:
        limit = ask.number("limit", FILE_ROWS, FILE_ROWS_MAX)
        found = reading.onwards(client, topic, begins, ends)
        shapes = (shape_of(row.message.record) for row in found if row.message is not None)
        return rows_file(
            ask,
            "dead",
            MESSAGE_COLUMNS,
            (one for _, one in zip(range(limit), shapes, strict=False)),
        )
    before = ask.text("before")
    given = reading.parse_places(before) if before else ends
    stops = {
        queue: min(max(given.get(queue, end), begins[queue]), end) for queue, end in ends.items()
    }
    rows = reading.backwards(client, topic, begins, stops)
    budget = reading.Budget(bytes_max=16 * 1024 * 1024)
    look = reading.read(rows, stops, PAGE_ROWS, lambda _: True, budget, 0)
    values = {
        "group": group,
        "topic": topic,
        "rows": [_letter(row) for row in look.rows],
        "found": look,
        "on": reading.places_text(look.places),
        "total": sum(one.max_offset - one.min_offset for one in queues),
        "command": command(ask, "dead", "ls", group),
    }
    return ShownPage("dead_letters.html", values, 0.0 if before else REFRESH_S)


def _letter(row: reading.Row) -> dict[str, Any]:
    found: dict[str, Any] = {"queue_id": row.queue_id, "queue_offset": row.queue_offset}
    if row.message is None:
        return {**found, "damage": row.damage}
    record = row.message.record
    body = unpacked(record.raw_body, record.head.sys_flag, _PREVIEW_BYTES)
    origin = record.properties.get(ORIGIN_MESSAGE_ID, "")
    return {
        **found,
        "damage": None,
        "stored_ms": record.head.store_timestamp,
        "was": record.properties.get(RETRY_TOPIC, ""),
        "origin": origin if len(origin) in (32, 56) and origin.isalnum() else "",
        "keys": record.keys,
        "tags": record.tags,
        "tried": record.head.reconsume_times,
        "body": preview(body),
    }
