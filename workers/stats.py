"""What a worker counts: turns that found something, the records in them, and syncs; times in ns."""

import time
from pathlib import Path
from typing import Protocol, runtime_checkable

from node.runtime.stats import StatsPage, TopicCounts
from node.runtime.stats_series import DISPATCH, DISPATCH_FLUSH, DISPATCHED, INDEX

TOPICS_EVERY_S = 1.0
TOPICS_TIME_SHARE = 0.001
"""At most this part of a worker's time goes into adding up the ends of its queues."""
_TARGETS = {INDEX: "index"}


@runtime_checkable
class KnowsTopics(Protocol):
    """A handler that can say how many messages it has placed."""

    def messages_by_topic(self) -> dict[str, int]:
        """What its queues hold and have held, by topic."""


class TopicGrowth:
    """Counts what comes to each topic, from the ends of its queues: a message costs nothing."""

    def __init__(self, handler: KnowsTopics, counts: TopicCounts) -> None:
        """`handler` has resumed: what it knows by now was counted before."""
        self._handler = handler
        self._counts = counts
        self._known = handler.messages_by_topic()
        self._seen = 0
        self._due_at = 0.0

    def look(self, now: float, records: int) -> None:
        """Counts what has come since the last look, when it is time for one again.

        `records`: all that were dispatched; until there are more, nothing has come.
        """
        if now >= self._due_at and records != self._seen:
            # Of the processor: a machine that gave others the turn must not delay the counts.
            began = time.thread_time()
            self.look_now(records)
            took = time.thread_time() - began
            self._due_at = now + max(TOPICS_EVERY_S, took / TOPICS_TIME_SHARE)

    def look_now(self, records: int) -> None:
        """As `look`, whether it is time or not."""
        self._seen = records
        found = self._handler.messages_by_topic()
        for topic, messages in found.items():
            grown = messages - self._known.get(topic, 0)
            if grown > 0:  # less than before after a cut of the log
                self._counts.add(topic, grown)
        self._known = found
        self._counts.publish()

    def close(self) -> None:
        """Shows the last counts."""
        self._counts.close()


class WorkerStats:
    """Counts of one worker, in its slot's page."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        self._page = StatsPage(root, role, index)
        self._counts = self._page.counts
        target = _TARGETS.get(role, "cq")
        self._turn = self._counts.place(DISPATCH, target=target)
        self._flush = self._counts.place(DISPATCH_FLUSH, target=target)
        self._dispatched = self._counts.place(DISPATCHED, target=target)
        self._records = 0

    def turn(self, took: int, records: int) -> None:
        """A turn that found something; `records` are all that this process has dispatched."""
        self._counts.observe(self._turn, took)
        self._counts.numbers[self._dispatched] += records - self._records
        self._records = records

    def flushed(self, took: int) -> None:
        """Queues or index were synced. For the thread that syncs: nobody else adds to this."""
        self._counts.observe(self._flush, took)

    def publish(self) -> None:
        """Shows the counts."""
        self._page.publish()

    def close(self) -> None:
        """Shows the last counts."""
        self._page.close()
