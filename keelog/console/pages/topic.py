"""One topic: its messages from a place on, its queues, and the groups that read it."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from keelog.cli.messages.selectors import StartPoint, parse_place
from keelog.cli.shapes import MESSAGE_COLUMNS, message_shape
from keelog.client.results import QueueOffsets
from keelog.console import reading
from keelog.console.ask import Answer, Ask, Download, ShownPage, rows_file
from keelog.console.bodies.unpack import UNPACKED_BYTES_MAX, unpacked
from keelog.console.bodies.view import preview
from keelog.console.commands import command
from protocol.errors import BodyUnreadable, CodecMissing, MqError
from protocol.record.codec import Record

PAGE_ROWS = 50
FILE_ROWS = 100_000
FILE_ROWS_MAX = 1_000_000
FILE_S_MAX = 600.0
REFRESH_S = 2.0
LISTING_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of messages behind one page without a search."""
PREVIEW_BYTES = 4_096


def messages(ask: Ask) -> Answer:
    """`/topics/{topic}?at=&queue=&tag=&q=&before=&after=`"""
    topic = ask.path["topic"]
    queues, why = _queues_of(ask, topic)
    chosen, hidden = _chosen(queues, ask.text("queue"))
    at, understood, mistake = _place(ask)
    if ask.rows_as:
        return _file(ask, topic, chosen, at)
    found, is_newest_first = _look(ask, topic, chosen, at)
    is_live = at.kind == "end" and not ask.text("before") and not ask.text("after")
    values = {
        **frame(ask, topic, queues, "messages"),
        "rows": [_shown(row) for row in found.rows],
        "found": found,
        "is_newest_first": is_newest_first,
        "is_search": bool(ask.text("q") or ask.text("tag")),
        "on": reading.places_text(found.places),
        "at": ask.text("at") or "end",
        "understood": understood,
        "mistake": mistake or why,
        "queue": ask.text("queue"),
        "tag": ask.text("tag"),
        "text": ask.text("q"),
        "hidden": hidden,
        "is_live": is_live,
        "command": command(ask, "consume", topic, "--from", "-7", "-e", "--merge"),
    }
    return ShownPage("topic.html", values, REFRESH_S if is_live and not mistake else 0.0)


def queues(ask: Ask) -> Answer:
    """`/topics/{topic}/queues`"""
    topic = ask.path["topic"]
    found = ask.node.client.offsets(topic, sizes=True)
    columns = (
        "queue_id",
        "min_offset",
        "max_offset",
        "messages",
        "bytes",
        "oldest_ms",
        "is_behind",
    )
    rows = [
        {name: getattr(one, name, one.max_offset - one.min_offset) for name in columns}
        for one in found
    ]
    if ask.rows_as:
        return rows_file(ask, "queues", columns, rows)
    values = {
        **frame(ask, topic, found, "queues"),
        "rows": rows,
        "command": command(ask, "topic", "describe", topic),
    }
    return ShownPage("topic_queues.html", values, 5.0)


def readers(ask: Ask) -> Answer:
    """`/topics/{topic}/groups`"""
    topic = ask.path["topic"]
    found = ask.node.client.offsets(topic)
    ends = {one.queue_id: one for one in found}
    rows: list[dict[str, Any]] = []
    for group, topics in ask.node.committed().items():
        if topic in topics and ask.viewer.sees_group(group):
            places = topics[topic]
            lag = sum(
                max(0, one.max_offset - max(places.get(number, one.min_offset), one.min_offset))
                for number, one in ends.items()
            )
            rows.append({"group": group, "queues": len(places), "lag": lag})
    rows.sort(key=lambda row: (-row["lag"], row["group"]))
    if ask.rows_as:
        return rows_file(ask, "groups", ("group", "queues", "lag"), rows)
    values = {**frame(ask, topic, found, "groups"), "rows": rows}
    return ShownPage("topic_groups.html", values, 5.0)


def frame(ask: Ask, topic: str, queues: list[QueueOffsets], tab: str) -> dict[str, Any]:
    """The values in the head of all tabs."""
    return {
        "topic": topic,
        "tab": tab,
        "total": sum(one.max_offset - one.min_offset for one in queues),
        "queue_ids": [one.queue_id for one in queues],
    }


def _queues_of(ask: Ask, topic: str) -> tuple[list[QueueOffsets], str]:
    found = ask.node.client.offsets(topic)
    late = [one.queue_id for one in found if one.is_behind]
    why = f"{len(late)} queues may have more: their worker is behind the log" if late else ""
    return found, why


def _chosen(queues: list[QueueOffsets], queue: str) -> tuple[list[QueueOffsets], int]:
    """The queues that are read, and how many are left out."""
    if queue.isascii() and queue.isdigit():
        return [one for one in queues if one.queue_id == int(queue[:9])], 0
    held = [one for one in queues if one.max_offset > one.min_offset]
    held.sort(key=lambda one: one.min_offset - one.max_offset)
    return held[: reading.QUEUES_MAX], max(0, len(held) - reading.QUEUES_MAX)


