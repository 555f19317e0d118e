"""The search box: an id, a place, a topic or a key, tried in this order. Keys, not bodies."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from keelog.client.messages import Message
from keelog.console.addresses import has_address
from keelog.console.ask import Answer, Ask, Goto, ShownPage
from keelog.console.commands import command
from keelog.console.pages.message import place_of
from keelog.console.pages.topics import NORMAL, kind_of
from protocol.errors import BadRequest, MqError, NotFound, UnknownTopic

LOOK_UPS_MAX = 200
"""Topics whose index is asked for a key by one request."""
HITS_MAX = 50
TOPICS_SHOWN_MAX = 20
_ID = re.compile(r"[0-9A-Fa-f]{32}(?:[0-9A-Fa-f]{24})?")
_PLACE = re.compile(r"([%|a-zA-Z0-9_-]+)[ /:]+([0-9]{1,5})[/:-]([0-9]{1,18})")
_LOG = re.compile(r"@?([0-9]{1,18})")
_IN_TOPIC = re.compile(r"(?:^|\s)topic:([%|a-zA-Z0-9_-]+)")


@dataclass(slots=True)
class Trail:
    """The readings that were tried, and their outcome."""

    tried: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    hits: list[dict[str, Any]] = field(default_factory=list)
    looked: int = 0
    after: str = ""
    """The topic after which the look for a key goes on; empty where it is over."""
    goto: str = ""


def find(ask: Ask) -> Answer:
    """`/find?q=&after=`"""
    text = ask.text("q")
    named = _IN_TOPIC.search(text)
    topic = named[1] if named is not None else ask.text("topic")
    key = _IN_TOPIC.sub("", text).strip()
    trail = Trail()
    if text:
        _try_all(ask, key, topic, trail)
    if trail.goto:
        return Goto(trail.goto)
    values = {
        "text": text,
        "topic": topic,
        "key": key,
        "trail": trail,
        "command": command(ask, "msg", "find", "--topic", topic or "TOPIC", "--key", key or "KEY"),
    }
    return ShownPage("find.html", values)


def _try_all(ask: Ask, key: str, topic: str, trail: Trail) -> None:
    if not ask.text("after"):
        for attempt in (_by_id, _by_place, _by_log_offset):
            attempt(ask, key, trail)
            if trail.goto:
                return
        if not key and topic:
            trail.goto = ask.links.topic(topic)
            return
        _by_topic(ask, key, topic, trail)
        if trail.goto:
            return
    if key:
        _by_key(ask, key, topic, trail)


def _by_id(ask: Ask, text: str, trail: Trail) -> None:
    if _ID.fullmatch(text) is None:
        return
    trail.tried.append("a message id")
    try:
        trail.goto = place_of(ask, ask.node.client.get(text.upper()))
    except (NotFound, BadRequest) as error:
        trail.tried[-1] = f"a message id: {error.reason}"


def _by_place(ask: Ask, text: str, trail: Trail) -> None:
    match = _PLACE.fullmatch(text)
    if match is not None:
        trail.goto = ask.links.message(match[1], int(match[2]), int(match[3]))


def _by_log_offset(ask: Ask, text: str, trail: Trail) -> None:
    match = _LOG.fullmatch(text)
    if match is None or not text.startswith("@"):
        return
    trail.tried.append("a place in the log")
    try:
        found = ask.node.client.get(physical_offset=int(match[1]))
        trail.goto = place_of(ask, found)
    except (NotFound, MqError) as error:
        trail.tried[-1] = f"a place in the log: {error.reason}"


def _by_topic(ask: Ask, key: str, topic: str, trail: Trail) -> None:
    if topic:
        return
    trail.tried.append("a part of a topic's name")
    seen = ask.viewer.seen_topics(one.topic for one in ask.node.topics())
    if key in seen and has_address(key):
        trail.goto = ask.links.topic(key)
        return
    trail.topics = [one for one in seen if key.lower() in one.lower()][:TOPICS_SHOWN_MAX]


def _by_key(ask: Ask, key: str, topic: str, trail: Trail) -> None:
    """Asks the index of one topic, or of one after another up to a budget."""
    trail.tried.append(f"a key in topic {topic}" if topic else "a key in all topics")
    names = [topic] if topic else list(_topics_to_ask(ask))
    for name in names[:LOOK_UPS_MAX]:
        trail.looked += 1
        try:
            found = ask.node.find_page(name, key, max_messages=HITS_MAX)
        except UnknownTopic:
            continue
        trail.hits += [_hit(ask, one) for one in found if ask.viewer.may_read(one.record)]
        if len(trail.hits) >= HITS_MAX:
            trail.after = name if len(names) > trail.looked else ""
            break
    else:
        trail.after = names[LOOK_UPS_MAX - 1] if len(names) > LOOK_UPS_MAX else ""
    if len(trail.hits) == 1 and not trail.after and not trail.topics:
        trail.goto = trail.hits[0]["href"]


def _topics_to_ask(ask: Ask) -> Iterator[str]:
    """Topics of people first come first; those of the system hold no keys of theirs."""
    after = ask.text("after")
    for one in ask.node.topics():
        is_wanted = one.topic > after and kind_of(one.topic) == NORMAL
        if is_wanted and ask.viewer.may_ask("find", topic=one.topic):
            yield one.topic


def _hit(ask: Ask, message: Message) -> dict[str, Any]:
    return {
        "href": ask.links.message(message.topic, message.queue_id, message.queue_offset),
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "stored_ms": message.store_timestamp,
        "tags": message.tags,
        "keys": message.keys,
        "size": len(message.raw_body),
    }
