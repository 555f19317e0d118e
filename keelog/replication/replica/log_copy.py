"""Our copy of a master's log: what was put together is written, published and flushed.

Bytes go to the log with the writer's own means, at the offsets that they have at the master.
"""

import os
from dataclasses import replace

from keelog.replication.replica.assembler import (
    BlankHead,
    BlankRest,
    LogAssembler,
    Piece,
    WholeRecords,
)
from node.runtime.settings import SYNC_FLUSH, Settings
from node.runtime.wakeup import Waiters
from node.writer.log.flush import FlushServices
from node.writer.recovery import TailNotes
from node.writer.store import WriterStore
from protocol.names import COMMIT_LOG_DIR, offset_file_name

_FIRST_BYTE = b"\0"
"""Of every log: the top of a record's length."""


def settings_of_copy(settings: Settings) -> Settings:
    """A replica's log as it is: each flush is waited for, and no append waits in memory."""
    return replace(
        settings,
        flush_disk_type=SYNC_FLUSH,
        transient_store_pool_enable=False,
        idempotent_window=0,
    )


class LogCopy:
    """The log of an open store, whose end is always that of a whole record or a segment.

    All methods are for one thread. OSErrors of the disk end the process, as in the writer.
    """

    def __init__(self, store: WriterStore, workers: Waiters, now: float) -> None:
        self.store = store
        self._workers = workers
        self._notes = TailNotes(store.placement.tails, store.removed)
        self.flushing = FlushServices(store.log, store.settings, now, store.after_flush)
        self._has_rest = False
        """Whether a blank's bytes other than zeros were written behind the end."""

    @property
    def end(self) -> int:
        """The end of the log."""
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
        """Appends a piece, and publishes it where it ends a record.

        Raises ServiceNotAvailable, with nothing written, without room for the next segment.
        """
        log = self.store.log
        log.turn_over()
        match piece:
            case WholeRecords(data=data, columns=columns):
                self._notes.add(columns)
                last = int(columns.physical_offset[-1]) - piece.offset
                time_ms = max(self.last_store_ms, int(columns.store_timestamp.max()))
                self.store.placement.write(data, len(columns), last, time_ms)
            case BlankRest(offset=offset, data=data):
                # The bytes behind our end are zeros already.
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

    def settle(self) -> None:
        """Brings the queues' ends up to date."""
        self._notes.settle()

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
        segment_bytes = self.store.log.segment_bytes
        parts = []
        while start < stop:
            base = start - start % segment_bytes
            until = min(stop, base + segment_bytes)
            path = self.store.root / COMMIT_LOG_DIR / offset_file_name(base)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts.append(os.pread(descriptor, until - start, start - base))
            finally:
                os.close(descriptor)
            start = until
        return b"".join(parts)

    def close(self) -> None:
        """Ends the flush thread."""
        self.flushing.close()