def _place(ask: Ask) -> tuple[StartPoint, int | None, str]:
    """Where the list begins, the time that was understood, and what is wrong with it."""
    text = ask.text("at")
    if not text:
        return StartPoint("end"), None, ""
    try:
        found = parse_place(text, datetime.now().astimezone())
    except click.ClickException as error:
        hint = getattr(error, "hint", "")
        return StartPoint("end"), None, f"{error.format_message()}; {hint}" if hint else str(error)
    return found, found.value if found.kind == "time" else None, ""


def _look(
    ask: Ask, topic: str, queues: list[QueueOffsets], at: StartPoint
) -> tuple[reading.Found, bool]:
    """The messages of one page, and whether the newest is the first."""
    client = ask.node.client
    begins = {one.queue_id: one.min_offset for one in queues}
    ends = {one.queue_id: one.max_offset for one in queues}
    want = ask.number("rows", PAGE_ROWS, reading.ROWS_MAX)
    matches = reading.text_matcher(ask.query.get("q", ""), ask.text("tag"))
    is_search = bool(ask.query.get("q") or ask.text("tag"))
    budget = reading.Budget() if is_search else reading.Budget(bytes_max=LISTING_BYTES_MAX)
    before, after = ask.text("before"), ask.text("after")
    if after or (not before and at.kind != "end"):
        starts = _held_to(begins, ends, reading.parse_places(after)) if after else None
        starts = starts or _starts(ask, topic, queues, at)
        rows = reading.onwards(client, topic, starts, ends)
        return reading.read(rows, starts, want, matches, budget, 1), False
    stops = _held_to(begins, ends, reading.parse_places(before)) if before else ends
    rows = reading.backwards(client, topic, begins, stops)
    return reading.read(rows, stops, want, matches, budget, 0), True


def _held_to(
    begins: Mapping[int, int], ends: Mapping[int, int], given: Mapping[int, int]
) -> dict[int, int]:
    """Places of an address, within what there is now."""
    return {
        queue: min(max(given[queue], begin), ends[queue])
        for queue, begin in begins.items()
        if queue in given
    }


def _starts(ask: Ask, topic: str, queues: list[QueueOffsets], at: StartPoint) -> dict[int, int]:
    """Where each queue begins for a place."""
    client, found = ask.node.client, {}
    for one in queues:
        low, high = one.min_offset, one.max_offset
        match at.kind:
            case "time":
                place = client.seek(topic, one.queue_id, at.value)
            case "offset":
                place = at.value
            case "from_start":
                place = low + at.value
            case "from_end":
                place = high - at.value
            case _:
                place = low
        found[one.queue_id] = min(max(place, low), high)
    return found


def _shown(row: reading.Row) -> dict[str, Any]:
    """A row of the list."""
    found: dict[str, Any] = {"queue_id": row.queue_id, "queue_offset": row.queue_offset}
    if row.message is None:
        return {**found, "damage": row.damage}
    record = row.message.record
    body = unpacked(record.raw_body, record.head.sys_flag, PREVIEW_BYTES)
    return {
        **found,
        "damage": None,
        "stored_ms": record.head.store_timestamp,
        "tags": record.tags,
        "keys": record.keys,
        "size": len(record.raw_body),
        "body": preview(body),
    }


def _file(ask: Ask, topic: str, queues: list[QueueOffsets], at: StartPoint) -> Download:
    """The same list as a file, from the place on, or the whole topic."""
    begins = {one.queue_id: one.min_offset for one in queues}
    starts = begins if at.kind == "end" else _starts(ask, topic, queues, at)
    ends = {one.queue_id: one.max_offset for one in queues}
    limit = ask.number("limit", FILE_ROWS, FILE_ROWS_MAX)
    matches = reading.text_matcher(ask.query.get("q", ""), ask.text("tag"))
    return rows_file(
        ask, "messages", MESSAGE_COLUMNS, _shapes(ask, topic, starts, ends, limit, matches)
    )


def _shapes(
    ask: Ask,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    limit: int,
    matches: reading.Matches,
) -> Iterator[dict[str, Any]]:
    """As `keelog consume --jsonl` prints messages. A damaged one is left out; the file ends where
    the look may cost no more."""
    budget = reading.Budget(FILE_ROWS_MAX * 10, 1 << 40, FILE_S_MAX)
    sent = 0
    for row in reading.onwards(ask.node.client, topic, starts, ends):
        budget.take(row)
        if row.message is not None and matches(row):
            yield shape_of(row.message.record)
            sent += 1
        if sent >= limit or budget.is_spent:
            return


def shape_of(record: Record) -> dict[str, Any]:
    """A message as JSON. A body that becomes too large, or cannot be unpacked, is as stored."""
    body = unpacked(record.raw_body, record.head.sys_flag, UNPACKED_BYTES_MAX)
    try:
        return message_shape(record, raw_body=bool(body.why or body.is_cut))
    except (BodyUnreadable, CodecMissing):
        return message_shape(record, raw_body=True)
    except MqError as error:
        return {"error": error.reason}
