"""Finds units in the queues' files that name lost records. Only reads."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.file_cache import OpenFiles
from node.store.queues.files import QueueFiles, Units, is_filler
from node.store.queues.listing import (
    find_queue_file_bytes,
    is_of_removed,
    list_queues,
    open_queue_files,
)
from node.store.repair.walk import Gap, Hole, LogWalk, WalkedQueue
from protocol.derived.removed import Removed
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import is_folder_name
from protocol.record.codec import FILLER_BYTES
from protocol.record.lost_marker import queue_marker_bytes_min

_STEP_UNITS = 65_536
Ints = NDArray[np.int64]


class Claim(NamedTuple):
    """A unit of a lost record: [offset, offset + size) was number `number` of `queue`."""

    offset: int
    size: int
    queue: Queue
    number: int

    @property
    def end(self) -> int:
        """The log offset after the record."""
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
        for first, units in _steps(files):
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
    return UnitsRead(_consistent(claims), beyond)


def _steps(files: QueueFiles) -> Iterator[tuple[int, Units]]:
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
    ends = np.array([_room_end(hole) for hole in walk.holes], np.int64)
    which = np.searchsorted(starts, offsets, "right") - 1
    inside = (which >= 0) & (offsets + sizes <= ends[which])
    inside &= sizes >= queue_marker_bytes_min(queue.topic, sealed=False)
    for row in np.flatnonzero(inside).tolist():
        claim = Claim(int(offsets[row]), int(sizes[row]), queue, int(numbers[row]))
        if _is_missing(claim, walk.queues.get(queue), walk.gaps):
            yield claim


def _room_end(hole: Hole) -> int:
    """The end for records: the blank that closes a segment needs room after them."""
    return hole.end - FILLER_BYTES if hole.closes else hole.end


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


def _consistent(claims: list[Claim]) -> list[Claim]:
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
