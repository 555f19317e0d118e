"""Reads a damaged store once: the holes of its log, the gaps of its queues, what units say of both.

Only reads. The walk over the log finds holes, gaps and the log's end. A hole is damage with a
provable record after it. Above the durable end damage is not a hole: a crash leaves torn bytes
there, and recovery cuts them. Then the queues' files show which units name lost records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.checkpoints import Tails
from node.store.file_cache import OpenFiles
from node.store.log.reader import LogReader, next_record, wrong_blank
from node.store.log.segments import Segment
from node.store.queues import (
    QueueFiles,
    Units,
    find_queue_file_bytes,
    is_filler,
    is_of_removed,
    list_queues,
    open_queue_files,
)
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import is_folder_name
from protocol.record.codec import FILLER_BYTES, MAGIC_FILLER, Record, Torn
from protocol.record.columns import RecordColumns, end_in_crc
from protocol.record.lost_marker import queue_marker_bytes_min

Ints = NDArray[np.int64]

_WINDOW_BYTES = 1 << 20
_FILLER_MAGIC = MAGIC_FILLER.to_bytes(4, "big")
_STEP_UNITS = 65_536


class Hole(NamedTuple):
    """Damaged bytes [start, end) within one segment, or a blank of a wrong length.

    `store_timestamp`: that of the record before it; `sealed`: whether that record carries the
    whole-record checksum.
    """

    path: Path
    segment_start: int
    segment_end: int
    start: int
    end: int
    torn: Torn
    store_timestamp: int
    sealed: bool


class Gap(NamedTuple):
    """Queue offsets [first, stop) without a record; [low, high) of the log has a hole."""

    queue: Queue
    first: int
    stop: int
    low: int
    high: int


@dataclass(slots=True)
class WalkedQueue:
    """One queue's records: the first one's number and place, the last one's number and end."""

    first: int
    first_at: int
    last: int
    last_end: int


@dataclass(slots=True)
class LogWalk:
    """The result of a walk. `stop`: what is at the log's end; None at the end of a segment.

    `has_bytes_after`: whether recovery will wipe bytes after the end.
    """

    durable: int
    end: int = 0
    stop: Torn | None = None
    has_bytes_after: bool = False
    holes: list[Hole] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    queues: dict[Queue, WalkedQueue] = field(default_factory=dict)
    last_record: int = 0
    store_timestamp: int = 0
    sealed: bool = False
    removed: Removed = NOTHING_REMOVED
    """Records of removed topics count for the log, and for no queue."""

    @property
    def is_cut_short(self) -> bool:
        """True if the log ends below what was durable."""
        return self.end < self.durable

    def note(self, columns: RecordColumns) -> None:
        self.last_record = int(columns.physical_offset[-1])
        self.store_timestamp = int(columns.store_timestamp[-1])
        self.sealed = bool(end_in_crc(columns)[-1])
        self.end = self.last_record + int(columns.size[-1])
        hole_at = self.holes[-1].start if self.holes else -1
        columns = self.removed.dispatched(columns)
        number, at = columns.queue_offset, columns.physical_offset
        for queue, rows in DispatchRequests(columns).by_queue():
            first, last = int(rows[0]), int(rows[-1])
            end = int(at[last] + columns.size[last])
            seen = WalkedQueue(int(number[first]), int(at[first]), int(number[last]), end)
            before = self.queues.setdefault(queue, seen)
            if before is seen:
                continue
            if before.last_end <= hole_at and seen.first > before.last + 1:
                self.gaps.append(
                    Gap(queue, before.last + 1, seen.first, before.last_end, seen.first_at)
                )
            before.last, before.last_end = seen.last, seen.last_end


def walk_log(
    reader: LogReader,
    durable: int,
    sealed: bool,
    endless: bool = False,
    removed: Removed = NOTHING_REMOVED,
) -> LogWalk:
    """Walks `reader` from its start to the log's end.

    `sealed`: counts for a hole before the first record. `endless`: damage above `durable` is a hole
    too if newer records follow it.
    """
    found = LogWalk(durable, end=reader.min_offset, sealed=sealed, removed=removed)
    position = reader.min_offset
    while position < reader.end:
        for columns in reader.columns(position):
            found.note(columns)
            found.holes += _wrong_blank(reader, found)
        torn = reader.stopped
        if torn is None:
            found.end = reader.end
            break
        resumed = _resumed_at(reader, torn, found, endless)
        if resumed is None:
            found.end, found.stop = torn.position, torn
            found.has_bytes_after = _has_bytes(reader, torn.position)
            break
        found.holes += _holes(reader, torn, resumed, found)
        position = resumed
    return found


