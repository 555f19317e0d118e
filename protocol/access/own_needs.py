"""What each operation of the wire needs: of the writer, the readers, and the supervisor.

An operation that is not here is for Super users alone: to serve one more, add what it needs to
OWN_NEEDS. Where records say what is needed, the handler asks `own_record_needs` of each of their
topics, before anything is answered or stored.
"""

from collections.abc import Callable, Mapping
from typing import Any

from protocol.access.decision import ALL_OF_KIND, Action, Kind
from protocol.access.needs import (
    ANYBODY,
    SUPER,
    Needs,
    joined,
    need,
    refuse_unclear,
    topic_needs,
)
from protocol.wire.frames import Header

Rule = Callable[[Header, str], Needs]
"""Takes the header of a request, and the name of the node's cluster."""
_SUB, _GET, _UPDATE = Action.SUB, Action.GET, Action.UPDATE


def own_needs(operation: str, header: Header, cluster: str) -> Needs:
    """What a request needs, as far as its header says so. `cluster`: the name of the node's own.

    Raises NotAllowed for a topic or group that is missing, or no text.
    """
    rule = OWN_NEEDS.get(operation)
    return SUPER if rule is None else rule(header, cluster)


def own_record_needs(operation: str, topic: str) -> Needs:
    """What a request needs of the topic of a record that it brings or that was found.

    `topic`: see `topic_that_counts`. An operation of which that is not decided needs Super.
    """
    action = RECORD_ACTIONS.get(operation)
    return SUPER if action is None else topic_needs(topic, action)


def _text(header: Header, name: str) -> str:
    value: Any = header.get(name)
    if not isinstance(value, str):
        refuse_unclear(f"field {name} is missing, or no text")
    return value


def _anybody(_: Header, __: str) -> Needs:
    return ANYBODY


def _topic(*actions: Action) -> Rule:
    return lambda header, _: topic_needs(_text(header, "topic"), *actions)


def _group(*actions: Action) -> Rule:
    return lambda header, _: (need(Kind.GROUP, _text(header, "group"), *actions),)


def _cursor(*actions: Action) -> Rule:
    """Of topic and group, as a consumer's offsets."""
    of_topic, of_group = _topic(*actions), _group(*actions)
    return lambda header, cluster: joined(of_topic(header, cluster), of_group(header, cluster))


def _get(header: Header, cluster: str) -> Needs:
    """By an offset or id: its record's topic counts alone."""
    return ANYBODY if header.get("topic") is None else _topic(_SUB)(header, cluster)


def _groups(header: Header, cluster: str) -> Needs:
    """Of one group, or a list that is cut."""
    return ANYBODY if header.get("group") is None else _group(_SUB, _GET)(header, cluster)


def _look(_: Header, cluster: str) -> Needs:
    return (need(Kind.CLUSTER, cluster, _GET),)


def _raw(header: Header, cluster: str) -> Needs:
    """Files hold messages of all topics."""
    return joined(_look(header, cluster), (need(Kind.TOPIC, ALL_OF_KIND, _SUB),))


OWN_NEEDS: Mapping[str, Rule] = {
    # The writer
    "send": _topic(Action.PUB),
    "append": _anybody,  # the topics of its records count
    "stage": _anybody,  # as of append
    "publish": _anybody,  # of the user who began the query
    "unstage": _anybody,  # likewise
    "create_topic": _topic(Action.CREATE),
    "delete_topic": _topic(Action.DELETE),
    "purge_topic": _topic(Action.DELETE),
    "delete_group": _group(Action.DELETE),
    "cursor_get": _cursor(_SUB, _GET),
    "cursor_commit": _cursor(_SUB, _UPDATE),
    "groups": _groups,
    # Readers
    "pull": _topic(_SUB),
    "get": _get,
    "find": _topic(_SUB),
    "offsets": _topic(_SUB),
    "seek": _topic(_SUB),
    "fetch": _raw,
    "layout": _raw,
    # Both, and the supervisor
    "topics": _anybody,
    "members": _anybody,
    "routes": _anybody,
    "health": _anybody,
    "ping": _anybody,
    "status": _look,
}
SUPER_ALONE = frozenset({"users", "change_users"})
"""Operations of which it was decided that no list gives a right to them."""
RECORD_ACTIONS: Mapping[str, Action] = {
    "send": Action.PUB,
    "append": Action.PUB,
    "stage": Action.PUB,
    "get": _SUB,
    "find": _SUB,
}
"""By operation: what its handler asks for when it knows the topic of a record."""
BOUND_TO_USER = frozenset({"stage", "publish", "unstage"})
"""They name a query. It belongs to the user who staged first: others are refused."""
LISTS = frozenset({"topics", "groups", "members"})
"""Anybody may ask. Without Cluster Get the answer names what the user may see (`sight_need`)."""
