"""The writer's counts: turns of its loop, answers, refusals and flushes; times are in ns.

A turn costs a few additions to a list, however many requests it has.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from node.runtime.shortage import is_shortage
from node.runtime.stats import SUM, StatsPage
from node.runtime.stats_series import (
    APPEND,
    CODES,
    DURATION,
    FLUSH_DISK_TIMEOUT,
    FLUSH_MODES,
    FLUSH_SLAVE_TIMEOUT,
    IN_FLIGHT,
    LOG_APPEND,
    LOG_BATCH,
    LOG_FLUSH,
    OK,
    OTHER,
    REJECTED,
    REPEATED,
    REQUESTS,
    SLAVE_NOT_AVAILABLE,
    STAGE,
    WRITER,
)
from node.writer.requests import PendingRequest, Turn
from protocol.errors import (
    BusyError,
    MessageTooLarge,
    MqError,
    NodeBusy,
    PropertiesTooLarge,
    UnknownTopic,
)

_BY_TURN = attrgetter("turn")


class WriterStats:
    """Counts for the writer's one thread, in its slot's page."""

    def __init__(self, root: Path, is_sync_flush: bool) -> None:
        self._page = StatsPage(root, WRITER, 0)
        counts = self._counts = self._page.counts
        self._numbers = counts.numbers
        self._records = self._repeats = 0
        self._queue, self._append, self._flush, self._reply = (
            counts.place(STAGE, op=APPEND, stage=stage)
            for stage in ("queue", "append", "flush", "reply")
        )
        self._duration = counts.place(DURATION, op=APPEND)
        self._log_append = counts.place(LOG_APPEND)
        self._batch = counts.place(LOG_BATCH)
        mode = FLUSH_MODES[0] if is_sync_flush else FLUSH_MODES[1]
        self._log_flush = counts.place(LOG_FLUSH, mode=mode)
        self._ok = counts.place(REQUESTS, op=APPEND, code=OK)
        self._late = {
            code: counts.place(REQUESTS, op=APPEND, code=code)
            for code in (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE)
        }
        self._other_ok = counts.place(REQUESTS, op=OTHER, code=OK)
        self._in_flight = counts.place(IN_FLIGHT, op=APPEND)
        self._repeated = counts.place(REPEATED)

    def turn(self, turn: Turn, replied: int, requests: int, records: int) -> None:
        """Counts a group that was appended, and the `requests` of it that were answered at once.

        `replied` is when their last answer was sent; `records` counts all that this writer has
        appended.
        """
        began, parsed, appended = turn
        numbers = self._numbers
        took = appended - parsed
        if records != self._records:
            count, self._records = records - self._records, records
            numbers[self._log_append + took.bit_length()] += 1
            numbers[self._log_append + SUM] += took
            numbers[self._batch + count.bit_length()] += 1
            numbers[self._batch + SUM] += count
        if not requests:
            return
        numbers[self._ok] += requests
        numbers[self._append + took.bit_length()] += requests
        numbers[self._append + SUM] += took * requests
        took = parsed - began
        numbers[self._queue + took.bit_length()] += requests
        numbers[self._queue + SUM] += took * requests
        took = replied - appended
        numbers[self._reply + took.bit_length()] += requests
        numbers[self._reply + SUM] += took * requests
        took = replied - began
        numbers[self._duration + took.bit_length()] += requests
        numbers[self._duration + SUM] += took * requests

    def waited(
        self, answered: Sequence[PendingRequest], ended: int, replied: int, status: str
    ) -> None:
        """Counts answered requests that waited for the disk, or followers, until `ended`, turn by
        turn."""
        observe = self._counts.observe
        self._numbers[self._late.get(status, self._ok)] += len(answered)
        for turn, group in groupby(answered, _BY_TURN):
            began, parsed, appended = turn
            count = sum(1 for _ in group)
            observe(self._queue, parsed - began, count)
            observe(self._append, appended - parsed, count)
            observe(self._flush, ended - appended, count)
            observe(self._reply, replied - ended, count)
            observe(self._duration, replied - began, count)

    def flushed(self, took: int) -> None:
        """Counts a flush of the log."""
        self._counts.observe(self._log_flush, took)

    def answered_other(self) -> None:
        """Counts a good answer to a request that is not an append."""
        self._numbers[self._other_ok] += 1

    def refused(self, is_append: bool, error: MqError) -> None:
        """Counts a refusal."""
        code = error.status if error.status in CODES else CODES[-1]
        op = APPEND if is_append else OTHER
        self._numbers[self._counts.place(REQUESTS, op=op, code=code)] += 1
        if is_append:
            self._numbers[self._counts.place(REJECTED, reason=_reason(error))] += 1

    def publish(self, waiting: int, repeats: int) -> None:
        """Publishes the counts; `waiting` appends wait for the disk now, and this writer has found
        `repeats` messages that were stored before."""
        self._numbers[self._repeated] += repeats - self._repeats
        self._repeats = repeats
        self._numbers[self._in_flight] = waiting
        self._page.publish()

    def close(self, repeats: int) -> None:
        """Publishes the last counts."""
        self.publish(0, repeats)
        self._page.close()


def _reason(error: MqError) -> str:
    match error:
        case MessageTooLarge() | PropertiesTooLarge():
            return "too_large"
        case UnknownTopic():
            return "no_topic"
        case NodeBusy():
            return "flow"
        case BusyError():
            return "full" if is_shortage(error) else "not_ready"
    return "bad"
