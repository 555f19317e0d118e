"""The CommitLog as its one writer has it: segments of one length, appended to by `pwrite`.

Segments get their space beforehand (`posix_fallocate`), so a full disk shows when one is made and
never in the middle of an append. The next one is prepared in a thread while there is time.

With a TransientStorePool, bytes that are appended and not committed yet are in a bounded buffer.
RocketMQ's is `transientStorePoolSize` buffers of a whole segment each, 5 GiB; ours is that many of
at most 8 MiB, since a commit comes every 200 ms. A killed process loses what is in there.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.shortage import MORE_RESOURCES, SHORT, refusal_for
from node.runtime.state_page import run_dir
from node.writer.log.ahead import PagePrefetch, ZeroPrefill
from protocol.errors import NodeBusy, ServiceNotAvailable, StoreMoved
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from protocol.record.codec import FILLER_BYTES, filler

log = logging.getLogger("keelog.commit_log")

POOL_BUFFER_BYTES_MAX = 8 * 1024 * 1024
_JOINED_BYTES_MAX = 64 * 1024
"""Smaller neighbours are joined into parts of this size, so that a commit is few writes."""


@dataclass(slots=True)
class PooledWrite:
    """Bytes for one place of one open file."""

    descriptor: int
    position: int
    data: bytearray
    is_joined: bool


@dataclass(frozen=True, slots=True)
class CommitJob:
    """Parts to write, oldest first, and the log offset that is committed afterwards."""

    target: int
    parts: list[PooledWrite] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(part.data) for part in self.parts)

    def run(self) -> None:
        """Writes in log order, so that a kill loses a suffix. Any error is final."""
        for part in self.parts:
            disk.write_all(part.descriptor, part.data, part.position)


class TransientStorePool:
    """The buffer. Only the writer's thread uses it; a job that was taken may run in any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """Counts what is here and what is being committed."""
        self._parts: list[PooledWrite] = []

    def fits(self, size: int) -> bool:
        """Whether `size` more bytes stay below the limit; an empty buffer takes any size."""
        return not self.used_bytes or self.used_bytes + size <= self.limit_bytes

    def check_fits(self, size: int) -> None:
        """Raises NodeBusy where `size` bytes do not fit: nobody waits for room."""
        if not self.fits(size):
            reason = f"transientStorePool: {self.used_bytes} bytes wait for a commit"
            raise NodeBusy(reason, "send it again later")

    def put(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> None:
        """Keeps bytes for `position` of an open file. Small ones are copied, large ones kept."""
        self.used_bytes += len(data)
        last = self._parts[-1] if self._parts else None
        is_small = len(data) < _JOINED_BYTES_MAX
        if (
            is_small
            and last is not None
            and last.is_joined
            and last.descriptor == descriptor
            and last.position + len(last.data) == position
            and len(last.data) < _JOINED_BYTES_MAX
        ):
            last.data += data
            return
        kept = data if isinstance(data, bytearray) and not is_small else bytearray(data)
        self._parts.append(PooledWrite(descriptor, position, kept, is_small))

    def take(self, target: int) -> CommitJob:
        """Takes all bytes out, as a job that commits up to log offset `target`."""
        parts, self._parts = self._parts, []
        return CommitJob(target, parts)

    def give_back(self, job: CommitJob) -> None:
        """Frees the room of a job that has run."""
        self.used_bytes -= job.size


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """An open segment; its file descriptor belongs to the CommitLog."""

    base: int
    path: Path
    descriptor: int


class CommitLog:
    """Appends bytes at the log's end and rolls segments. It does not look into the bytes.

    With a pool, appended bytes stay in memory until they are committed; without one, an append
    commits. `ahead` prepares the space of the next appends; `close` ends it.
    """

    def __init__(
        self,
        root: Path,
        segment_bytes: int,
        end: int,
        pool: TransientStorePool | None = None,
        ahead: PagePrefetch | ZeroPrefill | None = None,
    ) -> None:
        self.root = root
        self.segment_bytes = segment_bytes
        self.end = end
        self.full_at = -1
        """Below it a request must end, so that a filler fits after it (doAppend's rule)."""
        self.pool = pool
        self._ahead = ahead
        self._committed = end
        self._current: OpenSegment | None = None
        self._next: OpenSegment | None = None
        self._failed: Exception | None = None
        self._preparing: threading.Thread | None = None
        self._unflushed: list[OpenSegment] = []
        """Segments with bytes that are not flushed yet, oldest first; the last is current."""

    @property
    def request_bytes_max(self) -> int:
        """The largest request that fits into an empty segment with its closing filler."""
        return self.segment_bytes - FILLER_BYTES

    @property
    def committed(self) -> int:
        """Up to where the segments hold what was appended."""
        return self.end if self.pool is None else self._committed

    def open_tail(self) -> None:
        """Opens the segment that holds the log's end, or makes the first one."""
        base = self.end - self.end % self.segment_bytes
        self._go_on_in(make_segment(self.root, base, self.segment_bytes))

    def make_room(self, size: int) -> None:
        """Goes on in the next segment, after a filler, when `size` bytes do not fit.

        Raises ServiceNotAvailable, and writes nothing, when the next one could not be made.
        """
        if self._current is None:
            self.open_tail()
        if self.end + size <= self.full_at:
            return
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None
        following, self._next = self._next, None
        if following is None:
            assert self._failed is not None
            raise self._failed
        if self.end < following.base:
            self.append(filler(following.base - self.end))
        log.debug("segment begun", extra=fields(offset=following.base))
        self.end = following.base
        self._go_on_in(following)

    def _go_on_in(self, segment: OpenSegment) -> None:
        self._current = segment
        self._unflushed.append(segment)
        self.full_at = segment.base + self.segment_bytes - FILLER_BYTES
        if self._ahead is not None:
            self._ahead.begin(segment.path, self.segment_bytes, self.end - segment.base)
        self.prepare_next()

    def append(self, data: memoryview | bytes | bytearray) -> int:
        """Writes `data` in one go, after `make_room`. Returns its log offset.

        The space is allocated already, so an error means that the file can no longer be trusted:
        the process must end. A pool may keep `data` itself: do not change it afterwards.
        """
        current, ahead, start = self._current, self._ahead, self.end
        assert current is not None
        position, stop = start - current.base, start - current.base + len(data)
        if ahead is not None:
            ahead.claimed = stop
            if stop >= ahead.due:
                ahead.claim()
        if self.pool is None:
            disk.write_all(current.descriptor, data, position)
        else:
            self.pool.put(current.descriptor, position, data)
        self.end = start + len(data)
        return start

    def turn_over(self) -> None:
        """Goes on in the next segment where the current one is full.

        Raises ServiceNotAvailable, and writes nothing, when the next one could not be made.
        """
        if self._current is None or self.end - self._current.base == self.segment_bytes:
            self.make_room(0)

    def write_after_end(self, data: bytes, offset: int) -> None:
        """Writes bytes of the current segment after the log's end, which does not move."""
        assert self._current is not None
        assert self.end <= offset
        position = offset - self._current.base
        if self._ahead is not None:
            self._ahead.claimed = position + len(data)
            if self._ahead.claimed >= self._ahead.due:
                self._ahead.claim()
        disk.write_all(self._current.descriptor, data, position)

    def sync_current(self) -> None:
        """Syncs the current segment, with what is after the log's end."""
        assert self._current is not None
        disk.sync(self._current.descriptor)

    def close_segment(self, head: bytes) -> None:
        """Ends the current segment here, with the head of a blank; what follows it stays."""
        assert self._current is not None
        self.append(head)
        self.end = self._current.base + self.segment_bytes

    def prepare_next(self) -> None:
        """Starts to make the segment after the current one, in a thread."""
        assert self._current is not None
        base = self._current.base + self.segment_bytes
        self._failed = None
        self._preparing = threading.Thread(
            target=self._prepare, args=(base,), name="prepare-segment"
        )
        try:
            self._preparing.start()
        except RuntimeError as error:
            # No thread can be had: `retry_next` does without.
            self._preparing = None
            self._failed = ServiceNotAvailable(f"{SHORT}: {error}", MORE_RESOURCES)

    def _prepare(self, base: int) -> None:
        try:
            self._next = make_segment(self.root, base, self.segment_bytes)
        except (OSError, ServiceNotAvailable, StoreMoved) as error:
            self._failed = error

    @property
    def lacks_next(self) -> bool:
        """Whether the next segment could not be made."""
        idle = self._preparing is None or not self._preparing.is_alive()
        return idle and self._next is None

    def retry_next(self) -> bool:
        """After a failure that passes: tries once more; True when the next segment is there."""
        if self._preparing is not None and self._preparing.is_alive():
            return False
        if self._current is not None and self._next is None:
            self._prepare(self._current.base + self.segment_bytes)
        return self._next is not None

    def commit_job(self) -> CommitJob:
        """The writes that commit everything appended; run one job at a time, in any thread."""
        if self.pool is None:
            return CommitJob(self.end)
        return self.pool.take(self.end)

    def committed_to(self, job: CommitJob) -> None:
        """Frees the pool's part that a job has written."""
        if self.pool is not None:
            self.pool.give_back(job)
            self._committed = job.target

    def flush_job(self) -> "FlushJob":
        """The syncs that make all committed bytes durable; run it in any thread."""
        return FlushJob(self.committed, [segment.descriptor for segment in self._unflushed])

    def flushed_to(self, offset: int) -> None:
        """Forgets segments that end at or below a flushed offset, and closes them."""
        while len(self._unflushed) > 1 and self._unflushed[1].base <= offset:
            os.close(self._unflushed.pop(0).descriptor)

    def close(self, unlink_next: bool) -> None:
        """Closes all files; a clean stop unlinks the unused next segment, as RocketMQ does."""
        if self._preparing is not None:
            self._preparing.join()
        if self._ahead is not None:
            self._ahead.close()
        for segment in self._unflushed:
            os.close(segment.descriptor)
        self._unflushed = []
        if self._next is not None:
            os.close(self._next.descriptor)
            if unlink_next:
                disk.unlink(self._next.path)
                disk.sync_dir(self._next.path.parent)


def make_pool(settings: Settings) -> TransientStorePool | None:
    """The pool that the settings ask for; None in the other flush modes."""
    if not settings.is_pool_enabled:
        return None
    buffer_bytes = min(POOL_BUFFER_BYTES_MAX, settings.mapped_file_size_commit_log)
    return TransientStorePool(settings.transient_store_pool_size * buffer_bytes)


def make_segment(root: Path, base: int, segment_bytes: int) -> OpenSegment:
    """Makes the segment that starts at `base`, or opens it when it is there.

    A new one gets its whole length beside the log and is then renamed: nobody, a broker after a
    crash included, ever sees a segment of another length. Raises ServiceNotAvailable, disk_full
    without room or no_resources without a free descriptor, and leaves nothing.
    """
    path = root / COMMIT_LOG_DIR / offset_file_name(base)
    try:
        with disk.open_dir(path.parent) as folder:
            return OpenSegment(base, path, _made(root, path, segment_bytes, folder))
    except OSError as error:
        if error.errno in disk.NO_RESOURCES:
            raise refusal_for(error, str(path)) from None
        raise


def _made(root: Path, path: Path, segment_bytes: int, folder: int) -> int:
    if path.exists():
        # A broker's segments are sparse: the space is taken now, their bytes stay.
        return _allocated(path, segment_bytes)
    temporary = run_dir(root) / f"{path.name}.new"
    disk.unlink(temporary, missing_ok=True)
    try:
        descriptor = _allocated(temporary, segment_bytes)
    except (OSError, ServiceNotAvailable):
        disk.unlink(temporary, missing_ok=True)
        raise
    disk.rename(temporary, path)
    disk.sync_with_length(folder)
    return descriptor


def _allocated(path: Path, size: int) -> int:
    """An open file whose blocks are all allocated, durably."""
    descriptor = disk.open_file(path, create=True)
    try:
        disk.allocate(descriptor, size)
        disk.sync_with_length(descriptor)
    except OSError as error:
        os.close(descriptor)
        if error.errno in disk.DISK_FULL:
            raise ServiceNotAvailable(
                f"disk_full: no room for the segment {path}", "free space; appends then go on"
            ) from None
        raise
    return descriptor


@dataclass(frozen=True, slots=True)
class FlushJob:
    """File descriptors to sync, oldest first, and the log offset that is durable afterwards."""

    target: int
    descriptors: list[int]

    def run(self, sync: Callable[[int], None] = disk.sync) -> None:
        """Syncs the older segments before the newer. Any error is final for the process."""
        for descriptor in self.descriptors:
            sync(descriptor)
