"""Decides when something is committed or flushed: RocketMQ's service loops, without a clock.

Its CommitRealTimeService, FlushRealTimeService and FlushConsumeQueueService are one loop. It turns
once an interval, and acts if enough pages are dirty; once a thorough interval a byte is enough.
"""

from dataclasses import dataclass

from node.runtime.settings import Settings

PAGE_BYTES = 4096
"""OS_PAGE_SIZE of MappedFile."""


@dataclass(frozen=True, slots=True)
class LoopPace:
    """How often a loop turns and what makes it act; times in seconds."""

    interval_s: float
    least_pages: int
    thorough_s: float
    wakes: bool = False
    """Whether `ServiceLoop.wake` ends the interval early."""


def commit_pace(settings: Settings) -> LoopPace:
    """From the buffer into the segment (CommitRealTimeService)."""
    return LoopPace(
        settings.commit_interval_commit_log / 1000,
        settings.commit_commit_log_least_pages,
        settings.commit_commit_log_thorough_interval / 1000,
        wakes=True,
    )


def flush_pace(settings: Settings) -> LoopPace:
    """The log in ASYNC_FLUSH (FlushRealTimeService): timed, it sleeps its interval out."""
    return LoopPace(
        settings.flush_interval_commit_log / 1000,
        settings.flush_commit_log_least_pages,
        settings.flush_commit_log_thorough_interval / 1000,
        wakes=not settings.flush_commit_log_timed,
    )


def queue_pace(settings: Settings) -> LoopPace:
    """Queue files (FlushConsumeQueueService)."""
    return LoopPace(
        settings.flush_interval_consume_queue / 1000,
        settings.flush_consume_queue_least_pages,
        settings.flush_consume_queue_thorough_interval / 1000,
    )


def index_pace(settings: Settings) -> LoopPace:
    """Index files. RocketMQ flushes one when it is full; ours has to, to save its progress."""
    return LoopPace(settings.flush_interval_consume_queue / 1000, 0, 0)


@dataclass(slots=True)
class ServiceLoop:
    """One loop: its last turn, and its last turn that took everything, in seconds of one clock."""

    pace: LoopPace
    turned_at: float
    thorough_at: float
    woken: bool = False

    def wake(self) -> None:
        """Makes the next turn come early; remembered until then, as ServiceThread does."""
        self.woken = True

    @property
    def turns_at(self) -> float:
        """When the next turn is due."""
        return self.turned_at + (0.0 if self.woken and self.pace.wakes else self.pace.interval_s)

    def turn(self, now: float) -> int | None:
        """None while no turn is due; else the pages that must be dirty to act, 0 for a single byte.

        A turn counts even if nothing is dirty: the thorough interval runs on in quiet times.
        """
        is_over = now - self.turned_at >= self.pace.interval_s
        if not is_over and not (self.woken and self.pace.wakes):
            return None
        self.turned_at, self.woken = now, False
        if now - self.thorough_at < self.pace.thorough_s:
            return self.pace.least_pages
        self.thorough_at = now
        return 0


def due(done: int, end: int, least_pages: int, file_bytes: int) -> bool:
    """Whether `[done, end)` is enough to act (isAbleToFlush, isAbleToCommit).

    The rest of a full file of `file_bytes` always is.
    """
    if done >= end:
        return False
    if least_pages <= 0 or done // file_bytes != end // file_bytes:
        return True
    pages = end % file_bytes // PAGE_BYTES - done % file_bytes // PAGE_BYTES
    return pages >= least_pages
