"""Threads that prepare what lies ahead of the log's end: pages for appends, zeros for flushes.

The log sets `claimed` before it writes: all below is its own. Once that has come to `due` it calls
`claim` first. Positions count from the start of the segment that `begin` named last.

Pages: an append then finds them in the page cache. The first touch of a page that the kernel has
never given out costs more than all else of an append, above all on a virtual machine whose host
took free memory back: 12 us a page there, 0.3 GB/s. A thread that asks for the next pages of the
segment (POSIX_FADV_WILLNEED) pays for them on another core. It only reads: not a byte of the file
changes, and nobody ever waits for it.

Zeros: a flush then finds blocks that were written before. `posix_fallocate` gives a segment blocks
that count as unwritten. The first flush of each changes the extents of the file, which must be made
durable as well, and takes several times as long as that of bytes written over others. Where every
answer waits for a flush (SYNC_FLUSH) a thread therefore writes zeros over what comes next, and
syncs them: there were zeros before.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import begin_if_possible
from node.runtime.store_paths import held_open
from protocol.errors import StoreMoved

_log_pages = logging.getLogger("keelog.pages_ahead")
_log_zeros = logging.getLogger("keelog.zero_ahead")

PAGES_AHEAD_BYTES = 8 << 20
"""How far ahead of the log's end pages are asked for, and never further than the log came here."""
PAGES_STEP_BYTES = 1 << 20
"""The thread looks again when the log has grown by as much."""
PIECE_BYTES = 64 << 10
"""Asked for in one call. Nothing else runs on this core during a call: pages that a host took back
would keep the writer or a client waiting for 3 ms a MiB."""
NICE = 10
"""Above that of the writer. A thread that ran only when nobody else wants to could be stopped while
it has the interpreter's lock."""
RETRY_S = 1.0
"""A pause where the segment cannot be opened because no descriptor is free."""
LEAD_BYTES = 512 << 10
"""Left to appends: where the thread is not faster than they are, each pays for a part."""

ZEROS_AHEAD_BYTES = 8 << 20
"""How far ahead of the log's end zeros are written."""
ZEROS_SYNC_BYTES = 1 << 20
"""Zeros for each sync: a flush of the log waits for a sync that is under way."""
PART_BYTES = 128 << 10
"""Zeros for each write: an append that reaches a write under way waits for it."""
SEGMENT_BYTES_MIN = 64 << 20
"""Smaller segments are not worth it."""
PAGE_BYTES = 4096
IN_PLACE_FILE_SYSTEMS = frozenset({"ext4", "xfs"})
"""These overwrite a block in place. On others each overwrite takes new blocks."""
_ZEROS = bytes(PART_BYTES)


class GrowthPoint(NamedTuple):
    """A segment, and the position in it from where the log has grown."""

    path: Path
    size: int
    start: int


