"""The shared loop of the workers: RocketMQ's ReputMessageService, a batch of columns at a time.

Files decide, messages announce: a hint only shortens the sleep. The loop publishes at
once what a handler has applied, and vouches for it in a progress file after it is synced.

It counts the turns that found something, the records in them, and syncs; times in ns.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from node.runtime.disk import DISK_FULL, NO_DESCRIPTORS, PASSING, if_room
from node.runtime.event_log import fields
from node.runtime.process import met_damage
from node.runtime.service_loop import PAGE_BYTES, LoopPace, ServiceLoop
from node.runtime.state_page import DISK_FULL as DISK_FULL_STATE
from node.runtime.state_page import NO_RESOURCES as NO_RESOURCES_STATE
from node.runtime.state_page import RUNNING, STOPPING, WorkerPage
from node.runtime.stats import StatsPage, TopicCounts
from node.runtime.stats_series import DISPATCH, DISPATCH_FLUSH, DISPATCHED, INDEX
from node.store.checkpoints import WorkerCheckpoint, save_progress
from node.store.log.reader import Damage
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.errors import ServiceNotAvailable, StoreDamaged
from protocol.record.codec import DEFAULT_DELAY_LEVELS_MS, Record, Torn
from protocol.record.columns import RecordColumns
from workers.feed import Feed, LogBounds

log = logging.getLogger("keelog.worker")

TOPICS_EVERY_S = 1.0
TOPICS_TIME_SHARE = 0.001
"""At most this part of a worker's time goes into adding up the ends of its queues."""

T = TypeVar("T")
Messages = Callable[[], dict[str, int] | None]
"""As `Handler.messages_by_topic`."""

SHORTAGE_RETRY_S = 1.0
UNFLUSHED_RETRY_S = 0.1
HEARTBEAT_S = 0.1
FLUSH_RESTS = 9
FLUSH_REST_S_MAX = 60.0
"""After a flush there is none for this many times its duration: that of ten thousand files takes
seconds, and would find all of them changed again. RocketMQ's thorough flush comes each minute."""
ENDING_FLUSH_S = 0.02
"""While the writer stops it waits for what is synced."""
FINISH_S_MAX = 5.0
"""How long a stopping worker goes on with what is readable."""


class Handler(ABC):
    """What a worker makes of the log: the plug-in interface of `workers/`.

    The methods from `apply_few` on are for those that need them.
    """

    takes_few = False
    """Whether it has `apply_few`."""

    @abstractmethod
    def resume_from(self) -> int:
        """Undoes and syncs what cannot be vouched for; returns the log offset to go on from.

        Called at the start and at each new epoch of the log.
        """

    applied: int
    """The log offset below which everything is written."""
    units = 0
    """How many units it has put into queues, for readers that wait for them."""

    @abstractmethod
    def apply(self, requests: DispatchRequests) -> None:
        """Adds a batch; it may wait in memory for more, or for `settle`.

        After an OSError the same call with the same batch completes it.
        """

    @abstractmethod
    def settle(self) -> None:
        """Writes what waits. After an OSError the same call completes it."""

    @abstractmethod
    def flush(self) -> int:
        """Syncs; returns the log offset below which all is durable. Runs beside `apply`."""

    @abstractmethod
    def pass_over(self, hole: Damage) -> None:
        """Goes on after damaged bytes: their messages can be in no file of this worker's."""

    @abstractmethod
    def trim(self, min_offset: int) -> None:
        """Deletes files that speak of nothing but the log below `min_offset`, where it begins now.

        The last file of each kind stays. Called after `resume_from` and when the log's begin moves.
        """

    def apply_few(self, records: Sequence[Record]) -> bool:
        """As `apply`, for a few records; False where only that can do it, which is then called with
        the same records.

        Raises OSError as `apply` does.
        """
        return False

    def drop_removed(self) -> None:  # noqa: B027
        """Deletes the files of removed topics, before a record that follows the removal comes.

        After an OSError the same call completes it.
        """

    def messages_by_topic(self) -> dict[str, int] | None:
        """What its queues hold and have held, by topic; None without queues."""
        return None

    def lost_files(self) -> str:
        """What is gone, or another file by now; empty while all that it looked at is in place.

        Called between turns, about once a second: it looks at a bounded number of files.
        """
        return ""

    def disown_lost(self) -> None:  # noqa: B027
        """Takes back what vouches for what is lost: the next process makes it anew."""


