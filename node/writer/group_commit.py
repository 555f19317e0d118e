"""Requests whose answer waits for the disk or for followers: one GroupCommitRequest each, answered
in groups."""

from collections import deque
from dataclasses import dataclass

from node.runtime.settings import Settings
from node.writer.requests import PendingRequest


@dataclass(frozen=True, slots=True)
class GroupCommitRequest:
    """Answered when the log is flushed or acknowledged up to `next_offset`, or at the deadline."""

    next_offset: int
    deadline: float
    pending: PendingRequest


class GroupCommit:
    """The requests that wait, bounded in number and bytes. Offsets and deadlines ascend."""

    def __init__(self, settings: Settings) -> None:
        self._count_max = settings.send_thread_pool_queue_capacity
        self._bytes_max = settings.waiting_bytes_max
        self._timeout_s = settings.sync_flush_timeout / 1000
        self._slave_timeout_s = settings.slave_timeout / 1000
        self._requests: deque[GroupCommitRequest] = deque()
        self._for_followers: deque[GroupCommitRequest] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._requests) + len(self._for_followers)

    @property
    def is_full(self) -> bool:
        """Whether one more is refused, before any of its records is stored."""
        return len(self) >= self._count_max or self._bytes >= self._bytes_max

    def put(self, pending: PendingRequest, now: float) -> None:
        """Lets an appended request wait for the disk."""
        request = GroupCommitRequest(pending.append.end, now + self._timeout_s, pending)
        self._requests.append(request)
        self._bytes += pending.append.size

    def put_for_followers(self, pending: PendingRequest, now: float) -> None:
        """Lets an appended request wait until enough followers have it."""
        request = GroupCommitRequest(pending.append.end, now + self._slave_timeout_s, pending)
        self._for_followers.append(request)
        self._bytes += pending.append.size

    @property
    def wanted(self) -> int:
        """The log offset that the first request needs followers to have; 0 where none waits."""
        return self._for_followers[0].next_offset if self._for_followers else 0

    def flushed(self, offset: int) -> list[PendingRequest]:
        """Takes out the requests that a flush up to `offset` covers, oldest first."""
        return self._up_to(self._requests, offset)

    def acknowledged(self, offset: int) -> list[PendingRequest]:
        """As `flushed`, of those that wait for followers."""
        return self._up_to(self._for_followers, offset)

    def overdue(self, now: float) -> list[PendingRequest]:
        """Takes out the requests whose deadline has passed: FLUSH_DISK_TIMEOUT, yet stored."""
        return self._late(self._requests, now)

    def unacknowledged(self, now: float) -> list[PendingRequest]:
        """As `overdue`, of those that wait for followers: FLUSH_SLAVE_TIMEOUT, yet stored."""
        return self._late(self._for_followers, now)

    def _up_to(self, waiting: deque[GroupCommitRequest], offset: int) -> list[PendingRequest]:
        taken = []
        while waiting and waiting[0].next_offset <= offset:
            taken.append(self._take(waiting))
        return taken

    def _late(self, waiting: deque[GroupCommitRequest], now: float) -> list[PendingRequest]:
        taken = []
        while waiting and waiting[0].deadline <= now:
            taken.append(self._take(waiting))
        return taken

    def _take(self, waiting: deque[GroupCommitRequest]) -> PendingRequest:
        pending = waiting.popleft().pending
        self._bytes -= pending.append.size
        return pending