def _resumed_at(reader: LogReader, torn: Torn, found: LogWalk, endless: bool) -> int | None:
    """Where the log goes on after damage; None if the log ends there.

    Below the durable end all records were whole once, so a record that proves itself there is one
    of them. Above it there may be records that were cut off earlier: their store times are older.
    """
    if torn.position >= found.durable and not endless:
        return None
    place = next_record(reader, torn.position + 1)
    if place is not None and place >= found.durable:
        return next_record(reader, place, found.store_timestamp)
    return place


def _has_bytes(reader: LogReader, position: int) -> bool:
    while position < reader.end:
        segment = reader.segment_at(position)
        count = min(_WINDOW_BYTES, segment.end - position)
        if segment.read(position - segment.start, count).strip(b"\0"):
            return True
        position += count
    return False


def _holes(reader: LogReader, torn: Torn, resumed: int, found: LogWalk) -> Iterator[Hole]:
    """Yields the holes between `torn` and `resumed`, by segment; an intact blank ends one."""
    position = torn.position
    timestamp = found.store_timestamp
    if not timestamp:
        record = reader.peek(resumed)
        assert isinstance(record, Record)
        timestamp = record.head.store_timestamp
    while position < resumed:
        segment = reader.segment_at(position)
        end = min(segment.end, resumed)
        if end == segment.end:
            end = _blank_at(reader, position) or end
        if end > position:
            yield _hole(segment, position, end, torn, timestamp, found.sealed)
        position = segment.end


def _wrong_blank(reader: LogReader, found: LogWalk) -> Iterator[Hole]:
    torn = wrong_blank(reader, found.end)
    if torn is not None:
        segment = reader.segment_at(found.end)
        timestamp = found.store_timestamp
        yield _hole(segment, found.end, segment.end, torn, timestamp, found.sealed)


def _hole(segment: Segment, start: int, end: int, torn: Torn, timestamp: int, sealed: bool) -> Hole:
    place = segment.path, segment.start, segment.end
    return Hole(*place, start, end, torn, timestamp, sealed)


def _blank_at(reader: LogReader, position: int) -> int | None:
    """The offset of the intact blank that closes a segment, from `position` on; else None."""
    segment = reader.segment_at(position)
    while position <= segment.end - FILLER_BYTES:
        count = min(_WINDOW_BYTES, segment.end - position)
        data = segment.read(position - segment.start, count)
        at = data.find(_FILLER_MAGIC, 4)
        while at >= 0:
            place = position + at - 4
            if int.from_bytes(data[at - 4 : at], "big") == segment.end - place:
                return place
            at = data.find(_FILLER_MAGIC, at + 1)
        if count < _WINDOW_BYTES:
            return None
        position += count - FILLER_BYTES + 1
    return None


def add_gaps_at_ends(found: LogWalk, min_offset: int, tails: Tails | None) -> None:
    """Adds the gaps before a queue's first record, in a log from offset 0, and after its last one,
    up to our snapshot of the queues' ends."""
    if not found.holes:
        return
    first_hole, last_hole = found.holes[0].start, found.holes[-1].start
    if min_offset == 0:
        for queue, seen in found.queues.items():
            if seen.first > 0 and first_hole < seen.first_at:
                found.gaps.append(Gap(queue, 0, seen.first, 0, seen.first_at))
    if tails is None or found.end < tails.at:
        return
    for queue, following in tails.next_offset.items():
        at = found.queues.get(queue)
        if at is None and min_offset == 0:
            found.gaps.append(Gap(queue, 0, following, 0, tails.at))
        elif at and at.last + 1 < following and at.last_end <= last_hole < tails.at:
            found.gaps.append(Gap(queue, at.last + 1, following, at.last_end, tails.at))


