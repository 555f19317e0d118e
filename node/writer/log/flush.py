"""How the log gets to the disk: what commits and flushes it, and the threads that do it.

`node/runtime/service_loop.py` decides when, purely. A `JobThread` runs one job at a time; a flush
is `os.fdatasync`, which releases the GIL (`mmap.flush` does not). The first error is the last: a
second sync after an error can lie.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, NamedTuple, Protocol, TypeVar

from node.runtime.process import now_ms
from node.runtime.service_loop import ServiceLoop, commit_pace, due, flush_pace
from node.runtime.settings import Settings
from node.writer.log.commit_log import CommitJob, CommitLog, FlushJob
from protocol.errors import StoreMoved


class PeriodicJob(Protocol):
    """A job that a `JobThread` runs."""

    def run(self) -> None:
        """Raises the OSError that ends the process."""


AnyJob = TypeVar("AnyJob", bound=PeriodicJob)


class JobThread(Generic[AnyJob]):
    """One thread, one job at a time. All methods are for the writer's own thread.

    `fd` becomes readable when a job has ended: an eventfd for the writer's poll. `may_be_left`: the
    end of the process waits for no job.

    The threads share no lock: one that is woken while the other holds it goes to sleep again, and
    each flush would pay for that. So the thread is woken by one call, and notes that it has ended
    before it wakes the writer.
    """

    def __init__(
        self, name: str, may_be_left: bool = False, note_end: Callable[[], None] = lambda: None
    ) -> None:
        """`note_end` is called in the thread when `collect` has something."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._ready = select.poll()
        self._ready.register(self.fd, select.POLLIN)
        self._begun: SimpleQueue[tuple[AnyJob, Callable[[], None] | None] | None] = SimpleQueue()
        self._job: AnyJob | None = None
        self._error: OSError | StoreMoved | None = None
        self._note_end = note_end
        self._ended = False
        """So that `collect` asks the system nothing while a job runs."""
        self.took_ns = 0
        """How long the last job ran."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=may_be_left)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a job runs or waits to be collected."""
        return self._job is not None

    def start(self, job: AnyJob, after: Callable[[], None] | None = None) -> None:
        """Begins a job; `after` runs in the thread when it has succeeded."""
        assert self._job is None
        self._job = job
        self._begun.put((job, after))

    def collect(self) -> AnyJob | None:
        """The finished job, once. Raises the OSError or StoreMoved that ended it."""
        if not self._ended:
            return None
        if self._error is not None:
            raise self._error
        os.eventfd_read(self.fd)  # The thread writes it in this moment, or has done so.
        self._ended = False
        done, self._job = self._job, None
        return done

    def wait(self) -> None:
        """Until no job runs."""
        if self._job is not None:
            self._ready.poll()

    def _run(self) -> None:
        while (begun := self._begun.get()) is not None:
            job, after = begun
            began = time.monotonic_ns()
            try:
                job.run()
                took = time.monotonic_ns() - began
                if after is not None:
                    after()
                error = None
            except (OSError, StoreMoved) as caught:
                error, took = caught, 0
            self.took_ns, self._error = took, error
            self._ended = True
            self._note_end()
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Ends the thread when its job is done."""
        self._begun.put(None)
        self._thread.join()
        os.close(self.fd)


class Moved(NamedTuple):
    """Log offsets that were reached since the last look; None where nothing has moved."""

    committed: int | None = None
    flushed: int | None = None
    flush_ns: int = 0
    """How long that flush took."""


class FlushServices:
    """Commits and flushes one log as its flush mode says.

    SYNC_FLUSH: whenever there is something (GroupCommitService); what comes during a flush shares
    the next one. ASYNC_FLUSH: FlushRealTimeService; with a pool CommitRealTimeService before it.
    """

    def __init__(
        self,
        log: CommitLog,
        settings: Settings,
        now: float,
        after_flush: Callable[[int], Callable[[], None]],
    ) -> None:
        """`after_flush(target)` makes what the flush thread does after the sync up to `target`."""
        self.flushed = log.end
        self.flush_began_ms = 0
        """When the flush that is under way began; 0 while there is none."""
        self._log = log
        self._after_flush = after_flush
        self._flushes_at_once = settings.is_sync_flush
        self._wakes_commit = settings.wake_commit_when_put_message
        self._wakes_flush = settings.wake_flush_when_put_message
        self._commit_loop = ServiceLoop(commit_pace(settings), now, now)
        self._flush_loop = ServiceLoop(flush_pace(settings), now, now)
        self.has_ended = False
        """Whether `collect` has something: a job thread sets it."""
        self._flusher: JobThread[FlushJob] = JobThread("flush", note_end=self._note_end)
        self._committer: JobThread[CommitJob] | None = None
        self.is_hasty = (
            settings.is_sync_flush or log.pool is not None or self._flush_loop.pace.wakes
        )
        """Whether an append may make something due at once."""
        if log.pool is not None:
            self._committer = JobThread("commit", note_end=self._note_end)

    def _note_end(self) -> None:
        self.has_ended = True

    @property
    def fds(self) -> list[int]:
        """Descriptors that are readable when `collect` has a result."""
        return [thread.fd for thread in (self._flusher, self._committer) if thread is not None]

    @property
    def is_done(self) -> bool:
        """Whether everything that was appended is flushed."""
        return self.flushed == self._log.end

    @property
    def turns_at(self) -> float:
        """When `begin` is to be called again, on the clock of its `now`.

        A job that ends before makes one of `fds` readable.
        """
        if self.is_done:
            return float("inf")
        if self._committer is None:
            return self._flush_loop.turns_at
        return min(self._flush_loop.turns_at, self._commit_loop.turns_at)

    def wake(self) -> None:
        """Something was appended (handleDiskFlush)."""
        if self._log.pool is not None:
            if self._wakes_commit:
                self._commit_loop.wake()
        elif self._wakes_flush:
            self._flush_loop.wake()

    def begin(self, now: float, is_waited_for: bool, is_followed: bool = False) -> None:
        """Starts the commit and the flush that are due; both are when a request waits for them.

        `is_followed`: followers get what is flushed, so each turn flushes whatever there is."""
        log, size = self._log, self._log.segment_bytes
        if self._committer is not None and not self._committer.is_busy:
            least = 0 if is_waited_for else self._commit_loop.turn(now)
            if least is not None and due(log.committed, log.end, least, size):
                self._committer.start(log.commit_job())
        if not self._flusher.is_busy:
            at_once = is_waited_for or self._flushes_at_once
            least = 0 if at_once else self._flush_loop.turn(now)
            if least and is_followed:
                least = 0
            if least is not None and due(self.flushed, log.committed, least, size):
                job = log.flush_job()
                self.flush_began_ms = now_ms()
                self._flusher.start(job, self._after_flush(job.target))

    def collect(self, now: float) -> Moved:
        """Takes the results of jobs that ended. Raises a job's OSError: the process must end."""
        self.has_ended = False  # before the look: what ends now is noted again
        committed = self._committer.collect() if self._committer is not None else None
        if committed is not None:
            self._log.committed_to(committed)
            self._commit_loop.turned_at = self._commit_loop.thorough_at = now
            self._flush_loop.wake()
        flushed = self._flusher.collect()
        if flushed is not None:
            self.flushed, self.flush_began_ms = flushed.target, 0
            self._flush_loop.turned_at = now
        return Moved(
            None if committed is None else committed.target,
            None if flushed is None else flushed.target,
            self._flusher.took_ns,
        )

    def wait_for_buffer(self, size: int, now: float) -> Moved:
        """Commits until the pool has room for `size` bytes. Raises OSError."""
        if self._committer is None or self._log.pool is None or self._log.pool.fits(size):
            return Moved()
        self._committer.wait()
        moved = self.collect(now)
        return moved if self._log.pool.fits(size) else self._commit(moved)

    def _commit(self, moved: Moved) -> Moved:
        job = self._log.commit_job()
        job.run()
        self._log.committed_to(job)
        return moved._replace(committed=job.target)

    def flush_all(self, now: float) -> Moved:
        """Commits and flushes everything that was appended, and waits for it. Raises OSError."""
        if self._committer is not None:
            self._committer.wait()
        self._flusher.wait()
        moved, log = self.collect(now), self._log
        if log.committed < log.end:
            moved = self._commit(moved)
        if self.flushed < log.end:
            flush = log.flush_job()
            after, began = self._after_flush(flush.target), time.monotonic_ns()
            flush.run()
            moved = Moved(moved.committed, flush.target, time.monotonic_ns() - began)
            after()
            self.flushed = flush.target
        return moved

    def close(self) -> None:
        self._flusher.close()
        if self._committer is not None:
            self._committer.close()
