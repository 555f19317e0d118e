"""The work of publications on the disk besides appending, one job at a time in their own thread.

Every job may be done again from its begin after a kill. Staged records are read in their order: as
chunks to append, or as marks to find them in the log.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.shortage import refusal_for
from node.runtime.store_paths import held_open, open_regular
from node.store import staging_files as files
from node.store.checkpoints import remove_unfinished
from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList, list_folder
from node.writer.staging import stages
from protocol.errors import MqError, NotFound, StoreDamaged
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


@dataclass(slots=True)
class StagingJob:
    """`work` for the thread; then the loop calls `end`, and that `then` with its result or
    `failed`.

    A sync that failed is an error of the one publication: the log is not touched here. `place` is
    named by errors that name no file.
    """

    place: Path
    work: Callable[[], Any]
    then: Callable[[Any], None] = lambda _: None
    failed: Callable[[MqError], None] = lambda _: None
    outcome: Any = None

    def run(self) -> None:
        """Does the work. Raises nothing of the disk, and none of our errors."""
        try:
            self.outcome = self.work()
        except MqError as error:
            self.outcome = error
        except OSError as error:
            where = str(error.filename or self.place)
            if error.errno in disk.PASSING:
                self.outcome = refusal_for(error, where)
            else:
                found = error.strerror or "it failed"
                self.outcome = StoreDamaged(where, 0, found, "see the disk")

    def end(self) -> None:
        (self.failed if isinstance(self.outcome, MqError) else self.then)(self.outcome)


def begin(root: Path, batch: files.StagedBatch, journal: files.Journal) -> None:
    """Makes the stages durable and verifies them, then notes that the publication begins.

    Raises NotFound, StoreDamaged, OSError; nothing has begun then.
    """
    for part in journal.parts:
        path = files.stage_path(root, batch, part.stage)
        frames = files.frames_of(path)
        check_part(path, part, frames)
        with held_open(disk.open_file(path)) as descriptor:
            disk.sync_with_length(descriptor)
            for frame in frames:
                files.read_frame(descriptor, path, frame)
    folder = files.batch_dir(root, batch)
    disk.make_dir(folder)
    # Every name before the journal's: a journal without its stages could never be resumed.
    above = files.staging_dir(root)
    for place in (folder, folder.parent, above, above.parent):
        disk.sync_dir(place)
    files.save_journal(root, batch, journal)


def resume(
    root: Path, batch: files.StagedBatch, end: int
) -> tuple[files.Journal, files.BatchPosition]:
    """How far a publication had come before the writer ended; `end` is the log's.

    Raises StoreDamaged, NotFound: nobody may guess.
    """
    journal = files.load_journal(root, batch)
    return journal, position_in_log(root, batch, journal, end)


def record_published(root: Path, batch: files.StagedBatch, published: files.Published) -> int:
    """Remembers the batch as published, durably, then forgets it; returns the freed bytes.

    Raises OSError; it is published all the same, and the next start records it.
    """
    disk.make_durable_dir(files.query_dir(root, batch.query))
    files.save_published(root, batch.query, published)
    return forget_batch(root, batch)


def forget_batch(root: Path, batch: files.StagedBatch) -> int:
    """Removes journal and stages, those of failed tasks too; returns the bytes of the stages."""
    folder = files.batch_dir(root, batch)
    if not folder.is_dir():
        return 0
    size = files.staged_bytes(folder)
    disk.unlink(files.journal_path(root, batch), missing_ok=True)
    disk.remove_tree(folder)
    return size


def make_room(
    root: Path,
    wanted: Callable[[], int],
    limit_ms: int,
    begun: frozenset[files.StagedBatch],
) -> list[files.StagedBatch] | None:
    """Empties the trash, and removes what a killed rebuild has left in the store. If that is
    enough it returns None; else the abandoned batches that are to go, the oldest first.

    `wanted` returns how many bytes the disk lacks. Raises OSError.
    """
    files.sweep(root)
    remove_unfinished(root)
    missing = wanted()
    if missing <= 0:
        return None
    idle = stages.find_idle(root, limit_ms)
    return stages.first_to_go([one for one in idle if one.batch not in begun], missing)


def sweep(root: Path, limit_ms: int) -> stages.Old:
    """Empties the trash, and looks for what nobody asks for any more."""
    files.sweep(root)
    return stages.find_old(root, limit_ms)


class StagedRecords:
    """The records of a batch from a position on. Holds one file open; `close` it."""

    def __init__(
        self,
        root: Path,
        batch: files.StagedBatch,
        parts: tuple[files.StageSummary, ...],
        start: files.BatchPosition,
    ) -> None:
        self.position = start
        self._root = root
        self._batch = batch
        self._parts = parts
        self._descriptor = -1
        self._frames: list[files.Frame] = []
        self._skip = 0
        """Records of the next frame that are before the position."""
        self._data = b""
        self._at = 0

    def next_chunk(self, bytes_max: int) -> tuple[bytes, int]:
        """The next records to append together, and how many; one at least, none after the last.
        `position` is then after them.

        Raises StoreDamaged where a stage is not what it was when the publication began.
        """
        while self._at == len(self._data):
            if not self._next_frame():
                return b"", 0
        start, count = self._at, 0
        while self._at < len(self._data):
            size = int.from_bytes(self._data[self._at : self._at + 4], "big")
            if count and self._at + size - start > bytes_max:
                break
            self._at += size
            count += 1
        part, record = self.position
        self.position = files.BatchPosition(part, record + count)
        return self._data[start : self._at], count

    def _next_frame(self) -> bool:
        while not self._frames:
            if self._descriptor >= 0:
                self.close()
                self.position = files.BatchPosition(self.position.part + 1, 0)
            if self.position.part >= len(self._parts):
                return False
            self._open(self._parts[self.position.part], self.position.record)
        frame = self._frames.pop(0)
        path = files.stage_path(self._root, self._batch, self._parts[self.position.part].stage)
        self._data = files.read_frame(self._descriptor, path, frame)
        self._at, self._skip = _behind(self._data, self._skip), 0
        return True

    def _open(self, part: files.StageSummary, record: int) -> None:
        """Opens a stage at one of its records."""
        path = files.stage_path(self._root, self._batch, part.stage)
        frames = files.frames_of(path)
        check_part(path, part, frames)
        while frames and frames[0].records <= record:
            record -= frames.pop(0).records
        self._frames, self._skip = frames, record
        self._descriptor = open_regular(path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _behind(data: bytes, records: int) -> int:
    """Where the record starts that has `records` before it."""
    at = 0
    for _ in range(records):
        at += int.from_bytes(data[at : at + 4], "big")
    return at


def check_part(path: Path, part: files.StageSummary, frames: list[files.Frame]) -> None:
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


def position_in_log(
    root: Path, batch: files.StagedBatch, journal: files.Journal, end: int
) -> files.BatchPosition:
    """How far an interrupted publication had come, where the log ends at `end` now.

    Walks the log from the journal's offset, which is durable: no recovery can have cut it below.
    This batch's records are there in their order, with records of others between. A record is the
    staged one if they agree in all that the node does not fill in; unique keys make it the only
    one. The batch goes on after the last record that is found. Raises StoreDamaged, NotFound.
    """
    records = StagedRecords(root, batch, journal.parts, journal.position)
    with closing(OpenFiles()) as opened, closing(records) as staged:
        listing = list_folder(root / COMMIT_LOG_DIR)
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, opened)
        if not segments.start <= journal.offset <= end:
            raise _unknown(root, journal.offset, f"the log is [{segments.start}, {end}) now")
        reader = LogReader(segments, Bounds(segments.start, end))
        ahead = _Ahead(staged)
        for columns in reader.columns(journal.offset, end):
            ahead.look_at(records_of(columns))
        if reader.stopped is not None:
            raise _unknown(root, reader.stopped.position, reader.stopped.why)
        return ahead.position


def records_of(columns: RecordColumns) -> Iterator[bytes]:
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
        self._behind: dict[bytes, list[tuple[int, files.BatchPosition]]] = {}
        self._passed = 0
        self._read = 0
        self._fill()

    def _fill(self) -> None:
        while self._read - self._passed < AHEAD_MAX:
            data, count = self._staged.next_chunk(1)
            if not count:
                return
            place = self._read, self._staged.position
            self._behind.setdefault(mark(data), []).append(place)
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
