"""One message, at its place: what is stored, and what became of it in each group.

It is never asked for again by itself: a record does not change.
"""

import re
from collections.abc import Iterator
from typing import Any

from keelog.client.messages import Message
from keelog.console.ask import Answer, Ask, Download, Goto, ShownPage
from keelog.console.bodies.unpack import unpacked
from keelog.console.bodies.view import FORMS, shown
from keelog.console.commands import command
from protocol.errors import BadRequest, NotFound, StoreDamaged, UnknownTopic
from protocol.names import DLQ_PREFIX, RETRY_PREFIX
from protocol.record.codec import Record
from protocol.record.properties import REAL_QUEUE_ID, REAL_TOPIC, decode_raw_properties

GROUPS_MAX = 20
"""Groups of a topic whose retries and dead letters are looked up for one message."""
TRIES_MAX = 20
BODY_PAGES_MAX = 100_000
_CHUNK = 64 * 1024
_ID_CHARS = (32, 56)
"""Of an offset message id, with an IPv4 and an IPv6 address of the store."""
_SAFE = re.compile(r"[^A-Za-z0-9_-]")


def by_place(ask: Ask) -> Answer:
    """`/topics/{topic}/{queue}/{offset}`"""
    topic, queue, offset = ask.path["topic"], ask.path["queue"], ask.path["offset"]
    try:
        message = _at(ask, topic, queue, offset)
    except NotFound as error:
        return _gone(ask, topic, queue, offset, error)
    except StoreDamaged as error:
        return _damaged(ask, topic, queue, offset, error)
    record = message.record
    body = unpacked(record.raw_body, record.head.sys_flag)
    form = ask.text("as")
    values = {
        "topic": topic,
        "message": message,
        "record": record,
        "properties": _properties(record),
        "body": shown(body, form, ask.number("page", 1, BODY_PAGES_MAX)),
        "body_bytes": len(body.data),
        "form": form,
        "forms": FORMS,
        "groups": list(_groups(ask, message)),
        "real": _real_place(record),
        "born_before_ms": record.head.store_timestamp - record.head.born_timestamp,
        "command": command(
            ask, "msg", "get", "--topic", topic, "--queue", queue, "--offset", offset
        ),
    }
    return ShownPage("message.html", values)


def body(ask: Ask) -> Answer:
    """`…/body`: the body as its producer gave it, as a file."""
    topic, queue, offset = ask.path["topic"], ask.path["queue"], ask.path["offset"]
    data = _at(ask, topic, queue, offset).body
    name = f"{_SAFE.sub('_', topic)[:60]}-{queue}-{offset}.bin"
    chunks = (data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK))
    return Download(name, "application/octet-stream", chunks)


def by_id(ask: Ask) -> Answer:
    """`/m/{id}`: goes to the place of the message."""
    given = ask.path["id"].upper()
    if len(given) not in _ID_CHARS:
        raise NotFound(f"{given} is not a message id", "an id has 32 or 56 hexadecimal digits")
    return Goto(place_of(ask, ask.node.client.get(given)))


def by_log_offset(ask: Ask) -> Answer:
    """`/log/{offset}`: goes to the place of the record that begins there."""
    found = ask.node.client.get(physical_offset=ask.path["offset"])
    return Goto(place_of(ask, found))


def place_of(ask: Ask, message: Message) -> str:
    """The address of a message, for a viewer who may read it. Raises NotAllowed."""
    ask.viewer.check_record(message.record)
    return ask.links.message(message.topic, message.queue_id, message.queue_offset)


def _at(ask: Ask, topic: str, queue: int, offset: int) -> Message:
    if queue > 0xFFFF:
        raise BadRequest(f"queue {queue} cannot be", "queues have numbers up to 65,535")
    found = ask.node.client.get(topic=topic, queue_id=queue, queue_offset=offset)
    ask.viewer.check_record(found.record)
    return found


def _gone(ask: Ask, topic: str, queue: int, offset: int, error: NotFound) -> ShownPage:
    """The page of a message that is not there, with its neighbours that are."""
    ends = ask.node.client.offsets(topic, queue)
    low, high = (ends[0].min_offset, ends[0].max_offset) if ends else (0, 0)
    what = f"queue {queue} has no message {offset:,}"
    if offset < low:
        what = f"message {offset:,} was removed: the queue begins at {low:,}"
    elif high:
        what = f"message {offset:,} is not stored yet: the queue ends before {high:,}"
    near = [
        ask.links.message(topic, queue, one)
        for one in dict.fromkeys((low, high - 1))
        if low <= one < high
    ]
    values = {"topic": topic, "what": what, "cause": error.reason, "near": near}
    return ShownPage("message_gone.html", values, 0.0, 404)


def _damaged(ask: Ask, topic: str, queue: int, offset: int, error: StoreDamaged) -> ShownPage:
    look = ask.state().look
    store = "DIR" if look is None else look.status.store
    values = {
        "topic": topic,
        "what": f"message {queue}/{offset:,} is damaged",
        "cause": error.reason,
        "near": [ask.links.message(topic, queue, offset + 1)],
        "command": command(ask, "store", "verify", store, "--deep").partition(" --node")[0],
    }
    return ShownPage("message_gone.html", values, 0.0, 500)


def _properties(record: Record) -> list[tuple[str, str]]:
    """All of them by name, as text."""
    found = decode_raw_properties(record.properties_raw)
    pairs = [
        (name.decode("utf-8", "backslashreplace"), value.decode("utf-8", "backslashreplace"))
        for name, value in found.items()
    ]
    return sorted(pairs)


def _real_place(record: Record) -> dict[str, Any] | None:
    """Where a message that waits will be delivered."""
    topic = record.properties.get(REAL_TOPIC)
    if not topic or topic == record.topic:
        return None
    return {"topic": topic, "queue": record.properties.get(REAL_QUEUE_ID, "")}


def _groups(ask: Ask, message: Message) -> Iterator[dict[str, Any]]:
    """The fate of the message in each group that reads its topic."""
    topic, queue, offset = message.topic, message.queue_id, message.queue_offset
    found = [
        (group, topics[topic])
        for group, topics in sorted(ask.node.committed().items())
        if topic in topics and ask.viewer.sees_group(group)
    ]
    known = {one.topic for one in ask.node.topics()} if found else set()
    for group, places in found[:GROUPS_MAX]:
        place = places.get(queue)
        before = None if place is None else offset - place
        yield {
            "group": group,
            "is_passed": before is not None and before < 0,
            "before": before,
            "retries": _copies(ask, f"{RETRY_PREFIX}{group}", message, known),
            "dead": _copies(ask, f"{DLQ_PREFIX}{group}", message, known),
        }
    if len(found) > GROUPS_MAX:
        yield {"group": "", "more": len(found) - GROUPS_MAX}


def _copies(ask: Ask, topic: str, message: Message, known: set[str]) -> list[dict[str, Any]]:
    """Its copies in the retry or dead-letter topic of a group, the latest first."""
    if topic not in known or not message.unique_key or not ask.viewer.may_ask("find", topic=topic):
        return []
    try:
        found = ask.node.find_page(topic, message.unique_key, max_messages=TRIES_MAX)
    except UnknownTopic:
        return []
    return [
        {
            "href": ask.links.message(topic, one.queue_id, one.queue_offset),
            "tried": one.reconsume_times,
            "stored_ms": one.store_timestamp,
        }
        for one in found
    ]
