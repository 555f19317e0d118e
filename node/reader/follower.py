"""Keeps the store of a pull desk up to date, for any process that serves pulls: a reader, the
gateway. No client's sockets.

Files decide, messages announce: what may be read is in the state pages; the ring of a queue worker
only shortens a held pull's wait.
"""

import logging
import time
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from node.reader.pull_desk import PullDesk
from node.runtime import wakeup
from node.runtime.event_log import fields
from node.runtime.process import machine_memory_bytes, now_ms
from node.runtime.settings import Settings
from node.runtime.state_page import DAMAGED, NEVER, RUNNING, STOPPED, StatePages, WorkerPage
from node.runtime.store_paths import is_in_place
from node.store.condition import QUEUE_WORKER_PREFIX
from node.store.opening import RunningStore
from node.store.query.pull import TransferLimits
from protocol.errors import CorruptError, MqError

log = logging.getLogger("keelog.reader")

TICK_MS = 4
"""The most between looks at the pages while a pull waits and messages flow: a lost ring costs less
than 5 ms. After a quiet time a look comes less often."""
BUSY_S = TICK_MS / 1000 * wakeup.QUIET_SHARE
"""So soon after the log grew, a look comes after TICK_MS."""
IDLE_MS = int(wakeup.SLEEP_S_MAX * 1000)
WAITING_S = 0.1
"""How long the process follows the log after the last request for its end: most are repeated."""
HEARTBEAT_S = 0.1
REOPEN_CHECK_S = 1.0
UNFIT_S_MAX = 2.0
"""How long the log's folder may disagree with the pages, as the writer changes its files."""


class ReaderSite(NamedTuple):
    """The store of a process that serves pulls, and its slot: the name of its page and lock."""

    root: Path
    slot: str
    shards: int
    settings: Settings


