"""The writer process: owns the CommitLog, takes appends, announces how far the log reaches.

One loop: take all that waits, append it as one group, publish the state page, notify, answer.
In SYNC_FLUSH (or where a request asks for it) the answer waits for the flush that covers it.
"""

import argparse
import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import monotonic_ns, time_ns

import zmq

from node.access.curve import CurveGate, gate_of
from node.runtime import disk, process
from node.runtime.event_log import fields
from node.runtime.run_files import ANOTHER_MASTER, STEP, OtherMaster, read_other_master
from node.runtime.settings import Settings
from node.runtime.shortage import as_refusal, is_disk_full, is_shortage
from node.runtime.state_page import DISK_FULL, NO_RESOURCES, RUNNING, STOPPING
from node.runtime.stats_series import FLUSH_DISK_TIMEOUT
from node.runtime.store_paths import check_held
from node.runtime.wakeup import READER_SLOTS, SLEEP_S_MAX, Waiters
from node.serving.curve_server import open_server
from node.serving.request_server import BadFrames, Received, RequestWait, Server
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX
from node.writer import requests
from node.writer.appender import AppendRequest, queues_of
from node.writer.delays import Undelivered
from node.writer.log.flush import FlushServices, Moved
from node.writer.recovery import RecoveryProgress
from node.writer.removal import REMOVAL_OPERATIONS, Removals
from node.writer.requests import PUT_OK, Acknowledgements, GroupCommit, PendingRequest
from node.writer.staging import stages
from node.writer.staging.publisher import Publisher
from node.writer.stats import WriterStats
from node.writer.store import WriterStore, open_writer_store, store_host_of
from protocol.addresses import DEFAULT_PORT
from protocol.errors import BadRequest, MqError, NodeBusy, ServiceNotAvailable, StoreMoved
from protocol.names import DEFAULT_CLUSTER
from protocol.request_fields import WAIT_FLUSHED, WAIT_NONE
from protocol.wire.frames import Header, check_envelope, id_within, refusal, request_id, unpack

log = logging.getLogger("keelog.writer")

GROUP_REQUESTS_MAX = 512
GROUP_BYTES_MAX = 1024 * 1024
HEARTBEAT_S = 0.1
HELD_S = 0.01
"""Appends check this often that the store is at its path. A check releases the interpreter's lock
to the flush thread: each millisecond it cost SYNC_FLUSH a tenth of its messages."""
HOUSE_S = 0.01
"""How often `_keep_house` runs while no request waits for the disk or a publication."""
WATCH_MS = 10
IDLE_MS = int(SLEEP_S_MAX * 1000)
"""How long the loop sleeps at most, with and without something that goes on by the clock. Requests,
ends of jobs and the wish to stop wake it."""
APPENDS = ("append", "send")
STOP_WAIT_S = 5.0
_NEVER = float("inf")
_ALONE = nullcontext()


def is_log_follower(slot: str) -> bool:
    """Whether a process of this slot may sleep until the log grows."""
    return slot.startswith((QUEUE_WORKER_PREFIX, INDEX_WORKER, *READER_SLOTS))


