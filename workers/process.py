"""The process of a worker, of either kind: arguments, locks, state page, loop, end."""

import argparse
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from node.runtime import disk, process
from node.runtime.event_log import fields
from node.runtime.locks import FileLock, StoreLock
from node.runtime.service_loop import LoopPace
from node.runtime.settings import Settings
from node.runtime.state_page import DAMAGED, STOPPED, LogPage, WorkerPage, run_dir
from node.runtime.stats import TopicCounts
from node.runtime.store_paths import check_held
from node.runtime.wakeup import Waiters, Wakeup, is_reader
from node.store.condition import Owner, find_owner
from protocol.errors import CorruptError, NotAStore
from protocol.names import COMMIT_LOG_DIR
from workers import dispatch
from workers.feed import Feed, LiveFeed, RestingFeed
from workers.sleep import TurnPace, WorkerSleep, gives_way

log = logging.getLogger("keelog.worker")

NICE = 10
"""Of turns that give way. The kernel let a turn run for up to 4 ms beside a writer that had
something to do (docs/decisions/0027-who-is-waited-for-goes-first.md)."""
STORE_LOCK_S_MAX = 10.0
"""How long a worker run by hand on a store at rest waits for another one to be done with it."""
WRITER_END_S_MAX = 5.0
"""How long a worker that is to stop still follows a writer that has not stopped."""
FILES_LOOK_S = 1.0
"""How often a worker looks whether its files are in place."""
_WRITER_WAIT_S = 0.02
_WRITER_END_LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """The differences between the kinds of workers.

    `wakes_readers`: they wait for its queues to grow. `clashing` is a pattern of the slots that
    share files with ours.
    """

    slot: str
    title: str
    make_handler: Callable[[Path, Settings, Feed], dispatch.Handler]
    flush_pace: Callable[[Settings], LoopPace]
    wakes_readers: bool = False
    clashing: str = ""
    shard: int = 0
    pace: TurnPace = field(default_factory=TurnPace)


def parser_for(module: str, text: str | None) -> argparse.ArgumentParser:
    """The options of every worker."""
    parser = process.child_parser(module, text)
    parser.add_argument("--once", action="store_true", help="stop at the end of a log at rest")
    return parser


def run_worker(options: argparse.Namespace, job: WorkerJob) -> int:
    """The process from its start to its exit code."""
    child = process.ChildProcess(
        slot=job.slot,
        title=job.title,
        what=f"the worker {job.slot} of {options.dir} stops",
        options=options,
        oom_points=process.OOM_WORKER,
        foreseen=(CorruptError,),
        is_of_node=not options.once,
    )

    def body(child: process.ChildProcess, settings: Settings, stop: process.StopFlag) -> int:
        with _Worker(child, job, settings, stop) as worker:
            return worker.run()

    return process.run_process(child, body)


