"""Every address of the console: its page, and what it needs of whoever asks for it.

A page without a need does not exist: `PageRoute` has no default for it. A need that only the page
finds out, as the topic of a message that an id names, it checks itself by `Viewer.check_record`.
"""

from collections.abc import Callable
from typing import NamedTuple

from starlette.convertors import StringConvertor, register_url_convertor

from keelog.console.addresses import NAME_PATTERN, name_of_path
from keelog.console.ask import Ask, PageFunction
from keelog.console.pages import (
    dead,
    find,
    groups,
    help_page,
    message,
    node_page,
    overview,
    store,
    topic,
    topics,
    waiting,
)
from protocol.access.needs import ANYBODY, Needs
from protocol.access.own_needs import own_needs
from protocol.names import DLQ_PREFIX

UNLOCK = ("/unlock", "/lock")
"""Forms that begin and end a session."""


class NameConvertor(StringConvertor):
    """A topic or group, as it is called."""

    regex = NAME_PATTERN

    def convert(self, value: str) -> str:
        """The name that a path has."""
        return name_of_path(value)


class NumberConvertor(StringConvertor):
    """A whole number that fits into 64 bits."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:  # type: ignore[override]
        """The number."""
        return int(value)


class IdConvertor(StringConvertor):
    """The id of a message."""

    regex = "[0-9A-Fa-f]{32,56}"


register_url_convertor("name", NameConvertor())
register_url_convertor("number", NumberConvertor())
register_url_convertor("id", IdConvertor())


def anybody(_: Ask) -> Needs:
    """Everybody who has come in."""
    return ANYBODY


def look(ask: Ask) -> Needs:
    """The rights it takes to see how the node is."""
    return own_needs("status", {}, ask.viewer.door.cluster)


def of_topic(ask: Ask) -> Needs:
    """The rights it takes to read the topic that the address names."""
    return own_needs("pull", {"topic": ask.path["topic"]}, ask.viewer.door.cluster)


def of_group(ask: Ask) -> Needs:
    """The rights it takes to see the group that the address names."""
    return own_needs("groups", {"group": ask.path["group"]}, ask.viewer.door.cluster)


def of_dead(ask: Ask) -> Needs:
    """The rights it takes to read the dead letters of the group that the address names."""
    dead_topic = f"{DLQ_PREFIX}{ask.path['group']}"
    return own_needs("pull", {"topic": dead_topic}, ask.viewer.door.cluster)


class PageRoute(NamedTuple):
    """One address, and whose it is."""

    path: str
    function: PageFunction
    needs: Callable[[Ask], Needs]
    is_open: bool = False
    """Whether it is shown before anybody has said who it is."""
    takes_post: bool = False


ROUTES = (
    PageRoute("/", overview.overview, anybody),
    PageRoute("/topics", topics.topics, anybody),
    PageRoute("/topics/{topic:name}", topic.messages, of_topic),
    PageRoute("/topics/{topic:name}/queues", topic.queues, of_topic),
    PageRoute("/topics/{topic:name}/groups", topic.readers, of_topic),
    PageRoute("/topics/{topic:name}/{queue:number}/{offset:number}", message.by_place, of_topic),
    PageRoute("/topics/{topic:name}/{queue:number}/{offset:number}/body", message.body, of_topic),
    PageRoute("/m/{id:id}", message.by_id, anybody),
    PageRoute("/log/{offset:number}", message.by_log_offset, anybody),
    PageRoute("/find", find.find, anybody),
    PageRoute("/groups", groups.groups, anybody),
    PageRoute("/groups/{group:name}", groups.group, of_group),
    PageRoute("/dead", dead.dead, anybody),
    PageRoute("/dead/{group:name}", dead.letters, of_dead),
    PageRoute("/waiting", waiting.waiting, anybody),
    PageRoute("/store", store.store, look),
    PageRoute("/node", node_page.node, look),
    PageRoute("/node/log", node_page.log_tail, look),
    PageRoute("/help", help_page.help_page, anybody),
    PageRoute("/unlock", help_page.unlock, anybody, is_open=True, takes_post=True),
    PageRoute("/lock", help_page.unlock, anybody, is_open=True, takes_post=True),
)