class PagePrefetch:
    """`begin`, `claim` and `close` are for the writer's thread."""

    def __init__(self) -> None:
        self.claimed = self.due = 0
        self._place: GrowthPoint | None = None
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pages-ahead", daemon=True)

    def begin(self, path: Path, size: int, position: int) -> None:
        """Goes on in this segment, of which `position` bytes are the log's."""
        self.claimed, self.due = position, position + PAGES_STEP_BYTES
        self._place = GrowthPoint(path, size, position)
        self._wake.set()

    def claim(self) -> None:
        """The log has grown by PAGES_STEP_BYTES."""
        self.due = self.claimed + PAGES_STEP_BYTES
        if not self._thread.ident:
            begin_if_possible(self._thread)
        self._wake.set()

    def _run(self) -> None:
        try:
            # The wake-up must not put this thread in the place of the writer, which woke it.
            os.nice(NICE)  # of this thread alone
            while not self._stopping and self._place is not None:
                try:
                    self._follow(self._place)
                except OSError as error:
                    if error.errno not in disk.NO_RESOURCES:
                        raise
                    time.sleep(RETRY_S)
        except OSError as error:
            # The log is not in danger: appends get their pages themselves.
            _log_pages.warning("no pages ahead of the log any more", extra=fields(why=error))

    def _follow(self, place: GrowthPoint) -> None:
        """Asks for pages until the log has left this segment."""
        done = place.start
        with held_open(os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            while place is self._place and not self._stopping:
                start = next_pages(place, self.claimed, done)
                if start is None:
                    self._wake.wait()
                    self._wake.clear()
                else:
                    done = start + PAGES_STEP_BYTES
                    for piece in range(start, done, PIECE_BYTES):
                        os.posix_fadvise(descriptor, piece, PIECE_BYTES, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread.ident:
            self._thread.join()


def next_pages(place: GrowthPoint, claimed: int, done: int) -> int | None:
    """Where the next PAGES_STEP_BYTES to ask for begin; None when enough pages are asked for.

    The log has claimed all below `claimed`, and all below `done` was asked for.
    """
    start = max(done, claimed + LEAD_BYTES)
    ahead = min(PAGES_AHEAD_BYTES, claimed - place.start)
    return start if start + PAGES_STEP_BYTES <= min(claimed + ahead, place.size) else None


class _Part(NamedTuple):
    """Zeros to write: a segment, and where in it."""

    path: Path
    start: int
    stop: int


class ZeroPrefill:
    """`begin`, `claim` and `close` are for the writer's thread.

    It never writes below the claimed position. `claim` waits for a write that is under way there.
    """

    def __init__(self) -> None:
        self.claimed = self.due = 0
        self._guard = threading.Condition()
        self._path: Path | None = None
        self._size = self._zeroed = 0
        self._busy: _Part | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="zero-ahead", daemon=True)

    def begin(self, path: Path, size: int, position: int) -> None:
        """Goes on in this segment, of which `position` bytes are the log's."""
        with self._guard:
            self._path, self._size = path, size
            self.claimed = self._zeroed = position
            self._guard.notify_all()
        if not self._thread.ident:
            begin_if_possible(self._thread)

    def claim(self) -> None:
        """Before each write: all below `claimed` is the caller's when it returns."""
        with self._guard:
            while (busy := self._busy) and busy.path == self._path and busy.start < self.claimed:
                self._guard.wait()
            if self._is_due():
                self._guard.notify_all()

    def _is_due(self) -> bool:
        """Whether the zeros that are missing are worth a sync."""
        return self._zeroed < min(self.claimed + ZEROS_AHEAD_BYTES - ZEROS_SYNC_BYTES, self._size)

    def _next(self, path: Path | None) -> _Part | None:
        """The next zeros to write, in the segment `path`; without one, it waits until some are due.

        None when the zeros reach far enough, at the stop, or when the log has left that segment.
        """
        with self._guard:
            while path is None and not self._stopping and not self._is_due():
                self._guard.wait()
            if self._stopping or self._path is None or (path or self._path) != self._path:
                return None
            first = -(-self.claimed // PAGE_BYTES) * PAGE_BYTES
            self._zeroed = max(self._zeroed, first)
            stop = min(self._zeroed + PART_BYTES, self.claimed + ZEROS_AHEAD_BYTES, self._size)
            if stop <= self._zeroed:
                return None
            self._busy = _Part(self._path, self._zeroed, stop)
            return self._busy

    def _end(self, part: _Part) -> None:
        with self._guard:
            if part.path == self._path:
                self._zeroed = max(self._zeroed, part.stop)
            self._busy = None
            self._guard.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._write_some()
                except OSError as error:
                    if error.errno not in disk.NO_RESOURCES:
                        raise
                    time.sleep(RETRY_S)
        except (OSError, StoreMoved) as error:
            # The log is not in danger: the flush itself, with a descriptor of its own, finds out
            # whether the disk still takes bytes.
            _log_zeros.warning("no zeros ahead of the log any more", extra=fields(why=error))

    def _write_some(self) -> None:
        """Waits for zeros to be due; writes and syncs ZEROS_SYNC_BYTES of a segment at most."""
        part = self._next(None)
        if part is None:
            return
        try:
            descriptor = disk.open_file(part.path)
        except (OSError, StoreMoved):
            self._end(part)
            raise
        with held_open(descriptor):
            written = 0
            while part is not None:
                try:
                    disk.write_all(descriptor, _ZEROS[: part.stop - part.start], part.start)
                finally:
                    self._end(part)
                written += PART_BYTES
                part = self._next(part.path) if written < ZEROS_SYNC_BYTES else None
            disk.sync(descriptor)

    def close(self) -> None:
        with self._guard:
            self._stopping = True
            self._guard.notify_all()
        if self._thread.ident:
            self._thread.join()


def make_ahead(
    root: Path, segment_bytes: int, settings: Settings
) -> PagePrefetch | ZeroPrefill | None:
    """What suits the flush mode of a store; None where it would not help."""
    if not settings.is_sync_flush:
        return None if settings.is_pool_enabled else PagePrefetch()
    is_large = segment_bytes >= SEGMENT_BYTES_MIN
    is_in_place = disk.file_system(root.stat()) in IN_PLACE_FILE_SYSTEMS
    return ZeroPrefill() if is_large and is_in_place else None
