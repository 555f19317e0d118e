"""When the log is flushed, and the thread that does it.

`due` decides, purely; `Flusher` runs one flush at a time through `os.fdatasync`, which releases
the GIL (`mmap.flush` does not), and wakes the writer's poll through an eventfd. The first error is
the last: a second sync after an error can lie.
"""

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from node.commit_log import FlushJob
from node.store.settings import Settings

PAGE_BYTES = 4096


@dataclass(slots=True)
class FlushState:
    """What `due` looks at. Times in seconds of one clock, offsets in the log."""

    appended: int
    flushed: int
    last_flush_at: float
    last_thorough_at: float
    waiting: bool = False
    """Whether somebody waits for a flush (SYNC_FLUSH, or `wait: flushed`)."""


def due(state: FlushState, now: float, settings: Settings) -> bool:
    """Whether a flush should start now (CommitLog.FlushRealTimeService, GroupCommitService)."""
    if state.appended == state.flushed:
        return False
    if state.waiting or settings.is_sync_flush:
        return True
    if now - state.last_thorough_at >= settings.flush_commit_log_thorough_interval / 1000:
        return True
    if now - state.last_flush_at < settings.flush_interval_commit_log / 1000:
        return False
    pages = state.appended // PAGE_BYTES - state.flushed // PAGE_BYTES
    return pages >= settings.flush_commit_log_least_pages


class Flusher:
    """One thread that runs flush jobs. All methods are for the writer's own thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._job: FlushJob | None = None
        self._after: Callable[[], None] | None = None
        self._done: FlushJob | None = None
        self._error: OSError | None = None
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="flush")
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits to be collected."""
        with self._wake:
            return self._job is not None or self._done is not None

    def start(self, job: FlushJob, after: Callable[[], None] | None = None) -> None:
        """Begins a job; `after` runs in the thread when the sync has succeeded."""
        with self._wake:
            assert self._job is None
            self._job, self._after = job, after
            self._wake.notify()

    def collect(self) -> FlushJob | None:
        """The finished job, once. Raises the OSError that ended it."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        with self._wake:
            done, self._done = self._done, None
            if self._error is not None:
                raise self._error
            return done

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._job is None and not self._stopping:
                    self._wake.wait()
                if self._job is None:
                    return
                job, after = self._job, self._after
            try:
                job.run()
                if after is not None:
                    after()
                error = None
            except OSError as caught:
                error = caught
            with self._wake:
                self._job, self._done, self._error = None, job, error
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Ends the thread when its job is done."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        os.close(self.fd)