class WorkerStats:
    """Counts of one worker, in its slot's page."""

    def __init__(self, root: Path, role: str, index: int) -> None:
        self._page = StatsPage(root, role, index)
        self._counts = self._page.counts
        target = "index" if role == INDEX else "cq"
        self._turn = self._counts.place(DISPATCH, target=target)
        self._flush = self._counts.place(DISPATCH_FLUSH, target=target)
        self._dispatched = self._counts.place(DISPATCHED, target=target)
        self._records = 0

    def turn(self, took: int, records: int) -> None:
        """A turn that found something; `records` are all that this process has dispatched."""
        self._counts.observe(self._turn, took)
        self._counts.numbers[self._dispatched] += records - self._records
        self._records = records

    def flushed(self, took: int) -> None:
        """Queues or index were synced. For the thread that syncs: nobody else adds to this."""
        self._counts.observe(self._flush, took)

    def publish(self) -> None:
        self._page.publish()

    def close(self) -> None:
        self._page.close()


@dataclass(frozen=True, slots=True)
class WorkerSite:
    """Which worker this is: its store, its slot, its pages."""

    root: Path
    slot: str
    page: WorkerPage
    stats: WorkerStats | None = None


class Dispatcher:
    """Moves one handler along the log.

    `flush_pace`: when to sync. `pause` sleeps for some seconds, shows life, and raises Stopped when
    it is time to stop.
    """

    def __init__(
        self,
        place: WorkerSite,
        feed: Feed,
        handler: Handler,
        flush_pace: LoopPace,
        delay_levels_ms: tuple[int, ...] = DEFAULT_DELAY_LEVELS_MS,
        pause: Callable[[float], None] = time.sleep,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._place, self._page = place, place.page
        self.done = 0
        self.saved = 0
        self.epoch = 0
        self.is_resuming = False
        self.is_ending = False
        """The writer stops, and waits for the worker."""
        self.records = 0
        """How many were dispatched."""
        self._feed = feed
        self._handler = handler
        self._removals = 0
        self._delay_levels_ms = delay_levels_ms
        self._flush_loop = ServiceLoop(flush_pace, 0.0, 0.0)
        self._pause = pause
        self._is_over = is_stopping
        self._applied = 0
        self._flush: Future[int] | None = None
        self._flushed_at = 0.0
        self._rests_until = 0.0
        """Set by the flush's thread."""
        self._begun = (0, 0)
        """Up to where the running flush goes, and how many of `_records` that are."""
        self._saved_records = 0
        self._trimmed_to = 0
        self._waits_at = -1
        self._last_ms = 0
        """The store time of the last record of the last batch."""

    def start(self) -> None:
        """Resumes: at the start, and whenever the log has begun a new epoch.

        Raises StoreDamaged, with all that was there before and is vouched for published.
        """
        self.await_flush()
        self.is_resuming = True
        while True:
            limits = self._feed.limits()
            try:
                self.done = min(self._handler.resume_from(), limits.readable)
            except StoreDamaged:
                applied = min(self._handler.applied, limits.readable)
                self._page.begin_epoch(limits.epoch, dispatched=applied, saved=0)
                raise
            if self._feed.limits().epoch == limits.epoch:
                break
        self.is_resuming = False
        self.epoch, self._applied, self._removals = limits.epoch, self.done, limits.removals
        self.saved = self._save(self.done, limits)
        now = time.monotonic()
        self._flushed_at = self._flush_loop.turned_at = self._flush_loop.thorough_at = now
        self._saved_records = self.records
        self._page.begin_epoch(self.epoch, dispatched=self.done, saved=self.saved)
        self._page.publish(state=RUNNING)

    def turn(self) -> bool:
        """Dispatches what is readable, until it is time to stop; returns whether there was any.

        Raises StoreDamaged, with all before the damage dispatched, where it ends the log.
        """
        limits = self._feed.limits()
        if limits.epoch != self.epoch:
            self.start()
            return True
        self.is_ending = limits.is_ending
        if limits.removals != self._removals:
            self._until_room(self._handler.drop_removed)
            self._removals = limits.removals
        self.done = max(self.done, limits.min_offset)
        if limits.min_offset > self._trimmed_to:
            self._trimmed_to = limits.min_offset
            self._handler.trim(limits.min_offset)
        if self.done >= limits.readable:
            self._flush_if_due()
            return False
        try:
            return self._turn_shortly(limits) or self._turn_by_columns(limits)
        except ServiceNotAvailable as error:
            return self._wait_for_log(error)

    def _turn_by_columns(self, limits: LogBounds) -> bool:
        for columns in self._feed.columns(self.done, limits.readable):
            if self._feed.limits().epoch != self.epoch:
                return True
            self._apply(columns)
            self._flush_if_due()
            if self._is_over():
                self._settle()
                return True
        self._settle()
        if self._feed.limits().epoch != self.epoch:
            return True
        if self._feed.log.stopped is not None:
            return self._meet(self._feed.log.stopped)
        self._publish(limits.readable)
        return True

    def _turn_shortly(self, limits: LogBounds) -> bool:
        """Dispatches a few records one by one; False: it must be done as columns."""
        takes_few = self._handler.takes_few
        records = self._feed.few(self.done, limits.readable) if takes_few else None
        if not records:
            return False
        if self._feed.limits().epoch != self.epoch:
            return True
        try:
            if not self._handler.apply_few(records):
                return False
        except OSError as error:
            if error.errno not in PASSING:
                raise
            return False
        self._advance(limits.readable, len(records))
        self._flush_if_due()
        return True

    def _meet(self, damage: Torn) -> bool:
        """What was not flushed yet, the next start of the writer may cut, or flush as it is.

        No start mends damage below what is flushed: it costs its own messages, and no later ones.
        Raises StoreDamaged where no later record proves itself.
        """
        if damage.position < self._feed.peek().flushed:
            hole = self._feed.hole(damage, self._last_ms)
            if hole is None:
                self._feed.check()
            else:
                self._pass_over(hole)
            return True
        if self._waits_at != damage.position:
            self._waits_at = damage.position
            found = fields(offset=damage.position, why=damage.why)
            log.warning("waits where the log is not flushed yet", extra=found)
        self._flush_if_due()
        self._pause(UNFLUSHED_RETRY_S)
        return False

    def _pass_over(self, hole: Damage) -> None:
        start, why = hole.torn.position, hole.torn.why
        met_damage.note_place(hole.where, start, why)
        found = fields(file=hole.where, offset=start, up_to=hole.resumed_at, why=why)
        log.error("damage is passed over: its messages get no queue and no key", extra=found)
        self._handler.pass_over(hole)
        self._publish_applied()

    def _wait_for_log(self, error: ServiceNotAvailable) -> bool:
        """What was read is written; the log goes on when it can be opened again."""
        self._settle()
        log.warning("waits for the log", extra=fields(offset=self.done, why=error))
        self._page.publish(state=NO_RESOURCES_STATE)
        self._flush_if_due()
        self._pause(SHORTAGE_RETRY_S)
        self._page.publish(state=RUNNING)
        return False

    def finish(self) -> None:
        """What is readable, for FINISH_S_MAX at most; then everything is synced and saved."""
        self._page.publish(state=STOPPING)
        deadline = time.monotonic() + FINISH_S_MAX
        self._is_over = lambda: time.monotonic() >= deadline
        while not self._is_over() and self.turn():
            pass
        self.close()

    def close(self) -> None:
        """Syncs and saves what was applied."""
        with if_room():
            self._handler.settle()
        self._publish_applied()
        self.await_flush()
        self._begin_flush()
        self.await_flush()

    def _apply(self, columns: RecordColumns) -> None:
        requests = DispatchRequests(columns, self._delay_levels_ms)
        self._until_room(lambda: self._handler.apply(requests))
        self.records += len(requests)
        self._last_ms = int(columns.store_timestamp[-1])
        self._publish_applied()

    def _settle(self) -> None:
        self._until_room(self._handler.settle)
        self._publish_applied()

    def _publish_applied(self) -> None:
        self._applied = self._handler.applied
        if self._applied > self.done:
            self._publish(self._applied)

    def _until_room(self, write: Callable[[], None]) -> None:
        """Again and again while the disk is full, or no descriptor is free."""
        waited = False
        while True:
            try:
                write()
                break
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                if not waited:
                    is_full = error.errno in DISK_FULL
                    found = fields(offset=self.done, why=error)
                    log.warning("waits for room or a free descriptor", extra=found)
                    self._page.publish(state=DISK_FULL_STATE if is_full else NO_RESOURCES_STATE)
                waited = True
            self._pause(SHORTAGE_RETRY_S)
        if waited:
            log.info("goes on")
            self._page.publish(state=RUNNING)

    def _advance(self, end: int, records: int) -> None:
        """Notes that `records` more are applied, up to `end`."""
        self.records += records
        self._applied = end
        self._publish(end)

    def _publish(self, done: int) -> None:
        self.done = done
        self._page.publish(dispatched=done, records=self.records)

    # Syncing: in a thread, so that a slow disk never holds up what readers wait for.

    def _flush_if_due(self) -> None:
        if self._flush is not None:
            if self._flush.done():
                self.await_flush()
        elif self.done > self.saved and self._is_flush_due(time.monotonic()):
            self._begin_flush()

    def _is_flush_due(self, now: float) -> bool:
        """By pages of new units: the log's records are counted, and nothing is kept per queue."""
        if self.is_ending:
            return now - self._flushed_at >= ENDING_FLUSH_S
        if now < self._rests_until:
            return False
        least_pages = self._flush_loop.turn(now)
        if least_pages is None:
            return False
        return (self.records - self._saved_records) * UNIT_BYTES >= least_pages * PAGE_BYTES

    def _begin_flush(self) -> None:
        self._begun = (self.done, self.records)
        done, applied, epoch = self.done, self._applied, self.epoch

        def flush() -> int:
            begun = time.monotonic()
            try:
                synced = self._handler.flush()
            except OSError as error:
                # Only what opens a file: an error of a sync is final.
                if error.errno not in NO_DESCRIPTORS:
                    raise
                log.warning("not synced for now", extra=fields(why=error))
                return 0
            ended = time.monotonic()
            if self._place.stats is not None:
                self._place.stats.flushed(int((ended - begun) * 1e9))
            self._rests_until = ended + min(FLUSH_RESTS * (ended - begun), FLUSH_REST_S_MAX)
            limits = self._feed.peek()
            if limits.epoch != epoch or min(synced, limits.flushed) <= self.saved:
                return 0
            # After the last record only blanks follow, which need no sync.
            return self._save(done if synced >= applied else synced, limits)

        self._flush = begin(flush, "flush")
        self._flushed_at = time.monotonic()

    def await_flush(self) -> None:
        """Waits for the running flush, if there is one."""
        if self._flush is None:
            return
        saved = self._flush.result()
        self._flush = None
        self.saved = max(self.saved, saved)
        if self.saved >= self._begun[0]:
            self._saved_records = self._begun[1]
        self._page.publish(saved=self.saved)

    def _save(self, synced: int, limits: LogBounds) -> int:
        """Vouches for what is synced here and durable in the log; returns up to where.

        A store that Keelog never wrote to has no epochs, and so nothing to vouch with.
        """
        offset = min(synced, limits.flushed)
        if limits.epoch == 0:
            return 0
        try:
            save_progress(
                self._place.root, self._place.slot, WorkerCheckpoint(limits.epoch, offset)
            )
        except OSError as error:
            if error.errno not in PASSING:
                raise
            return 0
        log.debug("progress saved", extra=fields(epoch=limits.epoch, offset=offset))
        return offset


class TopicGrowth:
    """Counts what comes to each topic, from the ends of its queues: a message costs nothing."""

    def __init__(self, messages: Messages, counts: TopicCounts) -> None:
        """`messages`: as `Handler.messages_by_topic`, of one that has resumed: all that it
        knows by now was counted before."""
        self._messages = messages
        self._counts = counts
        self._known = messages() or {}
        self._seen = 0
        self._due_at = 0.0

    def look(self, now: float, records: int) -> None:
        """Counts what has come since the last look, when it is time for one again.

        `records`: all that were dispatched; until there are more, nothing has come.
        """
        if now >= self._due_at and records != self._seen:
            # Of the processor: a machine that gave others the turn must not delay the counts.
            began = time.thread_time()
            self.look_now(records)
            took = time.thread_time() - began
            self._due_at = now + max(TOPICS_EVERY_S, took / TOPICS_TIME_SHARE)

    def look_now(self, records: int) -> None:
        """As `look`, whether it is time or not."""
        self._seen = records
        found = self._messages() or {}
        for topic, messages in found.items():
            grown = messages - self._known.get(topic, 0)
            if grown > 0:  # less than before after a cut of the log
                self._counts.add(topic, grown)
        self._known = found
        self._counts.publish()

    def close(self) -> None:
        self._counts.close()


class FilesLost(Exception):
    """Files of the worker were removed or replaced; it must end."""


class Stopped(Exception):
    """The wish to stop came while a handler was at work."""


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Runs some work in a thread of its own.

    No thread outlives its work: one that waits for the next may end by an error that nobody sees.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 (raised again by `Future.result`)
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=run, name=name).start()
    return future
