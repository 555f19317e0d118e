"""Pages ahead of the log's end: an append then finds them in the page cache.

The first touch of a page that the kernel has never given out costs more than all else of an append,
above all on a virtual machine whose host took free memory back: 12 us a page there, 0.3 GB/s. A
thread that asks for the next pages of the segment (POSIX_FADV_WILLNEED) pays for them on another
core. It only reads: not a byte of the file changes, and nobody ever waits for it.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

from node.runtime.disk import NO_RESOURCES
from node.runtime.event_log import fields
from node.runtime.shortage import begin_if_possible

log = logging.getLogger("keelog.pages_ahead")

AHEAD_BYTES = 8 << 20
"""How far ahead of the log's end pages are asked for, and never further than the log came here."""
STEP_BYTES = 1 << 20
"""The thread looks again when the log has grown by as much."""
PIECE_BYTES = 64 << 10
"""Asked for in one call. Nothing else runs on this core during a call: pages that a host took back
would keep the writer or a client waiting for 3 ms a MiB."""
NICE = 10
"""Above that of the writer. A thread that ran only when nobody else wants to could be stopped while
it has the interpreter's lock."""
NO_DESCRIPTOR_S = 1.0
"""A pause where the segment cannot be opened because no descriptor is free."""
LEAD_BYTES = 512 << 10
"""Left to appends: where the thread is not faster than they are, each pays for a part."""


class GrowthPoint(NamedTuple):
    """A segment, and the position in it from where the log has grown."""

    path: Path
    size: int
    start: int


class PagePrefetch:
    """One segment at a time. `begin`, `claim` and `close` are for the writer's thread; positions
    count from the segment's start."""

    def __init__(self) -> None:
        self._place: GrowthPoint | None = None
        self._claimed = self._due = 0
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pages-ahead", daemon=True)

    def begin(self, path: Path, size: int, position: int) -> None:
        """Goes on in this segment, of which `position` bytes are the log's."""
        self._claimed, self._due = position, position + STEP_BYTES
        self._place = GrowthPoint(path, size, position)
        self._wake.set()

    def claim(self, stop: int) -> None:
        """Called before anything is written to the segment below `stop`."""
        self._claimed = stop
        if stop >= self._due:
            self._due = stop + STEP_BYTES
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
                    if error.errno not in NO_RESOURCES:
                        raise
                    time.sleep(NO_DESCRIPTOR_S)
        except OSError as error:
            # The log is not in danger: appends get their pages themselves.
            log.warning("no pages ahead of the log any more", extra=fields(why=error))

    def _follow(self, place: GrowthPoint) -> None:
        """Asks for pages until the log has left this segment."""
        descriptor, done = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC), place.start
        try:
            while place is self._place and not self._stopping:
                start = next_pages(place, self._claimed, done)
                if start is None:
                    self._wake.wait()
                    self._wake.clear()
                else:
                    done = start + STEP_BYTES
                    for piece in range(start, done, PIECE_BYTES):
                        os.posix_fadvise(descriptor, piece, PIECE_BYTES, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Ends the thread."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident:
            self._thread.join()


def next_pages(place: GrowthPoint, claimed: int, done: int) -> int | None:
    """Where the next STEP_BYTES to ask for begin; None when enough pages are asked for.

    The log has claimed all below `claimed`, and all below `done` was asked for.
    """
    start = max(done, claimed + LEAD_BYTES)
    ahead = min(AHEAD_BYTES, claimed - place.start)
    return start if start + STEP_BYTES <= min(claimed + ahead, place.size) else None
