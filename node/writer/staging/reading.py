"""Reads staged records in their order: as chunks to append, or as marks to find them in the log."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from node.runtime.store_paths import open_regular
from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList, list_folder
from node.store.staging_files import (
    BatchPosition,
    Frame,
    Journal,
    StagedBatch,
    StageSummary,
    frames_of,
    read_frame,
    stage_path,
)
from protocol.errors import NotFound, StoreDamaged
from protocol.names import COMMIT_LOG_DIR
from protocol.record.codec import BORN_HOST_V6, SHORT_HEAD, has_crc_property
from protocol.record.columns import RecordColumns
from protocol.record.properties import CRC_DIGITS

AHEAD_MAX = 4_096
"""How many staged records are looked for in the log at once: a damaged one may be missing there."""
_QUEUE_OFFSET_AT = SHORT_HEAD.offsets["queue_offset"]
_SYS_FLAG_AT = SHORT_HEAD.offsets["sys_flag"]
_STORE_TIME_AT = SHORT_HEAD.offsets["store_timestamp"]
_V6_EXTRA_BYTES = 12
_STORE_BYTES = 16
"""Store time, store host and port."""
_MARK_BYTES = 16


class Chunk(NamedTuple):
    """Records to append together; `following` is where the next chunk begins."""

    data: bytes
    records: int
    following: BatchPosition


class StagedRecords:
    """The records of a batch from a position on. Holds one file open; `close` it."""

    def __init__(
        self, root: Path, batch: StagedBatch, parts: tuple[StageSummary, ...], start: BatchPosition
    ) -> None:
        self.position = start
        self._root = root
        self._batch = batch
        self._parts = parts
        self._descriptor = -1
        self._frames: list[Frame] = []
        self._skip = 0
        """Records of the next frame that are before the position."""
        self._data = b""
        self._at = 0

    def next_chunk(self, bytes_max: int) -> Chunk | None:
        """The next records, one at least; None after the last.

        Raises StoreDamaged where a stage is not what it was when the publication began.
        """
        while self._at == len(self._data):
            if not self._next_frame():
                return None
        start, count = self._at, 0
        while self._at < len(self._data):
            size = int.from_bytes(self._data[self._at : self._at + 4], "big")
            if count and self._at + size - start > bytes_max:
                break
            self._at += size
            count += 1
        part, record = self.position
        self.position = BatchPosition(part, record + count)
        return Chunk(self._data[start : self._at], count, self.position)

    def _next_frame(self) -> bool:
        while not self._frames:
            if self._descriptor >= 0:
                self.close()
                self.position = BatchPosition(self.position.part + 1, 0)
            if self.position.part >= len(self._parts):
                return False
            self._open(self._parts[self.position.part], self.position.record)
        frame = self._frames.pop(0)
        path = stage_path(self._root, self._batch, self._parts[self.position.part].stage)
        self._data = read_frame(self._descriptor, path, frame)
        self._at, self._skip = _behind(self._data, self._skip), 0
        return True

    def _open(self, part: StageSummary, record: int) -> None:
        """Opens a stage at one of its records."""
        path = stage_path(self._root, self._batch, part.stage)
        frames = frames_of(path)
        check_part(path, part, frames)
        while frames and frames[0].records <= record:
            record -= frames.pop(0).records
        self._frames, self._skip = frames, record
        self._descriptor = open_regular(path)

    def close(self) -> None:
        """Closes the open file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _behind(data: bytes, records: int) -> int:
    """Where the record starts that has `records` before it."""
    at = 0
    for _ in range(records):
        at += int.from_bytes(data[at : at + 4], "big")
    return at


def check_part(path: Path, part: StageSummary, frames: list[Frame]) -> None:
    """Raises NotFound unless a stage holds exactly what its publisher says."""
    found = len(frames), sum(one.records for one in frames), sum(one.bytes for one in frames)
    if found != part[1:]:
        raise NotFound(
            f"stage {part.stage} has {found[0]} frames, {found[1]} records and {found[2]} bytes,"
            f" published are {part.frames}, {part.records} and {part.bytes}",
            "stage the batch again under other ids, then publish those",
        )


