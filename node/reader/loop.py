"""The reader process: pulls with long polling, look-ups by id, key and time (format 12 to 14).

Files decide, messages announce: what may be read is in the state pages; a hint from a queue
worker only shortens a held pull's wait.

Run it as `python -m node.reader.loop DIR --index I --shards N`.
"""

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import zmq

from node.reader.damage import DamageReporter
from node.reader.growth_notices import Hints, News
from node.reader.service import ReaderService
from node.reader.stats import ReaderStats
from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.held_store import is_in_place
from node.runtime.locks import FileLock
from node.runtime.process import (
    EXIT_OK,
    OOM_READER,
    DamageReport,
    StopFlag,
    leave,
    now_ms,
    report_damage,
)
from node.runtime.run_process import ChildProcess, child_parser, run_process
from node.runtime.settings import Settings
from node.runtime.shortage import is_shortage
from node.runtime.state_page import (
    DAMAGED,
    NEVER,
    RUNNING,
    STOPPED,
    STOPPING,
    StatePages,
    WorkerPage,
    run_dir,
)
from node.runtime.stats.page import StatsPage
from node.runtime.stats.series import READER
from node.runtime.stats.topic_counts import TopicCounts
from node.runtime.wakeup import (
    READER_SLOTS,
    SLEEP_S_MAX,
    Context,
    DatagramWakeup,
    Waiters,
    quiet_sleep_s,
)
from node.serving.request_server import Server
from node.serving.unix_server import bulk_socket
from node.store.identity.new_store import check_created
from node.store.opening import open_live
from node.store.query.pull_types import TransferLimits
from node.store.running_store import RunningStore
from node.store.topics_file import TopicsFile
from protocol.errors import BadRequest, CorruptError, MqError, ServiceNotAvailable

log = logging.getLogger("keelog.reader")

FRAME_BYTES_MAX = 1 << 20
ANSWERS_MAX = 256
"""Answers that ZeroMQ keeps for a connection that does not read: up to 64 KiB each."""
REQUESTS_AT_ONCE = 128
"""The most requests in a turn, before held pulls get theirs."""
TICK_MS = 2
"""The time between looks at the pages while a pull waits and messages flow: a lost hint costs less
than 5 ms. After a quiet time a look comes less often."""
IDLE_MS = int(SLEEP_S_MAX * 1000)
WAITING_S = 0.1
"""How long the reader follows the log after the last request for its end: most are repeated."""
HEARTBEAT_S = 0.1
REOPEN_CHECK_S = 1.0
UNFIT_S_MAX = 2.0
"""How long the log's folder may disagree with the pages, as the writer changes its files."""
LOCK_WAIT_S = 2.0
STOP_REQUESTS_MAX = 10_000
SHORTAGE_S = 0.1
"""The pause after a turn that failed because no descriptor was free."""


class ReaderSite(NamedTuple):
    """The store of a reader, and which of the node's readers it is."""

    root: Path
    number: int
    shards: int
    settings: Settings

    @property
    def slot(self) -> str:
        """The name of its page and lock."""
        return f"{READER_SLOTS}{self.number}"


