"""Counts a reader's answers and refusals by operation, and their latency.

Latency is of requests answered at once; long polls are excluded.
"""

from node.runtime.process import met_damage
from node.runtime.stats import Counts, TopicCounts
from node.runtime.stats_series import (
    CODES,
    DURATION,
    INDEX_LOOKUPS,
    LOOKUPS,
    OK,
    OTHER,
    READER,
    READER_OPS,
    REQUESTS,
)
from node.serving.unix_server import Payload
from protocol.errors import CorruptError
from protocol.wire.frames import Header

PULL = "pull"


class ReaderStats:
    """Counts for the reader's one thread."""

    def __init__(self, counts: Counts | None = None, topics: TopicCounts | None = None) -> None:
        """`counts`: those of a stats page; `topics`: messages by topic. All may be absent."""
        self._counts = counts = Counts(READER) if counts is None else counts
        self._numbers = counts.numbers
        self._ok = {op: counts.place(REQUESTS, op=op, code=OK) for op in READER_OPS}
        self._durations = {op: counts.place(DURATION, op=op) for op in READER_OPS}
        self._pull_ok = self._ok[PULL]
        self._hit, self._miss = (counts.place(INDEX_LOOKUPS, result=one) for one in LOOKUPS)
        self._topics = topics
        self.pulls = 0
        """The answers to pulls, refusals included."""

    def pulled(self, topic: str, header: Header, payload: Payload | None) -> None:
        """Counts the answer to a pull, which may be a refusal."""
        self.pulls += 1
        if not header["ok"]:
            self.refused(PULL, header["error"])
            return
        self._numbers[self._pull_ok] += 1
        if payload is not None and self._topics is not None:
            self._topics.add(topic, header["count"], len(payload))

    def answered(self, operation: str, took: int) -> None:
        """Counts the answer to another request that succeeded; it took `took` ns."""
        self._numbers[self._ok.get(operation, self._ok[OTHER])] += 1
        self.took(operation, took)

    def took(self, operation: str, took: int) -> None:
        """Counts the latency, in ns, of an answer that was given at once."""
        self._counts.observe(self._durations.get(operation, self._durations[OTHER]), took)

    def refused(self, operation: str, error: Header) -> None:
        """Counts a refusal, and notes the damage that it is about."""
        status = error["status"]
        op = operation if operation in READER_OPS else OTHER
        code = status if status in CODES else CODES[-1]
        self._numbers[self._counts.place(REQUESTS, op=op, code=code)] += 1
        if status == CorruptError.status:
            met_damage.note_place(error["where"], error["offset"], error["found"])

    def looked_up(self, is_hit: bool) -> None:
        """Counts a look-up by key."""
        self._numbers[self._hit if is_hit else self._miss] += 1
