"""Requests whose answer waits for the disk or for followers: one GroupCommitRequest each.

They are answered in groups. The process that serves followers publishes in its page up to where
enough of them have the log, and rings the writer when that is what a request waits for.
`Acknowledgements` says which requests wait for followers, and until when.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from node.runtime.settings import Settings
from node.runtime.state_page import WorkerPage, WorkerState
from node.runtime.stats_series import (
    FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT,
    SLAVE_NOT_AVAILABLE,
)
from node.runtime.wakeup import FOLLOWERS_SLOT, WRITER_SLOT, Context, DatagramWakeup, Waiters
from node.writer.requests import PUT_OK, PendingRequest
from node.writer.store import WriterStore
from protocol.request_fields import WAIT_NONE, WAIT_REPLICATED

LOOK_S = 0.5
"""How often it looks for the page of the process that serves followers, and whether it is another
one by now."""
Answer = Callable[[list[PendingRequest], str, bool], None]
_NOBODY = WorkerState(*(0 for _ in WorkerState._fields))


class GroupCommitRequest(NamedTuple):
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

    def put(self, pending: PendingRequest, now: float, for_followers: bool = False) -> None:
        """Lets an appended request wait for the disk, or until enough followers have it."""
        waiting, timeout_s = self._requests, self._timeout_s
        if for_followers:
            waiting, timeout_s = self._for_followers, self._slave_timeout_s
        waiting.append(GroupCommitRequest(pending.append.end, now + timeout_s, pending))
        self._bytes += pending.append.size

    @property
    def wanted(self) -> int:
        """The log offset that the first request needs followers to have; 0 where none waits."""
        return self._for_followers[0].next_offset if self._for_followers else 0

    def flushed(self, offset: int) -> list[PendingRequest]:
        """Takes out the requests that a flush up to `offset` covers, oldest first."""
        return self._take(self._requests, lambda one: one.next_offset <= offset)

    def acknowledged(self, offset: int) -> list[PendingRequest]:
        """As `flushed`, of those that wait for followers."""
        return self._take(self._for_followers, lambda one: one.next_offset <= offset)

    def overdue(self, now: float) -> list[PendingRequest]:
        """Takes out the requests whose deadline has passed: FLUSH_DISK_TIMEOUT, yet stored."""
        return self._take(self._requests, lambda one: one.deadline <= now)

    def unacknowledged(self, now: float) -> list[PendingRequest]:
        """As `overdue`, of those that wait for followers: FLUSH_SLAVE_TIMEOUT, yet stored."""
        return self._take(self._for_followers, lambda one: one.deadline <= now)

    def _take(
        self, waiting: deque[GroupCommitRequest], is_done: Callable[[GroupCommitRequest], bool]
    ) -> list[PendingRequest]:
        taken = []
        while waiting and is_done(waiting[0]):
            pending = waiting.popleft().pending
            self._bytes -= pending.append.size
            taken.append(pending)
        return taken


class Acknowledgements:
    """One for each writer whose node may be followed. The current folder is `keelog/run`.

    `answer` gets requests, their status, and whether they are flushed. `show` gets up to where
    readers may see the log, where that waits for followers too.
    """

    def __init__(
        self,
        store: WriterStore,
        waiting: GroupCommit,
        context: Context,
        answer: Answer,
        show: Callable[[int], None],
    ) -> None:
        settings = store.settings
        self._store = store
        self._waiting = waiting
        self._answer = answer
        self._show = show
        self._shows = settings.shows_replicated
        self._shown = store.page.read().readable
        self._needed = settings.followers_needed
        self._is_usual = settings.waits_for_followers
        self._is_sync_flush = settings.is_sync_flush
        self._page: WorkerPage | None = None
        self._look_at = 0.0
        self._wanted = 0
        self.has_followers = False
        """Whether somebody follows the node, as of the last look."""
        self._wakeup = DatagramWakeup(WRITER_SLOT)
        self.fd = self._wakeup.watched
        """Readable when followers have acknowledged what was wanted."""
        self._servers = Waiters(context, store.root, FOLLOWERS_SLOT.__eq__)

    def take(self, pending: PendingRequest, now: float) -> bool:
        """Lets an appended request wait if it has to."""
        wait = pending.wait
        waits = wait == WAIT_REPLICATED or (self._is_usual and wait != WAIT_NONE)
        if waits:
            self._waiting.put(pending, now, for_followers=True)
        return waits

    def flushed(self, offset: int) -> None:
        """Rings the process that serves followers: there is more to send."""
        self._servers.wake(self._store.epoch, offset)

    def turn(self, now: float, flushed: int) -> None:
        """Replies to the requests that enough followers have, and those that waited too long."""
        self._wakeup.hush()
        while True:
            self._want()
            if not self._wanted:
                break
            state = self._state(now)
            # Of an earlier epoch: it speaks of a log that was perhaps longer.
            reached = state.dispatched if state.epoch == self._store.epoch else 0
            safe = min(reached, flushed)
            if self._shows and safe > self._shown:
                self._shown = safe
                self._show(safe)
            done = self._waiting.acknowledged(safe)
            if not done:
                self._give_up(now, flushed, state.held)
                break
            self._answer(done, PUT_OK, True)
        if now >= self._look_at:
            self.has_followers = self._state(now).held > 0
            self._look_at = now + LOOK_S
            self._servers.look()
            if self._page is not None and self._page.is_replaced:
                self._page.close()
                self._page = None

    def _want(self) -> None:
        """Asks for a ring before it looks: what is acknowledged in between is not missed."""
        wanted = self._waiting.wanted
        if not wanted and self._shows and self._shown < self._store.log.end:
            wanted = self._store.log.end  # nobody waits for an answer, but readers do
        if wanted != self._wanted:
            self._wanted = wanted
            self._store.page.publish(wants_acknowledged=wanted)

    def _give_up(self, now: float, flushed: int, connected: int) -> None:
        """Replies to overdue requests: all of them are stored."""
        late = self._waiting.unacknowledged(now)
        if not late:
            return
        status = FLUSH_SLAVE_TIMEOUT if connected >= self._needed else SLAVE_NOT_AVAILABLE
        on_disk = [pending for pending in late if pending.append.end <= flushed]
        others = late[len(on_disk) :]
        self._answer(on_disk, status, True)
        self._answer(others, FLUSH_DISK_TIMEOUT if self._is_sync_flush else status, False)
        self._want()

    def _state(self, now: float) -> WorkerState:
        with suppress(FileNotFoundError):
            if self._page is None and now >= self._look_at:
                self._page = WorkerPage.open(self._store.root, FOLLOWERS_SLOT)
            if self._page is not None:
                return self._page.read()
        return _NOBODY

    def close(self) -> None:
        """Gives the bells and the map back."""
        self._wakeup.close()
        self._servers.close()
        if self._page is not None:
            self._page.close()