class Reader:
    """The loop: it owns the sockets, the open store and the state page."""

    def __init__(
        self,
        site: ReaderSite,
        server: Server,
        page: WorkerPage,
        context: Context,
        report_damage: Callable[[DamageReport], bool],
    ) -> None:
        self.server = server
        self.poller = zmq.Poller()
        for watched in server.watched:
            self.poller.register(watched, zmq.POLLIN)
        self._site = site
        self._page = page
        self._bell = DatagramWakeup(site.slot)
        self.poller.register(self._bell.watched, zmq.POLLIN)
        self._hints = Hints(self._bell, site.shards)
        self._workers = Waiters(context, site.root, lambda slot: slot.startswith("queue-"))
        self.service = ReaderService(
            open_fitting(site),
            TopicsFile(site.root),
            transfer_limits(site.settings),
            server.send,
            site.shards,
        )
        self._stats = StatsPage(site.root, READER, site.number)
        self._topics = TopicCounts(site.root, READER, site.number)
        self._damage = DamageReporter(site.root, report_damage)
        self.service.stats = ReaderStats(self._stats.counts, self._topics, self._damage)
        self._epoch = 0
        self._unfit_since: float | None = None
        self._has_moved = False
        self._waits_until = 0.0
        self._wake_at = NEVER
        self._readable = 0
        self._grew_at = time.monotonic()
        self._heartbeat_at = 0.0
        self._reopen_check_at = 0.0

    @property
    def _pages(self) -> StatePages:
        return self.service.store.pages

    def run(self, stop: StopFlag) -> None:
        """Serves until the flag is set, then answers the held pulls."""
        self.poller.register(stop.fd, zmq.POLLIN)
        self._page.publish(state=RUNNING)
        sleep_ms = 0
        while not stop.is_set:
            ready = self.poller.poll(sleep_ms)
            now = time.monotonic()
            if self._pages.readable() != self._readable:
                self._readable, self._grew_at = self._pages.readable(), now
            if ready or self._is_anything_due(now):
                self._try_step(now, is_rung=any(one[0] == self._bell.watched for one in ready))
                now = time.monotonic()
            sleep_ms = self._sleep_ms(now) if self._ask_for_ring() else 0
        self._page.publish(state=STOPPING)
        self._stop()

    def _try_step(self, now: float, is_rung: bool) -> None:
        """As `step`; without a free descriptor it pauses, and a later turn does the rest."""
        try:
            with disk.if_room():
                self.step(now, is_rung)
                return
        except MqError as error:
            if not is_shortage(error):
                raise
            log.warning("not done for now", extra=fields(why=error))
        self._beat(now)
        time.sleep(SHORTAGE_S)

    def step(self, now: float, is_rung: bool) -> None:
        """One turn: takes in the pages, serves requests, wakes held pulls, times out, beats."""
        # Hints first: the refresh after them covers what they announce.
        news = self._collect(now, is_rung)
        self._refresh(now)
        for _ in range(REQUESTS_AT_ONCE):
            received = self.server.receive()
            if received is None:
                break
            if self._pages.readable() != self.service.store.log.end:
                self._refresh(now)  # the client may know of the growth from the writer
            self.service.handle(received, now)
        self.service.note_removals()
        self._follow(now)
        if news is None:
            self.service.wake_all()
        elif news or self.service.has_work:
            self.service.wake(news)
        self.service.settle()
        self.service.time_out(now)
        self._beat(now)

    def _is_anything_due(self, now: float) -> bool:
        """True if a turn without an event has work: most ticks while pulls wait have none."""
        deadline = self.service.holds.next_deadline()
        if self.service.has_work or self.service.is_unsettled:
            return True
        if self.server.has_requests or self.server.has_unsent:
            return True
        if now - self._heartbeat_at >= HEARTBEAT_S:
            return True
        if self.service.tail.follows and self._pages.readable() != self.service.tail.end:
            return True
        if deadline is None:
            return False
        if deadline <= now or self._pages.epoch() != self._epoch:
            return True
        follows = self.service.tail.follows
        return not follows and not self._hints.are_up_to_date(self._pages.hints())

    def _sleep_ms(self, now: float) -> int:
        if self.service.has_work or self.server.has_requests:
            return 0
        deadline = self.service.holds.next_deadline()
        if deadline is None:
            return TICK_MS if self.server.has_unsent else IDLE_MS
        sleep_ms = TICK_MS
        if (
            self.service.tail.follows
            and not self.server.has_unsent
            and not self.service.is_unsettled
        ):
            sleep_ms = int(quiet_sleep_s(now - self._grew_at, TICK_MS / 1000) * 1000)
        return min(sleep_ms, max(0, int((deadline - now) * 1000) + 1))

    def _collect(self, now: float, is_rung: bool) -> News | None:
        """What may have grown; None for everything, as at a new epoch."""
        news = self._hints.collect(self._pages.hints, now, is_rung)
        epoch = self._pages.epoch()
        if epoch != self._epoch:
            self._epoch = epoch
            return None
        return news

    def _follow(self, now: float) -> None:
        """While pulls wait, follows the log itself, or the queue workers where that fails."""
        service = self.service
        if len(service.holds) or service.is_asked_for_end:
            service.is_asked_for_end = False
            self._waits_until = now + WAITING_S
        elif now >= self._waits_until:
            self._waits_until = 0.0
        if not self._waits_until or self._unfit_since is not None:
            service.tail.stop()
        else:
            service.follow(now)
        listens = bool(self._waits_until) and not service.tail.follows
        if self._hints.listen(listens):
            self._page.publish(listens=int(listens))
            if listens:
                # Workers rest while no reader listens: wake them.
                self._workers.ring_all()

    def _ask_for_ring(self) -> bool:
        """Asks the writer to ring at the next record; False if that is there already."""
        tail = self.service.tail
        wake_at = tail.end + 1 if tail.follows else NEVER
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self._page.publish(wake_at=wake_at)
        return not tail.follows or self._pages.readable() == tail.end

    def _refresh(self, now: float) -> None:
        """Takes in the pages; if that fails for UNFIT_S_MAX, requests are refused."""
        if now >= self._reopen_check_at:
            self._reopen_check_at = now + REOPEN_CHECK_S
            self._workers.look()
            self.service.at_end.forget_bounds()
            if not is_in_place():
                self._note_moved()
            elif self._pages.are_replaced():
                self._reopen()
        try:
            self.service.store.refresh()
        except MqError as error:
            if self._unfit_since is None:
                self._unfit_since = now
            if now - self._unfit_since >= UNFIT_S_MAX and self.service.trouble is None:
                details = fields(why=error)
                log.error("the store cannot be followed", extra=details)  # noqa: TRY400
                self.service.trouble = error
                self._page.publish(state=DAMAGED)
            return
        self._unfit_since = None
        if self.service.trouble is not None:
            self.service.trouble = None
            self._page.publish(state=RUNNING)

    def _note_moved(self) -> None:
        """Logs, once, that only files which are open already will be read."""
        if not self._has_moved:
            self._has_moved = True
            log.error("the store has moved: no more of its files are opened")

    def _reopen(self) -> None:
        """Opens the store again after its pages were replaced: the old maps do not change."""
        log.warning("the state pages were replaced: opening the store again")
        store = open_fitting(self._site)
        self.service.tail.stop()
        self.service.store.close()
        self.service.store = store
        self._epoch = 0

    def _beat(self, now: float) -> None:
        if now - self._heartbeat_at < HEARTBEAT_S:
            return
        self._heartbeat_at = now
        self._page.beat(now_ms())
        self._page.publish(
            requests=self.service.requests,
            held=len(self.service.holds),
            epoch=self._epoch,
            dispatched=self.service.store.followed,
        )
        self._stats.publish()
        self._topics.publish()
        self._damage.turn(now)
        self.server.turn()

    def _stop(self) -> None:
        self._refresh(time.monotonic())
        self.service.stop()
        stopping = ServiceNotAvailable("this reader is stopping", "ask another one, or again later")
        for _ in range(STOP_REQUESTS_MAX):
            received = self.server.receive()
            if received is None:
                break
            self.service.refuse(received, stopping)
        self._page.publish(
            state=STOPPED, held=0, listens=0, wake_at=NEVER, requests=self.service.requests
        )

    def close(self) -> None:
        """Closes sockets, pages and files."""
        self._stats.close()
        self._topics.close()
        self.server.close()
        self._hints.close()
        self._workers.close()
        self.service.store.close()


