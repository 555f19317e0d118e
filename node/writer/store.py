"""A store as its writer holds it: locks, recovered log, topics, the files beside the log.

It warns of a wall clock that was set, or that store times lie ahead of. Store times never fall, so
they stay as they are until the clock has reached them.
"""

import ipaddress
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from node.access.answers import UserDesk
from node.access.asking import PortGuard
from node.access.audit import AuditLog
from node.access.rights import Rights
from node.access.user_table import OwnedUserTable
from node.runtime import disk, stored_times
from node.runtime.addresses import first_ipv4
from node.runtime.event_log import fields
from node.runtime.locks import StoreLock
from node.runtime.process import check_created, now_ms
from node.runtime.run_files import RecoveredEnds, make_right, write_ends
from node.runtime.settings import Settings
from node.runtime.shortage import as_refusal
from node.runtime.state_page import RECOVERING, STOPPED, LogPage, run_dir
from node.runtime.store_paths import no_permission
from node.store import checkpoints
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX
from node.store.config.consumer_offsets import ConsumerOffsets
from node.store.config.topics_file import TopicsFile
from node.store.identity.places import check_links, check_own_files
from node.store.identity.store_id import check_guards, ensure_id
from node.store.log.reader import Bounds
from node.writer import recovery
from node.writer.appender import Appender, Placement
from node.writer.broker_checkpoint import SAVE_EVERY_S, BrokerCheckpoint, live_workers
from node.writer.delays import Delays
from node.writer.log.ahead import make_ahead
from node.writer.log.commit_log import CommitLog, make_pool
from node.writer.log.retention import Retention, Spared
from node.writer.repeats import KeyWindow, StoredOnce
from node.writer.topic_table import TopicTable
from protocol import names
from protocol.addresses import WILDCARDS
from protocol.derived.removed import Removed
from protocol.errors import NotAStore
from protocol.ids import Host, Queue
from protocol.kernel import loader
from protocol.record.append import Sealer
from protocol.record.patch import AppendRules

log = logging.getLogger("keelog.writer")

CLOCK_WARN_MS = 5_000

TAILS_EVERY_BYTES = 64 * 1024 * 1024
TAILS_EVERY_RECORDS = 200_000
"""Whichever comes first: a start walks no more than this, well within a second."""
LOCK_WAIT_S = 5.0
DISK_RETRY_S = 1.0


