"""A bounded buffer for bytes that are appended and not committed yet: TransientStorePool.

RocketMQ's is `transientStorePoolSize` buffers of a whole segment each, 5 GiB; ours is that many of
at most 8 MiB, since a commit comes every 200 ms. A killed process loses what is in here.
"""

from dataclasses import dataclass, field

from node.runtime import disk
from node.runtime.settings import Settings
from protocol.errors import NodeBusy

BUFFER_BYTES_MAX = 8 * 1024 * 1024
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
        """The bytes of all parts."""
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


def make_pool(settings: Settings) -> TransientStorePool | None:
    """The pool that the settings ask for; None in the other flush modes."""
    if not settings.is_pool_enabled:
        return None
    buffer_bytes = min(BUFFER_BYTES_MAX, settings.mapped_file_size_commit_log)
    return TransientStorePool(settings.transient_store_pool_size * buffer_bytes)
