"""What a request can need: rights to resources, a login alone, or to be a Super user.

`remoting_needs` and `own_needs` say which request needs what. Here are the rules that both share,
so that a topic is protected in the same way whichever protocol names it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from protocol.access.decision import Action, Kind, Need
from protocol.errors import NotAllowed
from protocol.names import (
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    UNDECIDED_TOPIC,
)

UNCLEAR = "parse authorization context error."
"""RocketMQ's text for a request without a mandatory field or body."""
OF_OTHERS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, UNDECIDED_TOPIC})
"""System topics in which messages of any topic wait."""
_ALL_ACTIONS = frozenset(Action)


@dataclass(frozen=True, slots=True)
class Super:
    """Super users alone may do it, whatever a list says; and the user who is named, if any."""

    user: str = ""
    """Nobody's name where it is empty."""


Needs = tuple[Need | Super, ...]
"""All of them must be met."""
ANYBODY: Needs = ()
"""Every user who has logged in."""
SUPER: Needs = (Super(),)


def need(kind: Kind, name: str, *actions: Action) -> Need:
    """The need of any of the actions."""
    return Need(kind, name, frozenset(actions))


def topic_needs(topic: str, *actions: Action) -> Needs:
    """What it takes to do any of the actions with a topic.

    A retry topic counts as the group whose retries it holds; to send there is a part of reading, so
    Pub becomes Sub. In OF_OTHERS are messages of topics that no list of the caller may name.
    """
    if topic.startswith(RETRY_PREFIX):
        of_group = (Action.SUB if one is Action.PUB else one for one in actions)
        return (need(Kind.GROUP, topic.removeprefix(RETRY_PREFIX), *of_group),)
    if topic in OF_OTHERS:
        return SUPER
    return (need(Kind.TOPIC, topic, *actions),)


def joined(*found: Needs) -> Needs:
    """All of several needs, each once."""
    return tuple(dict.fromkeys(one for needs in found for one in needs))


def needs_of_topics(topics: Iterable[str], *actions: Action) -> Needs:
    """As `topic_needs`, of several topics."""
    return joined(*(topic_needs(topic, *actions) for topic in dict.fromkeys(topics)))


def topic_that_counts(topic: str, properties: bytes) -> str:
    """The topic whose rights protect a stored record: of one that waits, where it will go.

    `properties`: those of the record, as stored. One that waits and names no topic keeps that in
    which it is, so that it needs Super.
    """
    if topic not in OF_OTHERS:
        return topic
    # Imported here: it brings numpy, which a supervisor does without.
    from protocol.record import properties as props

    real = props.decode_raw_properties(properties).get(props.REAL_TOPIC.encode(), b"")
    return real.decode("utf-8", "replace") or topic


def sight_need(kind: Kind, name: str) -> Need:
    """What it takes to see a topic or group in a list: any right to it."""
    return Need(kind, name, _ALL_ACTIONS)


def refuse_unclear(why: str) -> NoReturn:
    """Raises NotAllowed, with RocketMQ's text, for a request that does not say what it needs."""
    raise NotAllowed(UNCLEAR, f"the request cannot be judged: {why}")
