"""The settings of a gateway as they are now: a tool changes some of them while it runs.

All that act by one of those, and all that show it, ask here each time.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from node.runtime.event_log import fields
from node.runtime.settings import Settings

log = logging.getLogger("keelog.gateway")

CREATES_TOPICS = "auto_create_topic_enable"
CHANGEABLE = frozenset(
    (CREATES_TOPICS, "auto_create_subscription_group", "store_reply_message_enable")
)
"""All of them are true or false."""


class LiveSettings:
    """One for each gateway, in the thread of its loop.

    A change holds until the gateway ends, and is its own: the settings that the node starts with
    stay. `now` has all settings, also those that never change.
    """

    def __init__(self, settings: Settings) -> None:
        self.now = settings
        self._callbacks: dict[str, Callable[[], None]] = {}

    def when_changed(self, name: str, changed: Callable[[], None]) -> None:
        """Calls `changed` after each change of a setting, for a part that cannot ask each time."""
        self._callbacks[name] = changed

    def change(self, name: str, value: bool) -> None:
        """Changes one of CHANGEABLE."""
        values: dict[str, Any] = {name: value}
        self.now = replace(self.now, **values)
        log.warning("changed until the gateway ends", extra=fields(setting=name, value=value))
        if name in self._callbacks:
            self._callbacks[name]()