class WriterStore:
    """The open store, for the writer's loop. `open_writer_store` makes it."""

    may_be_followed = False
    """Whether a process of the node serves followers; the store's owner sets it."""
    _checkpoint_at = 0.0
    _retried_at = 0.0
    """When it was last tried to make a segment for which there was no room."""

    def __init__(
        self,
        lock: StoreLock,
        page: LogPage,
        found: recovery.Recovery,
        epoch: int,
        settings: Settings,
        store_host: Host,
    ) -> None:
        self.root = found.root
        self.lock = lock
        self.page = page
        self.settings = settings
        self.store_host = store_host
        self.epoch = epoch
        self.rules = AppendRules(settings.max_message_size, settings.enabled_append_prop_crc)
        self.min_offset = found.min_offset
        self.removed, interrupted = self._without_entries_of_removed(found)
        self.topics = TopicTable(TopicsFile(self.root), settings, found.tails, now_ms)
        self.delays = Delays(self.topics, self.rules, settings, now_ms)
        pool, ahead = make_pool(settings), make_ahead(self.root, found.segment_bytes, settings)
        self.log = CommitLog(self.root, found.segment_bytes, found.end, pool, ahead)
        self.log.open_tail()
        self.placement = Placement(
            self.log, found.tails, found.last_store_timestamp, found.last_record_offset
        )
        self.offsets = ConsumerOffsets(self.root, self.placement.tails, self.topics.has, now_ms)
        self.users = UserDesk(OwnedUserTable(self.root), AuditLog(self.root))
        self.port = PortGuard(Rights(self.users.table, settings), self.users.audit)
        for name in interrupted:
            self.offsets.forget(name)
        self.checker = Sealer(self.rules)  # of records that are looked at before they are appended
        self.appender = Appender(self.placement, self.topics, self.rules, store_host.to_bytes())
        self.stored_once = self._stored_once(found)
        self.append = (self.stored_once or self.appender).append
        self.floor = checkpoints.Floor(self.root)
        self.floor.save(found.end)
        self.checkpoint = BrokerCheckpoint(self.root, settings)
        self.inner_right = make_right(self.run_dir)
        self._clock_watch = ClockWatch(self.root)
        self._snapshot: checkpoints.Tails | None = None
        self._snapshot_at = found.end
        self._snapshot_records = 0
        self._flushed = found.end
        self._tails_at = 0
        """The log offset of the last saved snapshot of this run."""
        self.retention = Retention(self.root, found.segment_bytes, settings)
        self.kept_from: dict[str, int] = {}
        """By topic with a retention of its own: the log offset of its first message that is not
        past it, as last looked for."""
        self.needed_from: Callable[[int], int] = lambda offset: offset
        """Returns the lesser of an offset and of that from which unfinished publications need the
        log."""

    def _stored_once(self, found: recovery.Recovery) -> StoredOnce | None:
        """None where nobody looks for repeated keys."""
        settings = self.settings
        if not settings.idempotent_window:
            return None
        window_ms, keys_max = settings.idempotent_window * 1000, settings.idempotent_keys_max
        bounds = Bounds(found.min_offset, found.end)
        window = KeyWindow(self.root, window_ms, keys_max, bounds, found.last_store_timestamp)
        append, crc = self.appender.append, self.rules.crc
        return StoredOnce(
            window, append, lambda: (self.min_offset, self.log.end), lambda: self.removed, crc
        )

    def beat(self) -> None:
        """Shows that the owner of the log lives, and how far store times lie ahead. Raises
        PageAbsent."""
        now = stored_times.moment()
        newest_ms = self.placement.last_store_timestamp
        self.page.publish(newest_ms=newest_ms)
        self.page.beat(now.wall_ms)
        self._clock_watch.turn(newest_ms, now)

    @property
    def repeats(self) -> int:
        """Messages that were sent again with `once`, and not stored again, since the start."""
        return 0 if self.stored_once is None else self.stored_once.taken_out

    @property
    def is_reading(self) -> bool:
        """Whether `read_on` has something to read."""
        return self.stored_once is not None and self.stored_once.is_behind

    def read_on(self, is_busy: bool) -> None:
        """Reads of the log what repeated keys are looked for in, a part of it at a time, a smaller
        one while messages come."""
        if self.stored_once is not None:
            self.stored_once.turn(is_busy)

    @property
    def run_dir(self) -> Path:
        return run_dir(self.root)

    def publish_start(self) -> None:
        """Begins the epoch: all that was recovered is readable from now on; where followers decide
        what is, only what was readable before."""
        end, before = self.log.end, self.page.read()
        waits = self.settings.shows_replicated and before.epoch
        self.page.begin_epoch(
            self.epoch,
            epoch_start=end,
            min_offset=self.min_offset,
            removals=self.removed.number,
            **dict.fromkeys(("appended", "committed", "flushed"), end),
            readable=min(before.readable, end) if waits else end,
            segment_bytes=self.log.segment_bytes,
        )

    def snapshot_if_due(self, settle: Callable[[], None] | None = None) -> None:
        """Copies the queues' ends now and then, to be saved once the log is flushed up to there.

        `settle` is called before, where the ends may not be up to date.
        """
        new_bytes = self.log.end - self._snapshot_at
        new_records = self.placement.records - self._snapshot_records
        is_due = new_bytes >= TAILS_EVERY_BYTES or new_records >= TAILS_EVERY_RECORDS
        if self._snapshot is None and is_due:
            if settle is not None:
                settle()
            self._snapshot = self.placement.snapshot()
            self._snapshot_at = self.log.end
            self._snapshot_records = self.placement.records

    def after_flush(self, target: int) -> Callable[[], None]:
        """The flush thread's work after a sync up to `target`: it saves floor and snapshot."""
        snapshot = self._snapshot
        if snapshot is not None and snapshot.at <= target:
            self._snapshot = None
        else:
            snapshot = None

        def save() -> None:
            # Both are lower bounds: without room on the disk the older ones stay true.
            with disk.if_room():
                self.floor.save(target)
            if snapshot is None:
                return
            with disk.if_room():
                checkpoints.save_tails(self.root, snapshot)
                self._tails_at = snapshot.at

        return save

    def flushed_to(self, target: int) -> None:
        """Publishes a flush that has ended."""
        self.log.flushed_to(target)
        self.page.publish(flushed=target)
        self._flushed = target

    def save_what_is_due(self, now: float) -> None:
        """The broker's checkpoint and the cursors; and tries again to make a segment."""
        if now - self._checkpoint_at >= SAVE_EVERY_S:
            self._checkpoint_at = now
            with disk.if_room():
                self.checkpoint.save_running()
                self.topics.keep_file()
        self.offsets.turn(now)
        if self.log.lacks_next and now - self._retried_at >= DISK_RETRY_S:
            self._retried_at = now
            if self.log.retry_next():
                log.info("the next segment could be made")

    def retain(self, now: float) -> None:
        """Deletes old segments when they are due, after publishing where the log begins then."""
        segments = self.retention.turn(now, self._spared)
        if segments:
            self.min_offset = max(self.min_offset, segments[-1].end)
            self.page.publish(min_offset=self.min_offset)
            self.retention.delete(segments)
            self._save_removed(self.removed.within(self._removals_needed_from, self.log.end))

    # Removed messages

    @property
    def _removals_needed_from(self) -> int:
        """The log offset below which no entry of the note matters any more.

        A snapshot of the queues' ends from before a removal still counts its records. It may be of
        the same log offset.
        """
        return min(self.min_offset, self._tails_at - 1)

    def has_topic(self, name: str) -> bool:
        """Whether there is a topic of this name, or messages of one."""
        return self.topics.has(name) or any(queue.topic == name for queue in self.placement.tails)

    def remove_topic(self, name: str) -> None:
        """Removes a topic and all its records. The whole log must be flushed.

        From the saved note on they are gone; what a kill leaves undone, the next start does.
        Raises ServiceNotAvailable, disk_full or no_resources, and other OSErrors.
        """
        removed = self.removed.without_topic(name, self.log.end, self.topics.version)
        with self._refusing():
            checkpoints.save_removed(self.root, removed)
        self.removed = removed
        tails = self.placement.tails
        for queue in [queue for queue in tails if queue.topic == name]:
            del tails[queue]
        try:
            # Before the table of topics: while that has the topic, a start forgets both.
            self.offsets.forget(name)
            self.offsets.save()
            self.topics.forget(name)
        finally:
            self.page.publish(removals=removed.number)
        log.info("topic removed", extra=fields(topic=name, horizon=self.log.end))

    def purge(self, begins: Mapping[Queue, int]) -> None:
        """Hides the records of queues below these log offsets. The whole log must be flushed.

        Raises ServiceNotAvailable, disk_full or no_resources, and other OSErrors.
        """
        with self._refusing():
            self._save_removed(self.removed.with_purged(begins))

    def _save_removed(self, removed: Removed) -> None:
        if removed is not self.removed:
            checkpoints.save_removed(self.root, removed)
            self.removed = removed
            self.page.publish(removals=removed.number)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise as_refusal(error, str(checkpoints.own_dir(self.root))) from None

    def _without_entries_of_removed(self, found: recovery.Recovery) -> tuple[Removed, list[str]]:
        """Finishes removals that a kill interrupted after the note was saved.

        Returns the note, without what no longer matters, and the topics of such removals.
        """
        needed_from = min(found.min_offset, (found.tails_at or 0) - 1)
        removed = found.removed.within(needed_from, found.end)
        table = TopicsFile(self.root)
        version = table.version
        interrupted = [
            name for name, topic in removed.topics.items() if version <= topic.table_version
        ]
        for name in interrupted:
            table.remove(name, now_ms())
        if removed is not found.removed:
            checkpoints.save_removed(self.root, removed)
        return removed, interrupted

    def _spared(self) -> Spared:
        """The offsets that retention spares.

        A queue's end must be known without the segments that go: from the snapshot, which is taken
        here, or from the queue's own files.
        """
        base = self.log.end - self.log.end % self.log.segment_bytes
        if self._tails_at < base and self._snapshot is None:
            self._snapshot, self._snapshot_at = self.placement.snapshot(), self.log.end
            if self._flushed == self.log.end:
                self.after_flush(self._flushed)()
        followed = [
            progress.offset
            for slot, progress in checkpoints.list_progress(self.root).items()
            if slot != INDEX_WORKER or self.settings.message_index_enable
        ]
        passed = min(followed, default=0)
        needed = min(self._flushed, base, max(self._tails_at, passed))
        return Spared(self.needed_from(needed), passed, self._reserved_from())

    @property
    def longest_hours(self) -> int:
        """How long a segment is kept at most that holds messages of any topic."""
        usual = self.settings.file_reserved_time
        return max([usual, *(topic.retention_hours for topic in self.topics.all())])

    def _reserved_from(self) -> int:
        """The log offset from which on a topic may have messages that it keeps for longer."""
        usual = self.settings.file_reserved_time
        longer = (one.name for one in self.topics.all() if one.retention_hours > usual)
        return min((self.kept_from.get(name, 0) for name in longer), default=self.log.end)

    def has_workers(self) -> bool:
        return bool(live_workers(self.root))

    def workers_are_done(self) -> bool:
        """Whether every derived file is synced up to the log's end."""
        states = live_workers(self.root)
        queue_slots = [slot for slot in states if slot.startswith(QUEUE_WORKER_PREFIX)]
        expected = {int(slot.rpartition("-")[2]) for slot in queue_slots}
        complete = len(expected) == 1 and len(queue_slots) == expected.pop()
        if self.settings.message_index_enable and INDEX_WORKER not in states:
            return False
        return complete and all(state.saved >= self.log.end for state in states.values())

    def close_cleanly(self, workers_done: bool) -> None:
        """Closes all files. The mark of a clean stop is left, and `abort` removed, only with
        `workers_done`."""
        end = self.log.end
        self.offsets.close()
        self.users.close()
        self.retention.close()
        if self.stored_once is not None:
            self.stored_once.close()
        self.floor.save(end)
        self.floor.close()
        checkpoints.save_tails(self.root, self.placement.snapshot())
        self.log.close(unlink_next=True)
        if workers_done:
            last = self.placement.last_record_offset
            self.checkpoint.save_clean(self.placement.last_store_timestamp, last, end)
            checkpoints.mark_clean(self.root, self.epoch, end)
            disk.unlink(self.root / names.ABORT_FILE, missing_ok=True)
            disk.sync_dir(self.root)
        else:
            log.warning("the workers are behind: the next start looks at the queues again")
        self.checkpoint.close()
        self.page.publish(state=STOPPED)
        self.page.close()
        self.lock.release()


