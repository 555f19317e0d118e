"""The kinds of number that must not be mixed, and the queue that a message belongs to."""

import zlib
from functools import lru_cache
from typing import NamedTuple, NewType

LogOffset = NewType("LogOffset", int)
"""A byte position in the concatenated CommitLog (RocketMQ: physical offset)."""

QueueOffset = NewType("QueueOffset", int)
"""The ordinal of a message within one (topic, queue)."""

Epoch = NewType("Epoch", int)
"""Counts the starts of the writer; see docs/format.md, 'Our own files'."""

TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since 1970, UTC."""


class Queue(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int


@lru_cache(maxsize=16_384)
def queue_of(topic: str, queue_id: int) -> Queue:
    """As `Queue(topic, queue_id)`, at a third of the cost, for code that needs one a message."""
    return Queue(topic, queue_id)


def shard_of(queue: Queue, shard_count: int) -> int:
    """The queue worker that owns `queue` when there are `shard_count` of them.

    CRC-32 and not `hash()`, which differs in each process.
    """
    return zlib.crc32(f"{queue.topic}-{queue.queue_id}".encode()) % shard_count
