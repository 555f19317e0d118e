"""Reads the log in ranges at once, and proves that together they read what one walk would.

A range owns the records that start in it. A task finds its first one by what a record says of
itself, which a body can imitate. So each task reports where its first record starts and where its
last one ends, and the driver joins them: the first range of a segment starts where the segment
does, every other one where the one before it ended. A range that does not join is read
again from there.

The units that a range's records call for are gathered by queue. Ranges must not silently leave a
queue offset out, or meet at one: each reports its runs, and the driver compares them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keelog.pipeline.errors import JobFailed
from keelog.pipeline.stores.planned_store import task_files
from keelog.pipeline.task_spec import LogAt
from node.store.log.reader import LogReader, next_record
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.names import is_folder_name
from protocol.record.codec import Torn
from protocol.record.columns import Ints, RecordColumns

RANGE_BYTES = 64 << 20
"""One task reads about this many bytes of the log."""
WINDOW_BYTES = 2 << 20
BATCH_ROWS = 1 << 16
"""This many units are gathered before they are sorted by queue: a few MiB."""
RUNS_MAX = 100_000
"""Of one range: more are not a log of a node or broker, and would only cost the driver memory."""
_TABLE_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Records that start in [`start`, `stop`), all in one segment.

    `is_proven`: `start` is known to be where a record, or the end of the segment, begins.
    """

    number: int
    start: int
    stop: int
    is_proven: bool


class RangeEnds(NamedTuple):
    """What a task found in its range: where its first record starts, None without one; where what
    it read ends, the whole segment after a filler; and the damage there, if any."""

    number: int
    first: int | None
    end: int
    torn: Torn | None = None


class Stitched(NamedTuple):
    """Ranges that are proven, in order, those without a record left out.

    `is_same`: the tasks read exactly these records. `torn` is the first damage, after which
    nothing was looked at.
    """

    ranges: list[ScanRange]
    is_same: bool
    torn: Torn | None