class _Worker:
    """One worker's process: owns its lock, its page and its sockets."""

    def __init__(
        self,
        child: process.ChildProcess,
        job: WorkerJob,
        settings: Settings,
        stop: process.StopFlag,
    ) -> None:
        """Raises StoreLocked, NotAStore."""
        self._child = child
        self._settings = settings
        self._root = child.root
        self._job = job
        self._stop = stop
        self._is_once = not child.is_of_node
        self._dispatcher: dispatch.Dispatcher | None = None
        self._handler: dispatch.Handler | None = None
        self._beat_at = 0.0
        self._files_look_at = 0.0
        self._locks = _enter(self._root, child.is_of_node)
        os.chdir(run_dir(self._root))
        self._locks += _take_locks(self._root, job)
        self._page = WorkerPage.create(self._root, job.slot)
        self._role = job.slot.partition("-")[0]
        self._stats = dispatch.WorkerStats(self._root, self._role, job.shard)
        self._topics: dispatch.TopicGrowth | None = None
        self._rest = WorkerSleep(Wakeup(job.slot), self._page, stop.fd)
        self._readers: Waiters | None = None
        if job.wakes_readers:
            self._readers = Waiters(self._root, is_reader)
        self._shown = 0, 0
        """The epoch and the number of units for which `growths` counted last."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.close()
        if self._readers is not None:
            self._readers.close()
        self._stats.close()
        if self._topics is not None:
            self._topics.close()
        self._page.close()
        for lock in self._locks:
            lock.release()

    def run(self) -> int:
        """Follows the log until it is time to stop. Raises StoreDamaged, BadRequest."""
        try:
            feed = self._feed()
        except dispatch.Stopped:
            return process.EXIT_OK
        handler = self._handler = self._job.make_handler(self._root, self._settings, feed)
        dispatcher = dispatch.Dispatcher(
            dispatch.WorkerSite(self._root, self._job.slot, self._page, self._stats),
            feed,
            handler,
            dispatch.DispatchPace(
                self._job.flush_pace(self._settings), self._settings.delay_levels_ms
            ),
            dispatch.Breaks(self._pause, lambda: self._stop.is_set),
        )
        self._dispatcher = dispatcher
        try:
            self._follow(dispatcher, feed, handler)
            dispatcher.finish()
            if self._topics is not None:
                self._topics.look_now(dispatcher.records)
        except dispatch.Stopped:
            dispatcher.close()
        except dispatch.FilesLost as lost:
            return self._end_without_files(str(lost), dispatcher, handler)
        except CorruptError as error:
            # All before the damage is kept; starting again cannot help.
            dispatcher.close()
            self._page.publish(damaged_at=error.offset, state=DAMAGED)
            raise
        finally:
            feed.close()
        self._page.publish(state=STOPPED)
        return process.EXIT_OK

    def _end_without_files(
        self, why: str, dispatcher: dispatch.Dispatcher, handler: dispatch.Handler
    ) -> int:
        dispatcher.await_flush()
        handler.disown_lost()
        event = "files are lost: the process ends, the next makes them anew"
        log.error(event, extra=fields(why=why))
        process.report_end(self._child.ready_fd, f"files are lost: {why}")
        return process.EXIT_FAILED

    def _look_at_files(self, handler: dispatch.Handler, now: float) -> None:
        """Raises FilesLost: nobody else reads what would be written into files without a name."""
        if now >= self._files_look_at:
            self._files_look_at = now + FILES_LOOK_S
            if lost := handler.lost_files():
                raise dispatch.FilesLost(lost)

    def _follow(
        self, dispatcher: dispatch.Dispatcher, feed: Feed, handler: dispatch.Handler
    ) -> None:
        dispatcher.start()
        self._show_growth(dispatcher.epoch, handler.units)
        topics = None
        if handler.messages_by_topic() is not None:
            counts = TopicCounts(self._root, self._role, self._job.shard)
            topics = self._topics = dispatch.TopicGrowth(handler.messages_by_topic, counts)
        self._child.report_ready()
        pace = self._job.pace
        while not self._stop.is_set:
            began = time.monotonic_ns()
            worked = self._turn(dispatcher, feed)
            now = time.monotonic()
            if worked:
                self._stats.turn(time.monotonic_ns() - began, dispatcher.records)
                self._show_growth(dispatcher.epoch, handler.units)
                pace.worked(now)
            elif self._is_once:
                break
            if dispatcher.is_ending:
                pace.stay_awake(now)
            if topics is not None:
                # Here alone: within a turn a queue that is being rebuilt has no end.
                topics.look(now, dispatcher.records)
            self._look_at_files(handler, now)
            self._sleep(pace, dispatcher.done, feed, now)
            self._beat()
        if self._child.ready_fd is not None:
            self._outlast_writer(dispatcher)

    def _turn(self, dispatcher: dispatch.Dispatcher, feed: Feed) -> bool:
        """In another thread when it gives way: without privileges nobody takes back niceness."""
        if gives_way(feed.peek().readable - dispatcher.done):
            return dispatch.begin(lambda: _nicely(dispatcher), "turn").result()
        return dispatcher.turn()

    def _outlast_writer(self, dispatcher: dispatch.Dispatcher) -> None:
        """The writer waits for us before it leaves the mark of a clean stop. A supervisor stops it
        first; a stop of all processes at once (a control group's) must end in the same order."""
        deadline = time.monotonic() + WRITER_END_S_MAX
        while _writer_lives(self._root) and time.monotonic() < deadline:
            if not dispatcher.turn():
                time.sleep(_WRITER_END_LOOK_S)
            self._beat()

    def _sleep(self, pace: TurnPace, done: int, feed: Feed, now: float) -> None:
        """Sleeps until there is reason for a turn.

        The writer rings for records that come after it has read `wake_at`. So the log is looked at
        once more after `wake_at` is published.
        """
        if self._is_once:
            return
        is_waited_for = self._readers is not None and self._readers.are_listening
        sleep = pace.sleep(done, now, is_waited_for)
        self._rest.begin(sleep)
        limits = feed.peek()
        if limits.readable >= sleep.wake_at or (limits.is_ending and limits.readable > done):
            self._rest.end()
        else:
            self._rest.wait(sleep.seconds)

    def _show_growth(self, epoch: int, units: int) -> None:
        """Counts, in the page, that queues have grown, and wakes the readers that wait for that.

        The count goes on from the worker before us: what readers saw comes never again.
        """
        if self._readers is not None and self._shown != (epoch, units):
            # Resuming moves the ends of queues, too.
            self._shown = epoch, units
            self._page.publish(growths=self._page.growths + 1)
            self._readers.ring_listeners()

    def _feed(self) -> Feed:
        """The log: at rest, or of a writer, which may come later than we. Raises Stopped."""
        if self._is_once:
            return RestingFeed(self._root, self._on_window)
        while True:
            try:
                feed = LiveFeed(self._root, self._on_window)
            except FileNotFoundError:
                self._pause(_WRITER_WAIT_S)
            else:
                break
        while not feed.limits().epoch:
            self._pause(_WRITER_WAIT_S)
        return feed

    # Waiting and showing life

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at >= dispatch.HEARTBEAT_S:
            self._beat_at = now
            check_held()
            self._page.beat(process.now_ms())
            process.met_damage.turn(now)
            self._stats.publish()
            if self._readers is not None:
                self._readers.look()

    def _pause(self, seconds: float) -> None:
        """Sleeps for so long, showing life. Raises Stopped."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._beat()
            if self._stop.is_set:
                raise dispatch.Stopped
            time.sleep(min(left, dispatch.HEARTBEAT_S))

    def _on_window(self) -> None:
        """Between two windows of the log. Resuming may walk all of it, and can be given up."""
        self._beat()
        if self._dispatcher is not None and self._dispatcher.done and self._handler is not None:
            self._show_growth(self._dispatcher.epoch, self._handler.units)
        if self._stop.is_set and (self._dispatcher is None or self._dispatcher.is_resuming):
            raise dispatch.Stopped


def _nicely(dispatcher: dispatch.Dispatcher) -> bool:
    with suppress(PermissionError):  # where a container forbids the call
        os.nice(NICE)  # of this thread alone
    return dispatcher.turn()


def _writer_lives(root: Path) -> bool:
    with suppress(FileNotFoundError), LogPage.open(root) as page:
        return page.read().state != STOPPED and find_owner(root) is Owner.WRITER
    return False


def _enter(root: Path, is_of_node: bool) -> list[FileLock]:
    """Locks a store at rest, and makes `keelog/run` there; a running node's has both already.

    Raises NotAStore, StoreLocked.
    """
    if is_of_node:
        process.check_created(root)
        return []
    if not (root / COMMIT_LOG_DIR).is_dir():
        raise NotAStore(f"{root} holds no {COMMIT_LOG_DIR}/", "check the path")
    lock = StoreLock.acquire(root, wait_s=STORE_LOCK_S_MAX)
    disk.make_dir(run_dir(root))
    return [lock]


def _take_locks(root: Path, job: WorkerJob) -> list[FileLock]:
    """Takes the slot's lock. Raises StoreLocked, also when a slot that shares our files runs."""
    own = run_dir(root) / f"{job.slot}.lock"
    locks = [FileLock.take(own)]
    others = run_dir(root).glob(f"{job.clashing}.lock") if job.clashing else ()
    for path in others:
        if path.name.rpartition("-of-")[2] != own.name.rpartition("-of-")[2]:
            FileLock.take(path, record=False).release()
    return locks