def open_writer_store(
    root: Path,
    settings: Settings,
    store_host: Host,
    alone: bool,
    progress: recovery.Progress = recovery.ignore_progress,
    prepare: Callable[[Path], None] = lambda _root: None,
) -> WriterStore:
    """Locks, recovers and opens a store, which `node.store.identity.places` has made.

    `alone`: no supervisor holds the store, so `flock` is taken here. `progress` gets the recovery's
    progress, as in `node.writer.recovery.examine`. `prepare` is called with the lock held,
    before anything is read.

    Raises StoreLocked, NotAStore, StorePermission, StoreDamaged, StoreMoved, and changes nothing.
    """
    if root.exists() and not root.is_dir():
        raise NotAStore(f"{root} is a file", "name a directory")
    try:
        check_links(root)
        check_own_files(root)
        check_created(root)
        lock = StoreLock.acquire(root, flock=alone, wait_s=LOCK_WAIT_S, create=False)
        try:
            prepare(root)
            return _open_locked(lock, root, settings, store_host, progress)
        except BaseException:
            lock.release()
            raise
    except PermissionError as error:
        raise no_permission(error) from None


def _open_locked(
    lock: StoreLock, root: Path, settings: Settings, store_host: Host, progress: recovery.Progress
) -> WriterStore:
    started = now_ms()
    check_guards(root)
    found = recovery.examine(root, settings, progress)
    TopicsFile(root)  # Raises for a damaged file, as `examine` does, before anything is changed.
    recovery.warn_of_lost(found)
    ensure_id(root)
    page = LogPage.create(root)
    page.publish(state=RECOVERING)
    _show_durable(page, found)
    checkpoints.clear_clean(root)
    if not (root / names.ABORT_FILE).exists():
        checkpoints.save_owner(root, None)
    epoch = recovery.carry_out(found, settings.enabled_append_prop_crc)
    recovery.replace_lost_table(found)
    # Only now: until here the mark names the owner of the bytes that were just recovered.
    checkpoints.save_owner(root, epoch)
    store = WriterStore(lock, page, found, epoch, settings, store_host)
    _write_recovered_ends(found, epoch)
    store.publish_start()
    if loader.unfit():
        log.warning("the compiled kernel is not used", extra=fields(cause=loader.unfit()))
    took_ms = now_ms() - started
    details = fields(end=found.end, epoch=epoch, queues=len(found.tails), took_ms=took_ms)
    log.info("log recovered", extra=details)
    return store


