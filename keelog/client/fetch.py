"""Fetches raw bytes of a node's store: many requests under way over one connection.

Retries, reader restarts and new addresses are the business of the client's I/O thread.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from keelog.client.core import ClientCore
from keelog.client.transport.exchange import Call, NodeAnswer, NodeRole, Retry
from keelog.client.transport.keys import ClientKeys
from protocol.derived.removed import NOTHING_REMOVED, Removed, RemovedTopic
from protocol.ids import Queue

_BACKOFF_FACTOR_MAX = 10


class FetchSettings(NamedTuple):
    """How long and how often. `timeout_s` is for one request with all its attempts."""

    timeout_s: float = 30.0
    retries: int = 10
    retry_interval_s: float = 0.1


class QueueAtNode(NamedTuple):
    """A queue as a node shows it; `first` is the number of the first unit in a file."""

    queue: Queue
    first: int
    min_offset: int
    max_offset: int
    is_resuming: bool


class IndexAtNode(NamedTuple):
    """An index file as a node shows it; entries [1, `end`) may be read."""

    name: str
    slot_count: int
    index_num: int
    begin_timestamp: int
    end: int


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The files of a node; `segments` are the log offsets at which its files begin, as bytes."""

    token: str
    epoch: int
    min_offset: int
    readable: int
    followed: int
    segment_bytes: int
    segments: bytes
    queue_file_bytes: int
    queues: list[QueueAtNode]
    index: list[IndexAtNode]
    removed: Removed = NOTHING_REMOVED


class FetchClient:
    """Safe for many threads; not for use after a fork.

    Errors: NotConnected and RequestTimeout when the node stays away for the whole time, NotFound
    for what was deleted, StoreDamaged, UnknownOperation from a node that is too old.
    """

    def __init__(self, url: str, settings: FetchSettings, keys: ClientKeys | None = None) -> None:
        """Starts to connect. Raises BadRequest for an address that cannot be."""
        interval = settings.retry_interval_s
        retry = Retry(settings.retries + 1, interval, interval * _BACKOFF_FACTOR_MAX)
        self._core = ClientCore(url, settings.timeout_s, retry, keys=keys)

    def start(
        self, operation: str, fields: dict[str, Any], affinity: int = 0
    ) -> "Future[NodeAnswer]":
        """Asks a reader."""
        deadline = self._core.deadline(None)
        return self._core.start(
            Call(NodeRole.READER, operation, fields, deadline, affinity=affinity)
        )

    def seek(self, queue: Queue, time_ms: int) -> int:
        """The first queue offset stored at or after a time."""
        fields = {"topic": queue.topic, "queue": queue.queue_id, "timestamp": time_ms}
        return int(self.start("seek", fields).result().header["offset"])

    def topics(self) -> list[str]:
        return sorted(row["topic"] for row in self.start("topics", {}).result().header["topics"])

    def layout(
        self, known: str = "", topics: Sequence[str] | None = None, with_index: bool = False
    ) -> NodeLayout | None:
        """Asks for the files; None when `known`, the token of an earlier layout, is still true.

        All pages come from one reader, so that they fit together, unless it ends in between.
        """
        fields: dict[str, Any] = {"known": known, "index": with_index}
        if topics is not None:
            fields["topics"] = list(topics)
        first = self.start("layout", fields).result().header
        if first["same"]:
            return None
        rows, page = list(first["queues"]), first
        while page["cursor"] is not None:
            more = {**fields, "cursor": page["cursor"], "index": False}
            page = self.start("layout", more).result().header
            rows += page["queues"]
        # Topic, queue or None for all queues, and the log offset that it begins at.
        removed = first.get("removed") or ()
        return NodeLayout(
            token=first["token"],
            epoch=first["epoch"],
            min_offset=first["min_offset"],
            readable=first["readable"],
            followed=first["followed"],
            segment_bytes=first["segment_bytes"],
            segments=first["segments"],
            queue_file_bytes=page["queue_file_bytes"] or first["queue_file_bytes"],
            queues=[QueueAtNode(Queue(topic, number), *rest) for topic, number, *rest in rows],
            index=[IndexAtNode(*row) for row in first["index"]],
            removed=Removed(
                topics={topic: RemovedTopic(at) for topic, number, at in removed if number is None},
                queues={Queue(topic, one): at for topic, one, at in removed if one is not None},
            ),
        )

    def close(self) -> None:
        self._core.close()
