"""Purges messages that are past the retention of their own topic.

RocketMQ has a retention for the whole log alone. A topic with `retention_hours` loses its older
messages as by `purge_topic`: nobody reads them any more, and their bytes leave with their segments.
The same look finds from where the topic still keeps messages: a segment that holds one of a topic
with a longer retention does not go by age.
"""

from collections import deque

from node.writer.removal.removals import Removals
from node.writer.store import WriterStore

LOOK_EVERY_S = 60.0
"""How long a message may outlive its topic's retention."""
_HOUR_MS = 3_600_000


class Expiry:
    """Asks for the purges, one topic at a time, between those that clients ask for."""

    def __init__(self, store: WriterStore, removals: Removals) -> None:
        self._store = store
        self._removals = removals
        self._look_at = 0.0
        self._table_version = -1
        self._topics: deque[str] = deque()
        """Topics that this round has not looked at yet."""

    def turn(self, now: float) -> None:
        """Goes on with a round, or begins one when it is due. `now`: of a monotonic clock."""
        if self._removals.is_active:
            return
        table = self._store.topics
        if not self._topics and (now >= self._look_at or table.version != self._table_version):
            self._look_at, self._table_version = now + LOOK_EVERY_S, table.version
            self._topics += [topic.name for topic in table.all() if topic.retention_hours]
        while self._topics:
            topic = table.find(self._topics.popleft())
            if topic is not None and topic.retention_hours:
                now_ms = int(self._store.retention.clock.now_s() * 1000)
                self._removals.expire(topic.name, now_ms - topic.retention_hours * _HOUR_MS)
                return
