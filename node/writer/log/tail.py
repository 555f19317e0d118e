"""The bytes after a log's end: found, judged, kept in quarantine, zeroed.

The tail before the end is written once more.
"""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from node.runtime import disk
from node.runtime.event_log import fields
from node.store.log.reader import Bounds, LogReader, columns_past_damage, next_record
from node.store.log.segments import SegmentList
from node.store.quarantine import keep_bytes
from protocol.names import COMMIT_LOG_DIR, offset_file_name, parse_offset_file_name
from protocol.record.codec import RECORD_BYTES_MIN, Torn
from protocol.record.columns import RecordColumns

log = logging.getLogger("keelog.recovery")

SECTOR_BYTES = 512
"""A disk writes a sector whole or not at all."""
FOLLOWING_BYTES_MAX = 64 * 1024 * 1024
"""How far after the end whole records are looked for, for the report."""
_COPY_BYTES = 1024 * 1024
_ZEROS_MIN = 8
"""Fewer zero bytes in a row than this say nothing: a record's numbers have them too."""


class LogEnd(NamedTuple):
    """The end of a log in its folder, and the length of its segments."""

    root: Path
    offset: int
    segment_bytes: int

    @property
    def folder(self) -> Path:
        """Where the segments are."""
        return self.root / COMMIT_LOG_DIR

    def path(self, base: int) -> Path:
        """The segment that starts at `base`."""
        return self.folder / offset_file_name(base)


def segment_bases(root: Path) -> list[int]:
    """The first offsets of the segments that are there."""
    directory = root / COMMIT_LOG_DIR
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    return sorted(base for name in names if (base := parse_offset_file_name(name)) is not None)


def has_bytes_behind(end: LogEnd) -> bool:
    """Whether there are bytes other than zeros at or after the end."""
    return any(True for _ in _bytes_behind(end))


def written_end(end: LogEnd) -> int:
    """Where data ends on the disk, at or after `end`: what was never written is a hole."""
    written = end.offset
    for base in segment_bases(end.root):
        if base + end.segment_bytes > end.offset:
            descriptor = os.open(end.path(base), os.O_RDONLY | os.O_CLOEXEC)
            try:
                for _, stop in _extents(descriptor, 0, end.segment_bytes):
                    written = max(written, base + stop)
            finally:
                os.close(descriptor)
    return written


def _bytes_behind(end: LogEnd) -> Iterator[tuple[int, int, bytes]]:
    """(segment base, position, bytes) of what is not zero at or after the end, by MiB at most."""
    for base in segment_bases(end.root):
        if base + end.segment_bytes <= end.offset:
            continue
        descriptor = os.open(end.path(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for position, stop in _extents(
                descriptor, max(end.offset - base, 0), end.segment_bytes
            ):
                for start in range(position, stop, _COPY_BYTES):
                    chunk = os.pread(descriptor, min(_COPY_BYTES, stop - start), start)
                    data = np.flatnonzero(np.frombuffer(chunk, np.uint8))
                    if len(data):
                        yield base, start, chunk[: int(data[-1]) + 1]
        finally:
            os.close(descriptor)


def _extents(descriptor: int, position: int, stop: int) -> list[tuple[int, int]]:
    """Where a file has data. All are found before any is read: reading ahead makes holes data."""
    found: list[tuple[int, int]] = []
    while position < stop:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break
        hole = os.lseek(descriptor, position, os.SEEK_HOLE)
        found.append((position, min(hole, stop)))
        position = hole
    return found


def looks_torn(segments: SegmentList, torn: Torn) -> bool:
    """Whether the bad record looks as a power loss leaves one: a sector of it is wholly zero.

    Else something changed bytes that were written: a failing disk, a program, a hand.
    """
    segment = segments.find(torn.position)
    if segment is None:
        return True
    position = torn.position - segment.start
    size = int.from_bytes(segment.read(position, 4), "big", signed=True)
    if not RECORD_BYTES_MIN <= size <= segment.size - position:
        # Its length cannot be believed, so the sector in which it begins decides.
        size = SECTOR_BYTES - position % SECTOR_BYTES
    data = segment.read(position, size)
    cuts = range(SECTOR_BYTES - position % SECTOR_BYTES, size, SECTOR_BYTES)
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    ends_in_zero = data[-1:] == b"\0" and data[:_ZEROS_MIN].strip(b"\0") != b""
    return ends_in_zero or any(len(part) >= _ZEROS_MIN and not any(part) for part in parts)


def records_behind(segments: SegmentList, torn: Torn, not_before_ms: int) -> tuple[int, int | None]:
    """How many whole records of at least that store time follow a bad one, and where the first
    of them stands."""
    if segments.find(torn.position) is None:
        return 0, None
    stop = min(segments.end, torn.position + FOLLOWING_BYTES_MAX)
    reader = LogReader(segments, Bounds(torn.position, stop))
    first = next_record(reader, torn.position + 1, not_before_ms)
    if first is None:
        return 0, None
    items = columns_past_damage(reader, first)
    return sum(len(item) for item in items if isinstance(item, RecordColumns)), first


def quarantine(end: LogEnd, report: dict[str, Any]) -> Path:
    """Copies the bytes after the end to a folder of their own, with a report; returns it."""
    pieces = ((base + position, chunk) for base, position, chunk in _bytes_behind(end))
    folder = keep_bytes(end.root, end.offset, pieces, report)
    details = fields(offset=end.offset, why=report["why"], kept_in=folder)
    log.warning("log cut", extra=details)
    return folder


def zero_behind(end: LogEnd) -> None:
    """So that no stale record revives when the log grows up to it."""
    for base, position, chunk in _bytes_behind(end):
        descriptor = disk.open_file(end.path(base))
        try:
            disk.write_all(descriptor, bytes(len(chunk)), position)
            disk.sync(descriptor)
        finally:
            os.close(descriptor)


def drop_segments_behind(end: LogEnd) -> None:
    """Segments wholly after the end: prepared ones that were never used, or cut ones."""
    later = [base for base in segment_bases(end.root) if base >= end.offset and base > 0]
    # From the last one on, and each durably: a gap would be damage to a start after a kill or a
    # power loss in the middle.
    for base in reversed(later):
        disk.unlink(end.path(base))
        disk.sync_dir(end.folder)


def make_tail_durable(end: LogEnd, rewrite_from: int, sync_from: int) -> None:
    """Rewrites [rewrite_from, end) and syncs every segment that reaches above `sync_from`.

    After a failed flush the page cache may hold clean pages that the disk never got, and a second
    sync alone would lie.
    """
    for base in segment_bases(end.root):
        if base + end.segment_bytes <= sync_from:
            continue
        descriptor = disk.open_file(end.path(base))
        try:
            position = max(rewrite_from - base, 0)
            stop = min(end.offset - base, end.segment_bytes)
            while position < stop:
                chunk = os.pread(descriptor, min(_COPY_BYTES, stop - position), position)
                disk.write_all(descriptor, chunk, position)
                position += len(chunk)
            disk.sync(descriptor)
        finally:
            os.close(descriptor)
    if end.folder.is_dir():
        disk.sync_dir(end.folder)