class Writer:
    """The loop. It owns the sockets and, through `store`, the log."""

    def __init__(self, store: WriterStore, server: Server, workers: Waiters) -> None:
        self.store = store
        self.settings: Settings = store.settings
        self.port = store.port
        self.server = server
        self.workers = workers
        now = time.monotonic()
        self.flushing = FlushServices(store.log, self.settings, now, store.after_flush)
        self.waiting = GroupCommit(self.settings)
        self.stats = WriterStats(store.root, self.settings.is_sync_flush)
        self.staging = Publisher(store, server, self._put, lambda: self.flushing.flushed)
        refuse = partial(self._refuse, is_append=False)
        self.removals = Removals(store, self._flush_all, self._answer_other, refuse)
        self.undelivered = Undelivered(store.root, store.placement.tails, store.delays.delivers)
        self._is_sync = store.settings.is_sync_flush
        self._shows_at_once = store.log.pool is None and not self.settings.shows_late
        """Whether an append is readable as soon as it is written."""
        refuses = self.settings.fast_fail_if_no_buffer_in_store_pool
        self._checked_pool = store.log.pool if refuses else None
        self.acknowledgements: Acknowledgements | None = None
        """Of a node that may be followed; its owner sets it."""
        self.stopping = False
        self.lacks_room = False
        """Whether an append was refused for a shortage of room or descriptors, which lasts."""
        self.last_heartbeat = 0.0
        self._newer_master: OtherMaster | None = None
        self._last_count = 0
        """How many records the last turn was asked to append."""
        self._house_at = 0.0
        self._held_at = 0.0

    def run(self, stop: process.StopFlag) -> None:
        """Serves until the flag is set, then stops in order.

        Raises OSError, and StoreMoved, with which it has refused the requests that wait.
        """
        fds = [*self.flushing.fds, self.staging.fd, stop.fd]
        fds += [] if self.acknowledgements is None else [self.acknowledgements.fd]
        wait = RequestWait((*self.server.watched, *fds), self.server)
        self.store.page.publish(state=RUNNING)
        try:
            while not stop.is_set:
                wait.poll(*self._rest())
                self.step(time.monotonic())
            self._stop(wait)
        except StoreMoved as error:
            self._refuse_all(error)
            raise

    def step(self, now: float) -> None:
        """One turn: a group of requests, and what is due of the rest."""
        if self.flushing.has_ended:
            self._publish(self.flushing.collect(now))
        began = monotonic_ns()
        group = self._take_group()
        self._last_count = sum([pending.append.count for pending in group])
        if group:
            self._append(group, now, began)
        if self.acknowledgements is not None:
            self.acknowledgements.turn(now, self.flushing.flushed)
        if now >= self._house_at:
            self._keep_house(now)
        elif (
            self.flushing.is_hasty or self.waiting.count or self.staging.is_active or self.stopping
        ):
            self._serve_waiting(now)

    def _serve_waiting(self, now: float) -> None:
        """Goes on with what requests wait for: publications, flushes, deadlines."""
        if self.stopping or self.staging.is_active:
            self.staging.step(now, self.stopping)
        is_waited_for = self.waiting.count > 0 or self.staging.waits_for_flush
        is_followed = self.acknowledgements is not None and self.acknowledgements.has_followers
        self.flushing.begin(now, self.stopping or is_waited_for, is_followed)
        self.answer_waiting(self.waiting.overdue(now), FLUSH_DISK_TIMEOUT, flushed=False)

    def _keep_house(self, now: float) -> None:
        """The work that not every turn has to do, so that appends do not pay for it."""
        self._house_at = now + HOUSE_S
        self.store.snapshot_if_due()
        if not self.stopping and not self.staging.is_active:
            self.staging.step(now, self.stopping)
        self._serve_waiting(now)
        self.removals.step()
        self.store.read_on(is_busy=self._last_count > 0)
        if now - self.last_heartbeat >= HEARTBEAT_S:
            check_held()
            self.port.look(now)
            self.store.page.publish(flush_began_ms=self.flushing.flush_began_ms)
            self.store.beat()
            process.met_damage.turn(now)
            self.stats.publish(self.waiting.count, self.store.repeats)
            self.last_heartbeat = now
            self.undelivered.turn(now, process.now_ms())
            self.workers.look()
            self.server.turn()
            self._look_for_room()
            other = read_other_master(self.store.root)
            self._newer_master = other if other is not None and other.leads else None
        self.store.save_what_is_due(now)
        if not self.stopping:
            with disk.if_room():
                self.store.retain(now)
            self.removals.expire(now)

    def _rest(self) -> tuple[int, bool]:
        """How long the loop may sleep, in ms, and whether it stays awake for a moment before: a
        client that waits for each answer sends the next request then."""
        is_publishing = self.staging.is_active
        if self.server.ready or (is_publishing and self.staging.has_work):
            return 0, False
        if self.waiting.count or is_publishing or self.stopping:
            return WATCH_MS, False
        # While appends come, a request ends most sleeps: the clock decides after other turns.
        is_busy = self._last_count or self.server.unsent
        if is_busy or self.removals.waiting or self.store.is_reading:
            return WATCH_MS, self._last_count == 1
        turns_at = self.flushing.turns_at
        if turns_at == _NEVER:
            return IDLE_MS, False
        left_ms = int((turns_at - time.monotonic()) * 1000)
        return min(max(WATCH_MS, left_ms), IDLE_MS), False

    def _look_for_room(self) -> None:
        """Publishes that the disk is too full for appends, and when they are taken again."""
        full = self.store.retention.full
        if full is not None and not self.stopping:
            self._note_shortage(DISK_FULL, full)
        elif self.lacks_room and not self.store.log.lacks_next and not self.stopping:
            self.lacks_room = False
            self.store.page.publish(state=RUNNING)

    # -- requests -----------------------------------------------------------------------------

    def _take_group(self) -> list[PendingRequest]:
        group: list[PendingRequest] = []
        size = 0
        for _ in range(GROUP_REQUESTS_MAX):
            if size >= GROUP_BYTES_MAX:
                break
            received = self.server.receive()
            if received is None:
                break
            if isinstance(received, BadFrames):
                self._refuse(received.peer, received.request_id, received.error, False)
                continue
            pending = self._parse(received, size)
            if pending is not None:
                group.append(pending)
                size += len(pending.append.records) or pending.append.draft_bytes
            elif received.payload is not None:
                size += len(received.payload)
        return group

    def _parse(self, received: Received, group_bytes: int) -> PendingRequest | None:
        """Parses an append; serves all other operations itself. Never raises for bad input.

        `group_bytes`: the size of the appends that this turn has taken already.
        """
        header: Header = {}
        try:
            header = unpack(received.header)
            operation = check_envelope(header)
            asker = self.port.asker_of(received, operation, header) if self.port.is_on else None
            if operation in APPENDS:
                is_full = self.waiting.is_full or self.store.retention.full is not None
                if is_full or self.stopping or self._newer_master is not None:
                    self._refuse_append()
                if operation == "append":
                    pending = requests.pending_append(received, header, self.store, asker)
                else:
                    pending = requests.pending_send(received, header, self.store)
                if self._checked_pool is not None:
                    self._checked_pool.check_fits(group_bytes + pending.append.size)
                return pending
            if operation in stages.OPERATIONS:
                self._check_runs()
                answered = self.staging.handle(received, header, operation, asker)
                if answered is not None:
                    self._answer_other(received.peer, answered)
                return None
            if received.payload is not None:
                raise BadRequest(f"{operation[:40]!a} is one frame, two came")
            if operation in REMOVAL_OPERATIONS:
                self._check_runs()
                self.removals.ask(received.peer, header, operation)
                return None
            answered = requests.answer_other(self.store, operation, header, received, asker)
            self._answer_other(received.peer, answered)
        except (MqError, OSError) as error:
            number = request_id(header) or id_within(received.header)
            asked = header.get("op")
            # Not into a variable: a frame that holds an error whose traceback holds the frame is a
            # cycle, and keeps the request's memory until the collector runs.
            place = str(self.store.root)
            self._refuse(received.peer, number, as_refusal(error, place), asked in APPENDS)
        return None

    def _check_runs(self) -> None:
        if self.stopping:
            raise ServiceNotAvailable("the node is stopping", "send it again when it is back")
        if self._newer_master is not None:
            raise ServiceNotAvailable(f"{ANOTHER_MASTER}: {self._newer_master}", STEP)

    def _refuse_append(self) -> None:
        """Raises what appends are refused with now, ServiceNotAvailable or NodeBusy."""
        self._check_runs()
        if self.waiting.is_full:
            raise NodeBusy(
                f"{self.waiting.count} requests wait for the disk", "send it again later"
            )
        self.store.retention.check_room()

    def _answer_other(self, peer: bytes, answered: Header) -> None:
        self.server.send(peer, answered)
        self.stats.answered_other()

    def _refuse(self, peer: bytes, number: int, error: MqError, is_append: bool) -> None:
        self.stats.refused(is_append, error)
        # Topics and stages are refused on a disk where appends still go on.
        if is_append and is_shortage(error) and not self.stopping:
            self._note_shortage(DISK_FULL if is_disk_full(error) else NO_RESOURCES, error.reason)
        self.server.send(peer, refusal(number, error))

    def _note_shortage(self, state: int, why: str) -> None:
        self.lacks_room = True
        self.store.page.publish_refusal(state, why)

    def _flush_all(self) -> None:
        """The whole log is durable afterwards: what is noted of it now names nothing above."""
        self._publish(self.flushing.flush_all(time.monotonic()))

    def _refuse_all(self, error: MqError) -> None:
        """Refuses the requests that wait, GROUP_REQUESTS_MAX at most: this process ends."""
        self.server.may_have_remote = True
        for _ in range(GROUP_REQUESTS_MAX):
            received = self.server.receive()
            if received is None:
                return
            if isinstance(received, BadFrames):
                number = received.request_id
            else:
                number = id_within(received.header)
            self._refuse(received.peer, number, error, False)

    # -- appending and answering --------------------------------------------------------------

    def _append(self, group: list[PendingRequest], now: float, began: int) -> None:
        if now >= self._held_at:
            self._check_held(group, now)
        appended = [pending.append for pending in group]
        parsed = monotonic_ns()
        grew, is_lone, store = self._write(appended, now), len(group) == 1, self.store
        turn = (began, parsed, monotonic_ns())
        if grew and not is_lone:
            self._wake(appended)
        answered = 0
        with _ALONE if is_lone else self.server.together():
            for pending in group:
                done, wait = pending.append, pending.wait
                waits = wait == WAIT_FLUSHED or (self._is_sync and wait != WAIT_NONE)
                if done.error is not None:
                    self._refuse(pending.peer, pending.request_id, done.error, True)
                elif self.acknowledgements is not None and self.acknowledgements.take(pending, now):
                    pending.turn = turn
                elif waits and done.end > self.flushing.flushed:
                    pending.turn = turn
                    self.waiting.put(pending, now)
                else:
                    header = pending.answer(store.store_host, store.epoch, PUT_OK, flushed=waits)
                    self.server.send(pending.peer, header)
                    answered += 1
        replied = monotonic_ns()
        if grew and is_lone:
            self._wake(appended)
        self.stats.turn(turn, replied, answered, store.placement.records)

    def _check_held(self, group: list[PendingRequest], now: float) -> None:
        """Before anything is written. Raises StoreMoved; the group is refused then."""
        self._held_at = now + HELD_S
        try:
            check_held()
        except StoreMoved as error:
            for pending in group:
                self._refuse(pending.peer, pending.request_id, error, True)
            raise

    def _put(self, appended: list[AppendRequest], now: float) -> None:
        """Appends records of a publication: `_append` without requests to answer."""
        check_held()
        began = monotonic_ns()
        if self._write(appended, now):
            self.stats.turn((began, began, monotonic_ns()), 0, 0, self.store.placement.records)
            self._wake(appended)

    def _write(self, appended: list[AppendRequest], now: float) -> bool:
        """Appends the valid requests and publishes the new end. Returns whether the log grew."""
        store, log = self.store, self.store.log
        if log.pool is not None:
            size = sum(request.size for request in appended)
            self._publish(self.flushing.wait_for_buffer(size, now))
        before = log.end
        store.append(appended, time_ns() // 1_000_000)
        if log.end == before:
            return False
        if self._shows_at_once:
            store.page.show_append(store.placement.records, log.end)
            return True
        store.page.publish(records=store.placement.records, appended=log.end)
        if log.pool is None:
            self._committed(log.end)
        return True

    def _wake(self, appended: list[AppendRequest]) -> None:
        """Wakes the processes that wait for the log to grow. The page shows the new end already.

        A lone request is answered before: its client need not wait for this.
        """
        if self._shows_at_once:
            self.workers.wake(self.store.epoch, self.store.log.end, partial(queues_of, appended))
        if self.flushing.is_hasty:
            self.flushing.wake()

    def _publish(self, moved: Moved) -> None:
        """Publishes how far a commit or flush came, and replies to requests that waited for it."""
        if moved.committed is not None:
            self._committed(moved.committed)
        if moved.flushed is None:
            return
        self.stats.flushed(moved.flush_ns)
        self.store.flushed_to(moved.flushed)
        if self.acknowledgements is not None:
            self.acknowledgements.flushed(moved.flushed)
        if self.settings.is_sync_flush and not self.settings.shows_replicated:
            self.announce(moved.flushed)
        self.answer_waiting(self.waiting.reached(moved.flushed), PUT_OK, flushed=True)

    def answer_waiting(self, waited: list[PendingRequest], status: str, flushed: bool) -> None:
        """Replies to requests that waited for the disk or for followers."""
        if not waited:
            return
        ended, store = monotonic_ns(), self.store
        with _ALONE if len(waited) == 1 else self.server.together():
            for pending in waited:
                header = pending.answer(store.store_host, store.epoch, status, flushed)
                self.server.send(pending.peer, header)
        self.stats.waited(waited, ended, monotonic_ns(), status)

    def _committed(self, offset: int) -> None:
        """All below is in the segments, and so readable, unless that has to wait for more."""
        self.store.page.publish(committed=offset)
        if not self.settings.shows_late:
            self.announce(offset)

    def announce(self, readable: int) -> None:
        """Moves the page first, then wakes: a woken process finds the new end."""
        self.store.page.publish(readable=readable)
        self.workers.wake(self.store.epoch, readable)

    # -- stopping -----------------------------------------------------------------------------

    def _stop(self, wait: RequestWait) -> None:
        """Refuses appends, flushes, waits for the workers, and leaves the mark of a clean stop."""
        self.stopping = True
        self.store.page.publish(state=STOPPING)
        self.workers.ring_all()
        deadline = time.monotonic() + STOP_WAIT_S
        while True:
            now = time.monotonic()
            self.step(now)
            workers_wait = self.store.has_workers() and not self.store.workers_are_done()
            is_over = now >= deadline or not (workers_wait or self.waiting.count)
            if self.flushing.is_done and is_over:
                break
            wait.poll(5)
        self.removals.close()
        self.staging.close()
        self.flushing.close()
        if self.acknowledgements is not None:
            self.acknowledgements.close()
        self.stats.close(self.store.repeats)
        try:
            self.store.close_cleanly(self.store.workers_are_done())
        except OSError as error:
            if error.errno not in disk.PASSING:
                raise
            log.warning("no mark of a clean stop could be made", extra=fields(why=error))


def log_owner_options(
    module: str, text: str | None, arguments: list[str] | None
) -> argparse.Namespace:
    """The options of the process that appends to the log: the writer, or a replica in its place."""
    parser = process.child_parser(module, text)
    parser.add_argument("--bind", default=f"tcp://127.0.0.1:{DEFAULT_PORT + 1}")
    parser.add_argument("--local", default="", metavar="IPC", help="for clients of this machine")
    parser.add_argument("--keys", action="store_true", help="clients over TCP come with keys")
    parser.add_argument("--cluster", default=DEFAULT_CLUSTER, help="the cluster of the node")
    parser.add_argument("--store-port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--advertise", default="", metavar="HOST", help="for the store host")
    parser.add_argument("--followers", action="store_true", help="a process serves followers")
    parser.add_argument("--delays", action="store_true", help="a process delivers delayed messages")
    return parser.parse_args(arguments)


def open_own_store(
    child: process.ChildProcess,
    settings: Settings,
    prepare: Callable[[Path], None] = lambda _root: None,
) -> WriterStore:
    """As `open_writer_store`, by the options of the process. `keelog/run` becomes its folder."""
    options = child.options
    store_host = store_host_of(options.bind, options.store_port, options.advertise)
    progress = RecoveryProgress(partial(process.report_recovery, child.ready_fd))
    is_alone = child.ready_fd is None
    store = open_writer_store(child.root, settings, store_host, is_alone, progress, prepare)
    store.port.cluster = options.cluster
    os.chdir(store.run_dir)
    return store


def gate_of_owner(store: WriterStore, has_keys: bool) -> CurveGate | None:
    """The keys that the server of the process that owns a store asks for; None without. Raises
    BadKey, OSError."""
    if not has_keys:
        return None
    return gate_of(store.root, store.users.table.user_of_key, store.users.audit)


def main(arguments: list[str] | None = None) -> int:
    """Runs the writer of one store until SIGTERM."""
    child = process.ChildProcess(
        slot="writer",
        what="the writer of {} cannot start",
        options=log_owner_options("node.writer.loop", __doc__, arguments),
        oom_points=process.OOM_WRITER,
        serves_clients=True,
    )
    return process.run_process(child, _serve)


def _serve(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> None:
    store = open_own_store(child, settings)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    workers = Waiters(context, child.root, is_log_follower)
    gate = gate_of_owner(store, child.options.keys)
    server = open_server(gate, context, child.options.bind, local=child.options.local)
    # Fail-stop: after a failed write or flush nothing more may be acknowledged.
    child.what = f"the writer of {child.root} stops, its log can no longer be trusted"
    store.delays.delivers = child.options.delays
    writer = Writer(store, server, workers)
    if child.options.followers:
        store.may_be_followed = True
        answer, show = writer.answer_waiting, writer.announce
        writer.acknowledgements = Acknowledgements(store, writer.waiting, context, answer, show)
    child.report_ready(server.endpoint)
    try:
        writer.run(stop)
    except StoreMoved:
        server.close()
        raise
    context.destroy(linger=1000)


if __name__ == "__main__":
    process.leave(main())
