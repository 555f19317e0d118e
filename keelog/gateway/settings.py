"""What holds for all requests of a gateway: how the node calls itself, and the settings of now.

A tool changes some settings while the gateway runs. All that act by one of those, and all that show
it, ask `LiveSettings` each time. The constants are those of replies to RocketMQ's clients.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from node.runtime.event_log import fields
from node.runtime.settings import Settings

log = logging.getLogger("keelog.gateway")

TBW102 = "TBW102"
"""The topic whose settings a topic gets that a send creates (RocketMQ: TopicValidator)."""
TBW102_QUEUES = 8
CLUSTER_QUEUES = 16
"""Of the topic with the name of the cluster, which new topics may follow too."""
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2
"""Of a topic that a producer in unit mode made, and of the retry topic of a group in unit mode
(TopicSysFlag)."""
MASTER = 0
"""The broker id of a master."""
REGION = "DefaultRegion"
SEND_EXT = {"MSG_REGION": REGION, "TRACE_ON": "true"}
"""In every answer to a send, also a refusal: the Java client reads MSG_REGION without a check."""
CREATES_TOPICS = "auto_create_topic_enable"
CHANGEABLE = frozenset(
    (CREATES_TOPICS, "auto_create_subscription_group", "store_reply_message_enable")
)
"""All of them are true or false."""


class BrokerName(NamedTuple):
    """A broker of a cluster. `address` is for clients; empty: the one that each reached."""

    cluster: str
    broker: str
    address: str = ""
    broker_id: int = MASTER
    announced: str = ""
    """The one address that name servers get."""
    ha: str = ""
    """Where followers connect, as name servers get it; empty: nobody may follow."""
    epoch: int = 0
    """Of the elected master: name servers let no master of an earlier one take its place."""

    @property
    def reply_topic(self) -> str:
        """The topic of replies to requests (MixAll#getReplyTopic)."""
        return f"{self.cluster}_REPLY_TOPIC"


class LiveSettings:
    """One for each gateway, in the thread of its loop. A change holds until the gateway ends, and
    is its own: the settings that the node starts with stay. `now` has all settings, also those that
    never change."""

    def __init__(self, settings: Settings) -> None:
        self.now = settings
        self._callbacks: dict[str, Callable[[], None]] = {}

    def when_changed(self, name: str, changed: Callable[[], None]) -> None:
        """Calls `changed` after each change of a setting, for a part that cannot ask each time."""
        self._callbacks[name] = changed

    def change(self, name: str, value: bool) -> None:
        values: dict[str, Any] = {name: value}
        self.now = replace(self.now, **values)
        log.warning("changed until the gateway ends", extra=fields(setting=name, value=value))
        if name in self._callbacks:
            self._callbacks[name]()
