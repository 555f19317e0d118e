"""Requests whose answer waits for the disk: one GroupCommitRequest each, answered in groups."""

from collections import deque
from dataclasses import dataclass

from node.runtime.settings import Settings
from node.writer.requests import PendingRequest


@dataclass(frozen=True, slots=True)
class GroupCommitRequest:
    """Answered when the log is flushed up to `next_offset`, or at the deadline."""

    next_offset: int
    deadline: float
    pending: PendingRequest


class GroupCommit:
    """The requests that wait, bounded in number and bytes. Offsets and deadlines ascend."""

    def __init__(self, settings: Settings) -> None:
        self._count_max = settings.send_thread_pool_queue_capacity
        self._bytes_max = settings.waiting_bytes_max
        self._timeout_s = settings.sync_flush_timeout / 1000
        self._requests: deque[GroupCommitRequest] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def is_full(self) -> bool:
        """Whether one more is refused, before any of its records is stored."""
        return len(self._requests) >= self._count_max or self._bytes >= self._bytes_max

    def put(self, pending: PendingRequest, now: float) -> None:
        """Lets an appended request wait."""
        request = GroupCommitRequest(pending.append.end, now + self._timeout_s, pending)
        self._requests.append(request)
        self._bytes += pending.append.size

    def flushed(self, offset: int) -> list[PendingRequest]:
        """Takes out the requests that a flush up to `offset` covers, oldest first."""
        taken = []
        while self._requests and self._requests[0].next_offset <= offset:
            taken.append(self._take())
        return taken

    def overdue(self, now: float) -> list[PendingRequest]:
        """Takes out the requests whose deadline has passed: FLUSH_DISK_TIMEOUT, yet stored."""
        taken = []
        while self._requests and self._requests[0].deadline <= now:
            taken.append(self._take())
        return taken

    def _take(self) -> PendingRequest:
        pending = self._requests.popleft().pending
        self._bytes -= pending.append.size
        return pending