def plan_ranges(log: LogAt, range_bytes: int = RANGE_BYTES, ranges_min: int = 1) -> list[ScanRange]:
    """Cuts the log into ranges of about equal length, at segments first; in order."""
    total = log.end - log.start
    length = max(min(range_bytes, -(-total // max(ranges_min, 1))), 1)
    ranges: list[ScanRange] = []
    for segment in log.segments:
        start, end = max(segment, log.start), min(segment + log.segment_bytes, log.end)
        count = -(-(end - start) // length) if start < end else 0
        borders = [start + (end - start) * part // count for part in range(count)] if count else []
        for low, high in pairwise([*borders, end]):
            ranges.append(ScanRange(len(ranges), low, high, low == start))
    return ranges


class RangeScan:
    """The verified records of one range, window by window; iterate over it once, then `ends`."""

    def __init__(self, log: LogReader, span: ScanRange) -> None:
        self._log = log
        self._span = span
        self._first: int | None = None
        self._torn: Torn | None = None
        self._end = span.start

    def __iter__(self) -> Iterator[RecordColumns]:
        span, log = self._span, self._log
        start: int | None = span.start
        if not span.is_proven:
            start = next_record(log, span.start, stop=span.stop)
        if start is None:
            return
        self._end = start
        # The range, and the rest of its last record, where that is not at hand.
        segment = log.segment_at(start)
        ahead = min(span.stop + WINDOW_BYTES, segment.end, log.end)
        segment.file.expect(start - segment.start, ahead - segment.start)
        for columns in log.columns(start, span.stop, WINDOW_BYTES):
            if len(columns):
                if self._first is None:
                    self._first = int(columns.physical_offset[0])
                self._end = columns.end
                yield columns
        # Windows reach further than the range: what is torn there is not its own.
        torn = log.stopped
        self._torn = None if torn is None or torn.position >= span.stop else torn
        if self._torn is None and self._end < span.stop:
            # Neither damage nor the range's end: the filler that closes the segment.
            self._end = min(log.segment_at(span.start).end, log.end)

    def ends(self) -> RangeEnds:
        """What joins this range to its neighbours."""
        end = self._end if self._torn is None else self._torn.position
        return RangeEnds(self._span.number, self._first, end, self._torn)


def scan_ends(log: LogAt, span: ScanRange) -> RangeEnds:
    """Reads a range for its ends alone."""
    with closing(task_files(log.store, maps=True)) as files:
        scan = RangeScan(log.open(files), span)
        for _ in scan:
            pass
        return scan.ends()


def stitch(
    log: LogAt,
    ranges: Iterable[ScanRange],
    ends: Iterable[RangeEnds],
) -> Stitched:
    """Joins what the tasks found, in the order of `ranges`; reads ranges again where it must."""
    proven: list[ScanRange] = []
    is_same, expected = True, log.start
    for span, found in zip(ranges, sorted(ends, key=lambda ends: ends.number), strict=True):
        if span.is_proven:
            expected = span.start
        if expected >= span.stop:
            # A record, or the filler, reaches over all of it.
            is_same &= found.first is None
            continue
        if found.first != expected:
            again = scan_ends(log, replace(span, start=expected, is_proven=True))
            is_same &= found.first is None and again.first is None
            found = again
        if found.first is not None:
            proven.append(replace(span, start=expected, is_proven=True))
        if found.torn is not None:
            return Stitched(proven, is_same, found.torn)
        expected = found.end
    return Stitched(proven, is_same, None)


class UnitRun(NamedTuple):
    """Units [`start`, `end`) of a queue, and the log offsets of the first and the last record."""

    start: int
    end: int
    first_offset: int
    last_offset: int


Runs = dict[Queue, list[UnitRun]]


class RebuiltRun(NamedTuple):
    """Units of consecutive queue offsets of one queue, from `start` on."""

    queue: Queue
    start: int
    units: NDArray[Any]


class UnitGatherer:
    """Takes dispatch requests in log order and gives them back as rows by queue.

    Records of topics that cannot be folders have no queue, as with the worker, unless `every`.
    """

    def __init__(self, every: bool = False) -> None:
        self._every = every
        self._queues: dict[Queue, int] = {}
        self._batches: list[tuple[Ints, Ints, NDArray[Any]]] = []
        self._rows = self._runs = 0
        self.runs: Runs = {}

    def add(
        self, requests: DispatchRequests, removed: Removed = NOTHING_REMOVED
    ) -> Iterator[RebuiltRun]:
        """Takes a window's records; gives rows when enough have been gathered."""
        columns = removed.dispatched(requests.columns)
        if columns is not requests.columns:
            requests = DispatchRequests(columns, requests.delay_levels_ms)
        if not len(columns):
            return
        rows = np.flatnonzero(requests.is_queued)
        if not len(rows):
            return
        key = self._queue_numbers(requests, rows)
        kept = key >= 0
        key, placed = key[kept], rows[kept]
        offsets = requests.columns.queue_offset[placed]
        self._batches.append((key, offsets, requests.units(placed)))
        self._rows += len(rows)
        if self._rows >= BATCH_ROWS:
            yield from self.flush()

    def _queue_numbers(self, requests: DispatchRequests, rows: Ints) -> Ints:
        """Each row's queue, as a number among those met; -1 for none."""
        topic_id, queue_id = requests.topic_id[rows], requests.columns.queue_id[rows]
        low, high = int(queue_id.min()), int(queue_id.max())
        count = high - low + 1
        size = len(requests.topics) * count
        places = topic_id * count + (queue_id - low)
        # Queue ids are few: a table is ten times faster than sorting.
        is_table = size <= _TABLE_MAX
        met, where = (
            (np.flatnonzero(np.bincount(places)), places)
            if is_table
            else np.unique(places, return_inverse=True)
        )
        numbers = np.full(size if is_table else len(met), -1, np.int64)
        for at, place in enumerate(met.tolist()):
            queue = Queue(requests.topics[place // count], low + place % count)
            if self._every or is_folder_name(queue.topic):
                number = self._queues.setdefault(queue, len(self._queues))
                numbers[place if is_table else at] = number
        chosen: Ints = numbers[where]
        return chosen

    def flush(self) -> Iterator[RebuiltRun]:
        """Gives what is left, as runs of consecutive queue offsets, and notes them in `runs`.

        Rows of one queue that do not rise are runs of their own, in log order. Raises JobFailed.
        """
        batches, self._batches, self._rows = self._batches, [], 0
        if not batches:
            return
        key, offset = (np.concatenate([batch[at] for batch in batches]) for at in (0, 1))
        units = _joined([batch[2] for batch in batches])
        # Numbers of two bytes are sorted by counting them.
        small = len(self._queues) <= np.iinfo(np.uint16).max
        order = np.argsort(key.astype(np.uint16) if small else key, kind="stable")
        key, offset, units = key[order], offset[order], units[order]
        breaks = np.flatnonzero((np.diff(key) != 0) | (np.diff(offset) != 1)) + 1
        starts, queues = [0, *breaks.tolist()] if len(key) else [], list(self._queues)
        for start, stop in zip(starts, [*starts[1:], len(key)], strict=True):
            rows = RebuiltRun(queues[int(key[start])], int(offset[start]), units[start:stop])
            self._note(rows)
            yield rows

    def _note(self, rows: RebuiltRun) -> None:
        runs = self.runs.setdefault(rows.queue, [])
        first, last = (int(rows.units[at]["physical_offset"]) for at in (0, -1))
        end = rows.start + len(rows.units)
        if runs and runs[-1].end == rows.start:
            runs[-1] = runs[-1]._replace(end=end, last_offset=last)
        else:
            runs.append(UnitRun(rows.start, end, first, last))
            self._runs += 1
        if self._runs > RUNS_MAX:
            raise JobFailed(
                f"queue offsets are in no order: {rows.queue} has {rows.start} in the record at"
                f" {first}, behind {self._runs} breaks",
                "keelog store rebuild, which numbers units as a broker does",
            )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Not np.concatenate, which returns the machine's byte order."""
    joined = np.empty(sum(map(len, parts)), parts[0].dtype)
    at = 0
    for part in parts:
        joined[at : at + len(part)] = part
        at += len(part)
    return joined


def joined_runs(all_runs: Sequence[Mapping[Queue, Sequence[UnitRun]]]) -> Runs:
    """The runs of all ranges by queue, rising by queue offset."""
    joined: Runs = {}
    for runs in all_runs:
        for queue, found in runs.items():
            joined.setdefault(queue, []).extend(found)
    return {queue: sorted(joined[queue]) for queue in sorted(joined)}


def run_problems(runs: Runs) -> Iterator[str]:
    """Names every place where a queue's units are missing, doubled, or below 0."""
    for queue, found in runs.items():
        name, before = f"{queue.topic}/{queue.queue_id}", found[0]
        if before.start < 0:
            yield f"{name}: the queue offset is below 0"
        for run in found[1:]:
            if run.start > before.end:
                yield (
                    f"{name}: queue offsets {before.end} to {run.start - 1} are missing: the record"
                    f" at {before.last_offset} has {before.end - 1}, the one at {run.first_offset}"
                    f" {run.start}"
                )
            elif run.start < before.end:
                last = min(run.end, before.end) - 1
                yield (
                    f"{name}: queue offsets {run.start} to {last} are there twice: in records"
                    f" between {before.first_offset} and {before.last_offset}, and between"
                    f" {run.first_offset} and {run.last_offset}"
                )
            before = max(before, run, key=lambda one: one.end)
