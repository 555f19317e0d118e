"""Our copy of a master's log: put together from frames, then written, published and flushed.

Frames cut records anywhere. Bytes become part of our log only as whole records, each verified, so
that its end is always the end of a record. Of the blank that closes a segment, RocketMQ sends all
bytes; its head is handed out last: until then the segment does not end there.

Bytes go to the log with the writer's own means, at the offsets that they have at the master. An
empty replica's first segment begins where the master's log does, and is as long as the master's.
"""

import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from keelog.replication.replica.comparison import OtherSegments, WrongRecord
from keelog.replication.replica.master_link import MasterFacts
from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.settings import SYNC_FLUSH, Settings
from node.runtime.wakeup import Waiters
from node.store.log.segments import list_folder
from node.writer.log import commit_log, flush
from node.writer.recovery import LogEnd, TailNotes, has_bytes_behind
from node.writer.store import WriterStore
from protocol.names import COMMIT_LOG_DIR
from protocol.record.codec import FILLER_BYTES, Filler, Torn
from protocol.record.columns import RecordColumns, scan

log = logging.getLogger("keelog.replica")

RECORD_BYTES_MAX = 64 * 1024 * 1024
"""A larger record of a master is refused: so much waits in memory at most. RocketMQ allows 4 MiB,
unless its maxMessageSize says otherwise."""
_SIZE_BYTES = 4
_COPY_BYTES = 1 << 20

_FIRST_BYTE = b"\0"
"""Of every log: the top of a record's length."""


class WholeRecords(NamedTuple):
    """Verified records that lie back to back from `offset` on, in one segment."""

    offset: int
    data: bytes
    columns: RecordColumns


class BlankRest(NamedTuple):
    """Bytes of a blank after its head, which do not belong to the log yet."""

    offset: int
    data: bytes


class BlankHead(NamedTuple):
    """The head of a blank, of which all other bytes came before: the segment ends."""

    offset: int
    data: bytes


Piece = WholeRecords | BlankRest | BlankHead


class LogAssembler:
    """Takes a master's bytes from log offset `start` on, where a record begins. `known`: bytes from
    there on that need not be sent."""

    def __init__(self, start: int, segment_bytes: int, known: bytes = b"") -> None:
        self._at = start
        self._segment_bytes = segment_bytes
        self._pending = bytearray(known)
        self._blank: BlankHead | None = None
        self._blank_end = 0

    @property
    def wanted(self) -> int:
        """The log offset of the next byte that is needed."""
        return self._at + len(self._pending)

    def feed(self, body: bytes | memoryview) -> None:
        """Takes the bytes at `wanted`."""
        self._pending += body

    def take(self) -> Iterator[Piece]:
        """What is whole by now. Raises FollowStopped for what cannot be of a log like ours."""
        while self._pending or self._blank is not None:
            if self._blank is not None:
                if self._at < self._blank_end and not self._pending:
                    return
                yield from self._take_blank(self._blank)
                continue
            data = bytes(self._pending[: self._left])
            found = scan(data, self._at)
            if found.end:
                yield WholeRecords(self._at, data[: found.end], found.columns)
                self._advance(found.end)
            if isinstance(found.stop, Filler):
                self._begin_blank(found.stop.size)
            elif found.stop is not None:
                self._check_cut(found.stop)
                return

    @property
    def _left(self) -> int:
        return self._segment_bytes - self._at % self._segment_bytes

    def _advance(self, size: int) -> None:
        self._at += size
        del self._pending[:size]

    def _begin_blank(self, size: int) -> None:
        if size != self._left:
            length = f"{self._at + size} bytes" if not self._at // self._segment_bytes else "more"
            raise OtherSegments(
                f"the master's segment ends {size} bytes after offset {self._at}, ours "
                f"{self._left} bytes after it",
                "follow with an empty directory and -X store.mapped_file_size_commit_log set to the"
                f" master's mappedFileSizeCommitLog ({length})",
            )
        self._blank = BlankHead(self._at, bytes(self._pending[:FILLER_BYTES]))
        self._blank_end = self._at + size
        self._advance(FILLER_BYTES)

    def _take_blank(self, blank: BlankHead) -> Iterator[Piece]:
        data = bytes(self._pending[: self._blank_end - self._at])
        if data:
            rest = BlankRest(self._at, data)
            self._advance(len(data))
            yield rest
        if self._at == self._blank_end:
            self._blank = None
            yield blank

    def _check_cut(self, torn: Torn) -> None:
        """Raises FollowStopped unless more bytes may make a record of what is here."""
        at = self._at
        if torn.kind != "cut":
            raise WrongRecord(
                f"the master sent no record for offset {at}: {torn.why}",
                "at the master: keelog store verify DIR --deep, and mend it by: keelog store repair"
                " DIR; then start this node again",
            )
        if len(self._pending) < FILLER_BYTES:
            if len(self._pending) >= self._left:
                raise OtherSegments(f"a record begins {self._left} bytes before a segment's end")
            return
        size = int.from_bytes(self._pending[:_SIZE_BYTES], "big")
        if size > self._left:
            raise OtherSegments(
                f"the record at offset {at} has {size} bytes, and {self._left} are left in the "
                "segment: the master's segments are longer",
                "follow with an empty directory and -X store.mapped_file_size_commit_log set to the"
                " master's mappedFileSizeCommitLog",
            )
        if size > RECORD_BYTES_MAX:
            raise WrongRecord(
                f"the record at offset {at} has {size} bytes, {RECORD_BYTES_MAX} are allowed"
            )