def _write_recovered_ends(found: recovery.Recovery, epoch: int) -> None:
    """For a store in which somebody has delivered messages that wait."""
    if not any(
        (found.root / name).exists() for name in (names.DELAY_OFFSETS_FILE, names.TIMER_CHECK_FILE)
    ):
        return
    queues: dict[str, dict[str, int]] = {names.SCHEDULE_TOPIC: {}, names.TIMER_TOPIC: {}}
    for queue, end in found.tails.items():
        if queue.topic in queues:
            queues[queue.topic][str(queue.queue_id)] = end
    write_ends(found.root, RecoveredEnds(epoch, found.end, queues))


def _show_durable(page: LogPage, found: recovery.Recovery) -> None:
    """Publishes the part of the log that is sure to stay, under the last epoch.

    A recovery may be long, or may have to wait for room on the disk: readers need not wait for it.
    It never cuts below the durable floor. Numbers that its predecessor published in the same epoch
    are true up to the end that was found.
    """
    if not found.epochs:
        return
    known, last = page.read(), found.epochs[-1]
    if known.epoch == last.epoch:
        if known.readable > found.end:
            page.publish(readable=found.end, appended=found.end, committed=found.end)
        return
    ends = dict.fromkeys(("appended", "committed", "flushed", "readable"), found.floor)
    start = {"epoch_start": last.start, "min_offset": found.min_offset}
    page.begin_epoch(last.epoch, **start, **ends, segment_bytes=found.segment_bytes)


