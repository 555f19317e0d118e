"""The writer's counts: turns of its loop, answers, refusals and flushes; times are in ns.

A turn costs a few additions to a list, however many requests it has.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from node.runtime import stats_series as series
from node.runtime.shortage import is_shortage
from node.runtime.stats import SUM, StatsPage
from node.writer.requests import PendingRequest, Turn
from protocol import errors

_BY_TURN = attrgetter("turn")


class WriterStats:
    """Counts for the writer's one thread, in its slot's page."""

    def __init__(self, root: Path, is_sync_flush: bool) -> None:
        self._page = StatsPage(root, series.WRITER, 0)
        counts = self._counts = self._page.counts
        self._numbers = counts.numbers
        self._records = self._repeats = 0
        self._queue, self._append, self._flush, self._reply = (
            counts.place(series.STAGE, op=series.APPEND, stage=stage)
            for stage in ("queue", "append", "flush", "reply")
        )
        self._duration = counts.place(series.DURATION, op=series.APPEND)
        self._log_append = counts.place(series.LOG_APPEND)
        self._batch = counts.place(series.LOG_BATCH)
        mode = series.FLUSH_MODES[0] if is_sync_flush else series.FLUSH_MODES[1]
        self._log_flush = counts.place(series.LOG_FLUSH, mode=mode)
        self._ok = counts.place(series.REQUESTS, op=series.APPEND, code=series.OK)
        self._late = {
            code: counts.place(series.REQUESTS, op=series.APPEND, code=code)
            for code in (
                series.FLUSH_DISK_TIMEOUT,
                series.FLUSH_SLAVE_TIMEOUT,
                series.SLAVE_NOT_AVAILABLE,
            )
        }
        self._other_ok = counts.place(series.REQUESTS, op=series.OTHER, code=series.OK)
        self._in_flight = counts.place(series.IN_FLIGHT, op=series.APPEND)
        self._repeated = counts.place(series.REPEATED)

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
        lasted = took, parsed - began, replied - appended, replied - began
        places = self._append, self._queue, self._reply, self._duration
        for place, took in zip(places, lasted, strict=True):
            numbers[place + took.bit_length()] += requests
            numbers[place + SUM] += took * requests

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
        self._counts.observe(self._log_flush, took)

    def answered_other(self) -> None:
        """Counts a good answer to a request that is not an append."""
        self._numbers[self._other_ok] += 1

    def refused(self, is_append: bool, error: errors.MqError) -> None:
        code = error.status if error.status in series.CODES else series.CODES[-1]
        op = series.APPEND if is_append else series.OTHER
        self._numbers[self._counts.place(series.REQUESTS, op=op, code=code)] += 1
        if is_append:
            self._numbers[self._counts.place(series.REJECTED, reason=_reason(error))] += 1

    def publish(self, waiting: int, repeats: int) -> None:
        """Publishes the counts; `waiting` appends wait for the disk now, and this writer has found
        `repeats` messages that were stored before."""
        self._numbers[self._repeated] += repeats - self._repeats
        self._repeats = repeats
        self._numbers[self._in_flight] = waiting
        self._page.publish()

    def close(self, repeats: int) -> None:
        self.publish(0, repeats)
        self._page.close()


def _reason(error: errors.MqError) -> str:
    match error:
        case errors.MessageTooLarge() | errors.PropertiesTooLarge():
            return "too_large"
        case errors.UnknownTopic():
            return "no_topic"
        case errors.NodeBusy():
            return "flow"
        case errors.BusyError():
            return "full" if is_shortage(error) else "not_ready"
    return "bad"