class LogCopy:
    """The log of an open store, whose end is always that of a whole record or a segment. All
    methods are for one thread. OSErrors of the disk end the process, as in the writer."""

    def __init__(self, store: WriterStore, workers: Waiters, now: float) -> None:
        self.store = store
        self._workers = workers
        self._notes = TailNotes(store.placement.tails, store.removed)
        self.settle = self._notes.settle
        """Brings the queues' ends up to date."""
        self.flushing = flush.FlushServices(store.log, store.settings, now, store.after_flush)
        self._has_rest = False
        """Whether a blank's bytes other than zeros were written after the end."""

    @property
    def end(self) -> int:
        return self.store.log.end

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever copied."""
        return self.end == self.store.min_offset and not self.store.placement.tails

    @property
    def last_store_ms(self) -> int:
        """The store time of the newest record."""
        return self.store.placement.last_store_timestamp

    def assembler(self, starts_at_zero: bool) -> LogAssembler:
        """For what follows the end. `starts_at_zero`: the report said that byte 0 is here."""
        known = _FIRST_BYTE if starts_at_zero else b""
        return LogAssembler(self.end, self.store.log.segment_bytes, known)

    def write(self, piece: Piece) -> None:
        """Appends a piece, and publishes it where it ends a record. Raises ServiceNotAvailable,
        with nothing written, without room for the next segment."""
        log = self.store.log
        log.turn_over()
        match piece:
            case WholeRecords(data=data, columns=columns):
                self._notes.add(columns)
                last = int(columns.physical_offset[-1]) - piece.offset
                time_ms = max(self.last_store_ms, int(columns.store_timestamp.max()))
                self.store.placement.write(data, len(columns), last, time_ms)
            case BlankRest(offset=offset, data=data):
                # The bytes after our end are zeros already.
                if data.strip(_FIRST_BYTE):
                    log.write_after_end(data, offset)
                    self._has_rest = True
                return
            case BlankHead(data=head):
                if self._has_rest:
                    # A power loss must not leave the segment closed without them.
                    log.sync_current()
                    self._has_rest = False
                log.close_segment(head)
        self._publish()

    def _publish(self) -> None:
        store = self.store
        store.page.show_append(store.placement.records, store.log.end)
        self._workers.wake(store.epoch, store.log.end)
        store.snapshot_if_due(self.settle)

    def take_flushed(self, now: float) -> None:
        """Takes in a flush that ended."""
        moved = self.flushing.collect(now)
        if moved.flushed is not None:
            self.store.flushed_to(moved.flushed)

    def flush(self, now: float) -> None:
        """Begins a flush where there is something."""
        self.flushing.begin(now, is_waited_for=True)

    @property
    def flushed(self) -> int:
        """Up to here the log is on the disk."""
        return self.flushing.flushed

    def overlap_start(self, wanted_bytes: int) -> int:
        """Where a comparison with the master begins: `wanted_bytes` before the end, or with the
        last record where that is longer."""
        last = self.store.placement.last_record_offset or self.end
        start = min(self.end - wanted_bytes, last)
        return max(start, self.store.min_offset)

    def read(self, start: int, stop: int) -> bytes:
        """Our bytes in [start, stop), blanks included. Raises OSError."""
        begin = LogEnd(self.store.root, start, self.store.log.segment_bytes)
        return b"".join(data for _, data in log_bytes(begin, stop))

    def close(self) -> None:
        self.flushing.close()


def log_bytes(begin: LogEnd, stop: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a log in [begin, stop), of all kinds, by (offset, bytes). Raises OSError."""
    at = begin.offset
    while at < stop:
        base = at - at % begin.segment_bytes
        size = min(_COPY_BYTES, stop - at, base + begin.segment_bytes - at)
        descriptor = os.open(begin.path(base), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield at, os.pread(descriptor, size, at - base)
        finally:
            os.close(descriptor)
        at += size


def settings_of_copy(settings: Settings) -> Settings:
    """A replica's log as it is: each flush is waited for, and no append waits in memory."""
    return replace(
        settings, flush_disk_type=SYNC_FLUSH, transient_store_pool_enable=False, idempotent_window=0
    )


def has_log(root: Path) -> bool:
    """Whether any byte of a log was ever written here."""
    listing = list_folder(root / COMMIT_LOG_DIR)
    if not listing.files:
        return bool(listing.problems)
    end = LogEnd(root, listing.files[0][0], listing.file_bytes)
    return bool(listing.problems) or has_bytes_behind(end)


def begin_as_master(root: Path, facts: MasterFacts, usual_bytes: int) -> None:
    """Replaces the unused segments of an empty log by one that suits the master's. `usual_bytes`:
    the length of segments where the master does not say it. The caller holds the store's lock, and
    has looked that the log is empty. Raises ServiceNotAvailable, OSError."""
    wanted = facts.segment_bytes or usual_bytes
    listing = list_folder(root / COMMIT_LOG_DIR)
    if listing.files and (listing.files[0][0], listing.file_bytes) == (facts.begin, wanted):
        return
    for _, path in reversed(listing.files):
        disk.unlink(path)
    disk.sync_dir(root / COMMIT_LOG_DIR)
    os.close(commit_log.make_segment(root, facts.begin, wanted).descriptor)
    log.info("log begun as the master's", extra=fields(offset=facts.begin, segment_bytes=wanted))