class ClockWatch:
    """One for each process that owns a log. One line for each time that something changes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known = stored_times.read_clock(root)
        self._last = None if self._known is None else self._known.last
        self._was_ahead = False

    def turn(self, newest_ms: int, now: stored_times.Moment) -> None:
        """`newest_ms`: the store time of the newest message; 0 without one."""
        set_by_ms = 0 if self._last is None else now.set_by_ms(self._last)
        ahead_ms = max(0, newest_ms - now.wall_ms)
        is_ahead, was_set = ahead_ms > CLOCK_WARN_MS, abs(set_by_ms) > CLOCK_WARN_MS
        if was_set or (is_ahead and not self._was_ahead):
            event = "the clock was set" if was_set else "the clock is wrong, or was ahead"
            found = fields(set_by_s=round(set_by_ms / 1000), store_ahead_s=round(ahead_ms / 1000))
            log.warning(event, extra=found)
        if self._known is None or abs(set_by_ms) > stored_times.SET_MS:
            before = () if self._known is None else self._known.sets
            sets = (*before, stored_times.ClockSet(now.steady_ms, set_by_ms)) if set_by_ms else ()
            self._known = stored_times.ClockHistory(now, sets[-stored_times.SETS_MAX :])
            with disk.if_room():
                stored_times.write_clock(self._root, self._known)
        self._last, self._was_ahead = now, is_ahead


def store_host_of(bind: str, store_port: int, known: str = "") -> Host:
    """The store host of records: an IPv4 address of the node, with `store_port`: that of the
    gateway, else the control port.

    It is `known`, the host that clients are given, else that of `bind`, where those are IPv4
    addresses; else, and where the node listens everywhere, the first one that others can reach.
    """
    for address in (known, bind.removeprefix("tcp://").rpartition(":")[0]):
        if address in WILDCARDS:
            break
        with suppress(ValueError):
            return Host(ipaddress.IPv4Address(address).packed, store_port)
    return Host(ipaddress.IPv4Address(first_ipv4()).packed, store_port)