def transfer_limits(settings: Settings) -> TransferLimits:
    """The limits of one pull; records within a share of the memory count as hot."""
    memory = psutil.virtual_memory().total * settings.access_message_in_memory_max_ratio // 100
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
            return open_live(site.root, site.shards, site.settings)
        except CorruptError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.02)


def main(arguments: list[str] | None = None) -> int:
    """Runs one reader of a store until SIGTERM."""
    parser = child_parser("node.reader.loop", __doc__)
    parser.add_argument("--bind", default="tcp://127.0.0.1:7852")
    parser.add_argument("--local", default="", metavar="IPC", help="for clients of this machine")
    parser.add_argument("--index", type=int, default=0, metavar="I", help="which reader this is")
    parser.add_argument(
        "--shards", type=int, default=1, metavar="N", help="how many queue workers the node has"
    )
    options = parser.parse_args(arguments)
    root = options.dir.resolve()
    child = ChildProcess(
        slot=f"reader-{options.index}",
        title=f"keelog-reader-{options.index}",
        what=f"reader {options.index} of {root} ended",
        root=root,
        options=options,
        oom_points=OOM_READER,
    )
    return run_process(child, partial(_serve, child))


def _serve(child: ChildProcess, settings: Settings, stop: StopFlag) -> int:
    options, root = child.options, child.root
    if options.index < 0 or options.shards < 1:
        raise BadRequest(f"reader {options.index} of a node with {options.shards} queue workers")
    check_created(root)
    site = ReaderSite(root, options.index, options.shards, settings)
    os.chdir(run_dir(root))
    lock = FileLock.take(run_dir(root) / f"{site.slot}.lock", record=False, wait_s=LOCK_WAIT_S)
    context: Context = zmq.Context()
    with WorkerPage.create(root, site.slot) as page:
        bulk = bulk_socket(options.local) if options.local else ""
        server = Server(
            context, options.bind, FRAME_BYTES_MAX, ANSWERS_MAX, local=options.local, bulk=bulk
        )
        report = partial(report_damage, child.ready_fd)
        reader = Reader(site, server, page, context, report)
        child.report_ready(server.endpoint)
        reader.run(stop)
        reader.close()
        context.term()
    lock.release()
    return EXIT_OK


if __name__ == "__main__":
    leave(main())