def mark(record: bytes) -> bytes:
    """A digest of a record without the fields that the node fills in when it appends it.

    Those are queue offset, log offset, store time, store host and the digits of the checksum.
    """
    wide = int.from_bytes(record[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big") & BORN_HOST_V6
    time_at = _STORE_TIME_AT + (_V6_EXTRA_BYTES if wide else 0)
    end = len(record)
    if has_crc_property(record):
        end -= CRC_DIGITS + 1
    digest = hashlib.blake2b(record[:_QUEUE_OFFSET_AT], digest_size=_MARK_BYTES)
    digest.update(record[_SYS_FLAG_AT:time_at])
    digest.update(record[time_at + _STORE_BYTES : end])
    return digest.digest()


def position_in_log(root: Path, batch: StagedBatch, journal: Journal, end: int) -> BatchPosition:
    """How far an interrupted publication had come, where the log ends at `end` now.

    Walks the log from the journal's offset, which is durable: no recovery can have cut it below.
    This batch's records are there in their order, with records of others between. A record is the
    staged one if they agree in all that the node does not fill in; unique keys make it the only
    one. The batch goes on after the last record that is found. Raises StoreDamaged, NotFound.
    """
    files = OpenFiles()
    staged = StagedRecords(root, batch, journal.parts, journal.position)
    try:
        listing = list_folder(root / COMMIT_LOG_DIR)
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, files)
        if not segments.start <= journal.offset <= end:
            raise _unknown(root, journal.offset, f"the log is [{segments.start}, {end}) now")
        reader = LogReader(segments, Bounds(segments.start, end))
        ahead = _Ahead(staged)
        for columns in reader.columns(journal.offset, end):
            ahead.look_at(records_of(columns))
        if reader.stopped is not None:
            raise _unknown(root, reader.stopped.position, reader.stopped.why)
        return ahead.position
    finally:
        staged.close()
        files.close()


def records_of(columns: RecordColumns) -> Iterator[bytes]:
    """Each record as stored."""
    view = columns.data.data
    ends = (columns.start + columns.size).tolist()
    for start, end in zip(columns.start.tolist(), ends, strict=True):
        yield bytes(view[start:end])


def _unknown(root: Path, offset: int, found: str) -> StoreDamaged:
    return StoreDamaged(
        str(root / COMMIT_LOG_DIR),
        offset,
        f"how far a batch was published cannot be known: {found}",
        "see in the topic what of the batch is there, then remove the batch from keelog/staging",
    )


class _Ahead:
    """The next staged records by their marks, and how far they were found."""

    def __init__(self, staged: StagedRecords) -> None:
        self.position = staged.position
        self._staged = staged
        self._behind: dict[bytes, list[tuple[int, BatchPosition]]] = {}
        self._passed = 0
        self._read = 0
        self._fill()

    def _fill(self) -> None:
        while self._read - self._passed < AHEAD_MAX:
            chunk = self._staged.next_chunk(1)
            if chunk is None:
                return
            self._behind.setdefault(mark(chunk.data), []).append((self._read, chunk.following))
            self._read += 1

    def look_at(self, stored: Iterable[bytes]) -> None:
        """Records of the log, in their order."""
        for record in stored:
            places = self._behind.get(mark(record))
            while places and places[0][0] < self._passed:
                places.pop(0)
            if places:
                number, self.position = places.pop(0)
                self._passed = number + 1
                if self._read - self._passed < AHEAD_MAX // 2:
                    self._forget_passed()
                    self._fill()

    def _forget_passed(self) -> None:
        self._behind = {
            key: left
            for key, places in self._behind.items()
            if (left := [place for place in places if place[0] >= self._passed])
        }