class StoreFollower:
    """Follows the store for `desk`. Times are seconds of the monotonic clock.

    A turn is `begin_turn`, the requests, `end_turn`. The owner sleeps for `sleep_ms` after a turn,
    but only if `ask_for_ring` is true, and not beyond an event of `bell_fd`.
    """

    def __init__(
        self, site: ReaderSite, desk: PullDesk, page: WorkerPage, context: wakeup.Context
    ) -> None:
        self.desk = desk
        self._pages: StatePages = desk.store.pages
        self._site = site
        self._page = page
        self._wakeup = wakeup.DatagramWakeup(site.slot)
        self.bell_fd = self._wakeup.watched
        self._workers = wakeup.Waiters(
            context, site.root, lambda slot: slot.startswith(QUEUE_WORKER_PREFIX)
        )
        self._listens = False
        self._growths: list[int] = []
        """What the workers had counted at the last look for pulls that wait for them."""
        self._news: set[int] | None = None
        """The shards whose queues have grown; None: any may have, as at a new epoch."""
        self._next_look_at = 0.0
        self._epoch = 0
        self._unfit_since: float | None = None
        self._has_moved = False
        self._waits_until = 0.0
        self._patient_look_at = 0.0
        self._turn_growths: list[int] = []
        self._patient_growths: list[int] = []
        """What the workers had counted at the last look for patient pulls."""
        self._wake_at = NEVER
        self._end = 0
        self._grew_at = time.monotonic()
        self.beat_at = 0.0
        """When the next heartbeat is due."""
        self._reopen_check_at = 0.0

    def begin_turn(self, now: float, is_rung: bool) -> None:
        """Takes in what has come."""
        if is_rung:
            self._wakeup.hush()
        # Before the refresh: what comes in between is a reason for the next look.
        self._news = self._grown() if self._listens and now >= self._next_look_at else set()
        epoch = self._pages.epoch()
        if epoch != self._epoch:
            self._epoch, self._news = epoch, None
        if self.desk.holds.patience_s:
            self._turn_growths = self._pages.growths()
        self._refresh(now)
        end = self.desk.store.log.bounds.end
        if end != self._end:
            self._end, self._grew_at = end, now

    def catch_up(self, now: float) -> None:
        """Before each request: its client may know of the growth from the writer."""
        if self._pages.readable() != self.desk.store.log.bounds.end:
            self._refresh(now)

    def end_turn(self, now: float) -> None:
        """Serves the held pulls that have messages, or whose time is up."""
        desk = self.desk
        if desk.store.removed.number != desk.removals:
            desk.note_removals()
        self._follow(now)
        if self._news is None:
            desk.wake_all()
        elif desk.unfinished or self._news:
            began = time.monotonic()
            desk.wake(self._news)
            # Of very many queues a look takes long: half of the time is for other requests.
            self._next_look_at = now + 2 * (time.monotonic() - began)
        if desk.holds.patience_s and self._is_patient_look_due(now):
            self._patient_look_at = now + desk.holds.patience_s
            self._patient_growths = self._turn_growths
            desk.wake_all()
        if desk.undecided:
            desk.settle()
        if desk.holds.next_deadline <= now:
            desk.time_out(now)

    def is_anything_due(self, now: float) -> bool:
        """True if a turn without an event has work: most ticks while pulls wait have none."""
        desk = self.desk
        if desk.unfinished or desk.undecided or now >= self.beat_at:
            return True
        if desk.tail.follows and self._pages.readable() != desk.tail.end:
            return True
        if not desk.holds.count:
            return False
        if desk.holds.next_deadline <= now or self._pages.epoch() != self._epoch:
            return True
        if desk.holds.patience_s and not self._waits_until:
            return self._is_patient_look_due(now)
        if desk.tail.follows or not self._listens:
            return not desk.tail.follows
        return now >= self._next_look_at and self._pages.growths() != self._growths

    def sleep_ms(self, now: float, has_unsent: bool) -> int:
        """How long the process may sleep. `has_unsent`: replies wait for the network."""
        desk = self.desk
        if desk.unfinished:
            return 0
        if not desk.holds.count:
            return TICK_MS if has_unsent else IDLE_MS
        sleep_ms, quiet_s = TICK_MS, now - self._grew_at
        is_quiet = quiet_s > BUSY_S and desk.tail.follows
        if is_quiet and not has_unsent and not desk.undecided:
            sleep_ms = int(wakeup.quiet_sleep_s(quiet_s, TICK_MS / 1000) * 1000)
        elif desk.holds.patience_s and not (self._waits_until or has_unsent or desk.undecided):
            sleep_ms = int(desk.holds.patience_s * 1000)
        return min(sleep_ms, max(0, int((desk.holds.next_deadline - now) * 1000) + 1))

    def _is_patient_look_due(self, now: float) -> bool:
        """Whether the log is followed for none of the held pulls, they have waited long enough, and
        some queue has grown since."""
        is_due = not self._waits_until and now >= self._patient_look_at
        return is_due and self._pages.growths() != self._patient_growths

    def ask_for_ring(self, is_woken: bool = False) -> bool:
        """Asks the writer to ring at the next record; False if that is there already.

        `is_woken`: something else wakes the owner soon, and nobody needs to ring.
        """
        tail = self.desk.tail
        wake_at = tail.end + 1 if tail.follows and not is_woken else NEVER
        if wake_at != self._wake_at:
            self._show_wake_at(wake_at)
        return not tail.follows or self._pages.readable() == tail.end

    @property
    def asks_for_ring(self) -> bool:
        """Whether the writer rings at the next record."""
        tail = self.desk.tail
        return tail.follows and self._wake_at == tail.end + 1

    def spare_ring(self) -> None:
        """Takes the wish for a ring back until the next turn: the writer's answer wakes the owner,
        and comes with the record."""
        if self._wake_at != NEVER:
            self._show_wake_at(NEVER)

    def _show_wake_at(self, wake_at: int) -> None:
        self._wake_at = wake_at
        self._page.publish(wake_at=wake_at)

    def beat(self, now: float, requests: int) -> None:
        """Gives the heartbeat. `requests`: how many were answered."""
        self.beat_at = now + HEARTBEAT_S
        self._page.beat(now_ms())
        self._page.publish(
            requests=requests,
            held=self.desk.holds.count,
            epoch=self._epoch,
            dispatched=self.desk.store.followed,
        )

    def stop(self) -> None:
        """Serves the held pulls with what there is."""
        self._refresh(time.monotonic())
        self.desk.stop()

    def stopped(self, requests: int) -> None:
        """Publishes that the process serves nobody any more."""
        self._page.publish(state=STOPPED, held=0, listens=0, wake_at=NEVER, requests=requests)

    def close(self) -> None:
        self._wakeup.close()
        self._workers.close()
        self.desk.store.close()

    def _grown(self) -> set[int]:
        """The shards whose queues have grown since the last call."""
        before, self._growths = self._growths, self._pages.growths()
        pairs = zip_longest(self._growths, before)
        return {shard for shard, (count, known) in enumerate(pairs) if count != known}

    def _follow(self, now: float) -> None:
        """While pulls wait, follows the log itself, or the queue workers where that fails."""
        desk = self.desk
        is_awaited = desk.holds.count and not desk.holds.patience_s
        if is_awaited or desk.is_asked_for_end:
            desk.is_asked_for_end = False
            self._waits_until = now + WAITING_S
        elif now >= self._waits_until:
            self._waits_until = 0.0
        if self._waits_until and self._unfit_since is None:
            desk.follow(now)
        elif desk.tail.follows or desk.tail.not_before:
            desk.tail.stop()
        is_served = not self._waits_until or desk.tail.follows
        listens = bool(desk.undecided) or not is_served
        if listens != self._listens:
            self._listens = listens
            self._page.publish(listens=int(listens))
            if listens:
                self._growths = []
                # Workers rest while no reader listens: wake them.
                self._workers.ring_all()

    def _refresh(self, now: float) -> None:
        """Takes in the pages; if that fails for UNFIT_S_MAX, requests are refused."""
        desk = self.desk
        if now >= self._reopen_check_at:
            self._reopen_check_at = now + REOPEN_CHECK_S
            self._workers.look()
            desk.forget_bounds()
            if not is_in_place():
                if not self._has_moved:
                    self._has_moved = True
                    log.error("the store has moved: no more of its files are opened")
            elif self._pages.are_replaced():
                self._reopen()
        try:
            desk.store.refresh()
        except MqError as error:
            if self._unfit_since is None:
                self._unfit_since = now
            if now - self._unfit_since >= UNFIT_S_MAX and desk.trouble is None:
                details = fields(why=error)
                log.error("the store cannot be followed", extra=details)  # noqa: TRY400
                desk.trouble = error
                self._page.publish(state=DAMAGED)
            return
        self._unfit_since = None
        if desk.trouble is not None:
            desk.trouble = None
            self._page.publish(state=RUNNING)

    def _reopen(self) -> None:
        """Opens the store again after its pages were replaced: the old maps do not change."""
        log.warning("the state pages were replaced: opening the store again")
        store = open_fitting(self._site)
        self.desk.tail.stop()
        self.desk.store.close()
        self.desk.store = store
        self._pages = store.pages
        self._epoch = 0


def transfer_limits(settings: Settings) -> TransferLimits:
    """The limits of one pull; records within a share of the memory count as hot."""
    memory = machine_memory_bytes() * settings.access_message_in_memory_max_ratio // 100
    return TransferLimits(
        count_max=settings.max_transfer_count_on_message_in_memory,
        bytes_max=settings.max_transfer_bytes_on_message_in_memory,
        cold_count_max=settings.max_transfer_count_on_message_in_disk,
        cold_bytes_max=settings.max_transfer_bytes_on_message_in_disk,
        memory_bytes=memory,
    )


def open_fitting(site: ReaderSite) -> RunningStore:
    """Opens the store; tries again for a moment, as the writer may be changing its segments."""
    deadline = time.monotonic() + UNFIT_S_MAX
    while True:
        try:
            return RunningStore(site.root, site.shards, site.settings)
        except CorruptError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.02)
