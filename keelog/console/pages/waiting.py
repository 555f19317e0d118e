"""Waiting messages: timer messages, messages of delay levels, transactions that are open."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from keelog.client.messages import Message
from keelog.console import reading
from keelog.console.ask import Answer, Ask, ShownPage, rows_file
from keelog.console.node_link import QueueEnds
from node.runtime.settings import Settings
from protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from protocol.record import properties as props
from protocol.record.waiting import due_ms

LOOKED_MAX = 500
"""Messages that are looked at behind each list, the newest first."""
ROWS_MAX = 50
REFRESH_S = 5.0
COLUMNS = ("due_ms", "topic", "queue", "keys", "size", "href")
DueOf = Callable[[Message], int | None]


class Waits(NamedTuple):
    """One list: those that are due next, of the messages that were looked at."""

    rows: list[dict[str, Any]]
    looked: int
    is_whole: bool
    """Whether every message was looked at."""


def waiting(ask: Ask) -> Answer:
    """`/waiting`"""
    spans = ask.node.spans([TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC])
    settings = Settings()
    levels = settings.delay_levels_ms
    timers = _waits(ask, TIMER_TOPIC, spans[TIMER_TOPIC], _timer_due)
    delayed = _waits(
        ask, SCHEDULE_TOPIC, spans[SCHEDULE_TOPIC], lambda one: _level_due(one, levels)
    )
    halves = _waits(ask, HALF_TOPIC, spans[HALF_TOPIC], lambda one: one.store_timestamp, False)
    if ask.rows_as:
        return rows_file(ask, "waiting", COLUMNS, [*timers.rows, *delayed.rows])
    look = ask.state().look
    raw = {} if look is None else look.status.raw
    processes = raw.get("processes", ())
    values = {
        "timers": timers,
        "delayed": delayed,
        "halves": halves,
        "pending": raw.get("timers", {}),
        "open_count": raw.get("transactions", {}).get("open", 0),
        "has_gateway": any(one["role"] == "gateway" for one in processes),
    }
    return ShownPage("waiting.html", values, REFRESH_S)


def _waits(
    ask: Ask, topic: str, queues: list[QueueEnds], due_of: DueOf, is_ahead: bool = True
) -> Waits:
    """The messages of a system topic that are due after now, the next one first; or those of the
    last day, the newest first."""
    begins = {one.queue_id: one.min_offset for one in queues}
    ends = {one.queue_id: one.max_offset for one in queues}
    rows, looked = [], 0
    found = reading.backwards(ask.node.client, topic, begins, ends)
    for row in _some(found):
        looked += 1
        message = row.message
        if message is None or not ask.viewer.may_read(message.record):
            continue
        due = due_of(message)
        if due is not None and (due > ask.now_ms or not is_ahead):
            rows.append(_row(ask, message, due))
    rows.sort(key=lambda one: one["due_ms"], reverse=not is_ahead)
    total = sum(one.messages for one in queues)
    return Waits(rows[:ROWS_MAX], looked, looked >= total)


def _some(rows: Iterator[reading.Row]) -> Iterator[reading.Row]:
    budget = reading.Budget(LOOKED_MAX, 16 * 1024 * 1024, 2.0)
    for row in rows:
        budget.take(row)
        yield row
        if budget.is_spent:
            return


def _row(ask: Ask, message: Message, due: int) -> dict[str, Any]:
    record = message.record
    return {
        "due_ms": due,
        "stored_ms": message.store_timestamp,
        "topic": record.properties.get(props.REAL_TOPIC, message.topic),
        "queue": record.properties.get(props.REAL_QUEUE_ID, ""),
        "keys": message.keys,
        "size": len(message.raw_body),
        "group": record.properties.get("PGROUP", ""),
        "href": ask.links.message(message.topic, message.queue_id, message.queue_offset),
    }


def _timer_due(message: Message) -> int | None:
    found = props.decode_raw_properties(message.record.properties_raw)
    out = found.get(props.TIMER_OUT_MS.encode(), b"")
    if props.TIMER_DELETE_KEY.encode() in found or not out.isdigit() or len(out) > 18:
        return None
    return due_ms(found, int(out), message.store_timestamp)


def _level_due(message: Message, levels: tuple[int, ...]) -> int | None:
    if message.queue_id >= len(levels):
        return None
    return message.store_timestamp + levels[message.queue_id]
