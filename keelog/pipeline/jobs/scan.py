"""Reads the log in ranges at once, and proves that together they read what one walk would.

A range owns the records that start in it. A task finds its first one by what a record says of
itself, which a body can imitate. So each task reports where its first record starts and where its
last one ends, and the driver joins them: the first range of a segment starts where the segment
does, every other one where the one before it ended. A range that does not join is read
again from there.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from keelog.pipeline.stores.planned_store import task_files
from keelog.pipeline.task_spec import LogAt
from node.store.log.reader import LogReader, next_record
from protocol.record.codec import Torn
from protocol.record.columns import RecordColumns

RANGE_BYTES = 64 << 20
"""One task reads about this many bytes of the log."""
WINDOW_BYTES = 2 << 20


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