class Claim(NamedTuple):
    """A unit of a lost record: [offset, offset + size) was number `number` of `queue`."""

    offset: int
    size: int
    queue: Queue
    number: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class UnitsRead(NamedTuple):
    """Credible claims, by offset; and for each queue the numbers [first, stop) whose records were
    durable and now lie after the log's end."""

    claims: list[Claim]
    beyond: dict[Queue, tuple[int, int]]


def queue_files(
    root: Path, otherwise: int, files: OpenFiles, removed: Removed
) -> Iterator[tuple[Queue, QueueFiles]]:
    """Yields the queues whose files can be read; skips damaged ones and removed topics."""
    folders = list_queues(root)
    for queue, folder in folders.items():
        try:
            file_bytes = find_queue_file_bytes(iter([folder]), otherwise)
            found = open_queue_files(folder, file_bytes, files)
            horizon = removed.horizon(queue.topic)
            if not horizon or not is_of_removed(found, horizon):
                yield queue, found
        except StoreDamaged:
            continue


def read_units(queues: Sequence[tuple[Queue, QueueFiles]], walk: LogWalk) -> UnitsRead:
    """Reads every unit of every queue, and keeps those that name lost records."""
    claims: list[Claim] = []
    beyond: dict[Queue, tuple[int, int]] = {}
    starts = np.array([hole.start for hole in walk.holes], np.int64)
    for queue, files in queues:
        for first, units in _unit_steps(files):
            real = (units["size"] > 0) & ~is_filler(units)
            numbers = first + np.flatnonzero(real)
            kept = units[real]
            offsets = kept["physical_offset"].astype(np.int64)
            sizes = kept["size"].astype(np.int64)
            if len(starts):
                claims += _in_holes(queue, numbers, offsets, sizes, walk, starts)
            later = numbers[(offsets >= walk.end) & (offsets < walk.durable)]
            if len(later):
                low, _ = beyond.get(queue, (int(later[0]), 0))
                beyond[queue] = low, int(later[-1]) + 1
    return UnitsRead(_consistent_claims(claims), beyond)


def _unit_steps(files: QueueFiles) -> Iterator[tuple[int, Units]]:
    position, end = files.first, files.capacity_end
    while position < end:
        units = files.read(position, min(_STEP_UNITS, end - position))
        yield position, units
        position += len(units)


def _in_holes(
    queue: Queue,
    numbers: Ints,
    offsets: Ints,
    sizes: Ints,
    walk: LogWalk,
    starts: Ints,
) -> Iterator[Claim]:
    if not is_folder_name(queue.topic):
        return
    # The blank that closes a segment needs room after the records.
    blanks = [FILLER_BYTES if hole.end == hole.segment_end else 0 for hole in walk.holes]
    ends = np.array([hole.end for hole in walk.holes], np.int64) - np.array(blanks, np.int64)
    which = np.searchsorted(starts, offsets, "right") - 1
    inside = (which >= 0) & (offsets + sizes <= ends[which])
    inside &= sizes >= queue_marker_bytes_min(queue.topic, sealed=False)
    for row in np.flatnonzero(inside).tolist():
        claim = Claim(int(offsets[row]), int(sizes[row]), queue, int(numbers[row]))
        if _is_missing(claim, walk.queues.get(queue), walk.gaps):
            yield claim


def _is_missing(claim: Claim, seen: WalkedQueue | None, gaps: list[Gap]) -> bool:
    """True if the log lacks this number of the queue at this place."""
    if seen is None:
        return True
    if claim.number > seen.last:
        return claim.offset >= seen.last_end
    if claim.number < seen.first:
        return claim.end <= seen.first_at
    return any(
        gap.queue == claim.queue
        and gap.first <= claim.number < gap.stop
        and gap.low <= claim.offset
        and claim.end <= gap.high
        for gap in gaps
    )


def _consistent_claims(claims: list[Claim]) -> list[Claim]:
    """Drops claims that overlap an earlier one, or reverse the order of their queue."""
    kept: list[Claim] = []
    last: dict[Queue, int] = {}
    for claim in sorted(claims):
        if kept and claim.offset < kept[-1].end:
            continue
        if claim.number <= last.get(claim.queue, -1):
            continue
        last[claim.queue] = claim.number
        kept.append(claim)
    return kept
