"""What followers have acknowledged, for the writer: which requests wait for them, and until when.

The process that serves followers publishes in its page up to where enough of them have the log, and
rings the writer when that is what a request waits for.
"""

from collections.abc import Callable
from contextlib import suppress

from node.runtime.state_page import WorkerPage, WorkerState
from node.runtime.wakeup import FOLLOWERS_SLOT, WRITER_SLOT, Context, DatagramWakeup, Waiters
from node.writer.group_commit import GroupCommit
from node.writer.requests import (
    FLUSH_DISK_TIMEOUT,
    FLUSH_SLAVE_TIMEOUT,
    PUT_OK,
    SLAVE_NOT_AVAILABLE,
    PendingRequest,
)
from node.writer.store import WriterStore
from protocol.request_checks import WAIT_NONE, WAIT_REPLICATED

LOOK_S = 0.5
"""How often it looks for the page of the process that serves followers, and whether it is another
one by now."""
Answer = Callable[[list[PendingRequest], str, bool], None]
_NOBODY = WorkerState(*(0 for _ in WorkerState._fields))


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
        self._bell = DatagramWakeup(WRITER_SLOT)
        self.fd = self._bell.watched
        """Readable when followers have acknowledged what was wanted."""
        self._servers = Waiters(context, store.root, FOLLOWERS_SLOT.__eq__)

    def take(self, pending: PendingRequest, now: float) -> bool:
        """Lets an appended request wait if it has to."""
        wait = pending.wait
        waits = wait == WAIT_REPLICATED or (self._is_usual and wait != WAIT_NONE)
        if waits:
            self._waiting.put_for_followers(pending, now)
        return waits

    def flushed(self, offset: int) -> None:
        """Rings the process that serves followers: there is more to send."""
        self._servers.wake(self._store.epoch, offset)

    def turn(self, now: float, flushed: int) -> None:
        """Replies to the requests that enough followers have, and those that waited too long."""
        self._bell.hush()
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
        self._bell.close()
        self._servers.close()
        if self._page is not None:
            self._page.close()
