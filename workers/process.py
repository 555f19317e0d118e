"""What both workers' processes share: arguments, locks, state page, loop, the way out."""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import zmq

from node.store import disk
from node.store.bells import Bell, Context
from node.store.event_log import log_to_stderr
from node.store.locks import FileLock, StoreLock
from node.store.log_signals import obey_log_signals
from node.store.process import (
    EXIT_OK,
    OOM_WORKER,
    StopFlag,
    die_with_parent,
    end_badly,
    install_stop_signals,
    keep_freed_memory,
    now_ms,
    offer_as_victim,
    raise_file_limit,
    report_ready,
    set_title,
)
from node.store.service_loop import LoopPace
from node.store.settings import Settings, load_settings
from node.store.state_page import DAMAGED, STOPPED, WorkerPage, run_dir
from node.store.topic_counts import TopicCounts
from protocol.errors import CorruptError, MqError, NotAStore
from protocol.ids import Queue
from workers.dispatch import (
    HEARTBEAT_S,
    Breaks,
    Dispatcher,
    Handler,
    Pace,
    Place,
    Stopped,
)
from workers.feed import Feed, LiveFeed, RestingFeed
from workers.hints import GrowthHints, Rest
from workers.pace import TurnPace
from workers.stats import KnowsTopics, TopicGrowth, WorkerStats

STORE_LOCK_S_MAX = 10.0
"""How long a worker run by hand on a store at rest waits for another one to be done with it."""
_WRITER_WAIT_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """What makes a process this worker and no other.

    `grown` empties and answers the set of queues to tell the readers of, those of `shard`;
    `clashing` is a pattern of the slots that share files with ours.
    """

    slot: str
    title: str
    make_handler: Callable[[Path, Settings, Feed], Handler]
    flush_pace: Callable[[Settings], LoopPace]
    grown: Callable[[], set[Queue]] | None = None
    clashing: str = ""
    shard: int = 0
    pace: TurnPace = field(default_factory=TurnPace)


def parser_for(module: str, text: str | None) -> argparse.ArgumentParser:
    """The options of every worker."""
    parser = argparse.ArgumentParser(f"python -m {module}", description=text)
    parser.add_argument("dir", metavar="DIR", type=Path, help="the store")
    parser.add_argument("-X", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--once", action="store_true", help="stop at the end of a log at rest")
    parser.add_argument("--ready-fd", type=int)
    return parser


def run_worker(options: argparse.Namespace, job: Job) -> int:
    """The process from its start to its exit code."""
    raise_file_limit()
    keep_freed_memory()
    log_to_stderr(job.slot)
    stop = install_stop_signals()
    if options.ready_fd is not None:
        obey_log_signals()
        die_with_parent()
        offer_as_victim(OOM_WORKER)
    set_title(job.title)
    try:
        with _Worker(options, job, stop) as worker:
            return worker.run()
    except (MqError, OSError) as error:
        what = f"the worker {job.slot} of {options.dir} stops"
        return end_badly(what, error, str(options.dir), options.ready_fd)


class _Worker:
    """One worker's process: owns its lock, its page and its sockets."""

    def __init__(self, options: argparse.Namespace, job: Job, stop: StopFlag) -> None:
        """Raises StoreLocked, NotAStore, BadRequest."""
        self._settings = load_settings(options.settings)
        self._root: Path = options.dir.resolve()
        if not self._root.is_dir():
            raise NotAStore(f"{self._root} is no folder", "check the path")
        self._job = job
        self._stop = stop
        self._options = options
        self._dispatcher: Dispatcher | None = None
        self._beat_at = 0.0
        disk.make_dir(run_dir(self._root), mode=0o700)
        os.chdir(run_dir(self._root))
        self._locks = _take_locks(self._root, job, options.once)
        self._page = WorkerPage.create(self._root, job.slot)
        self._role = job.slot.partition("-")[0]
        self._stats = WorkerStats(self._root, self._role, job.shard)
        self._topics: TopicGrowth | None = None
        self._context: Context = zmq.Context()
        self._rest = Rest(Bell(self._context, job.slot), self._page, stop.fd)
        self._growth = None
        if job.grown is not None:
            self._growth = GrowthHints(self._context, self._root, job.shard)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.close()
        if self._growth is not None:
            self._growth.close()
        self._context.term()
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
        except Stopped:
            return EXIT_OK
        handler = self._job.make_handler(self._root, self._settings, feed)
        dispatcher = Dispatcher(
            Place(self._root, self._job.slot, self._page, self._stats),
            feed,
            handler,
            Pace(self._job.flush_pace(self._settings), self._settings.delay_levels_ms),
            Breaks(self._pause, lambda: self._stop.is_set),
        )
        self._dispatcher = dispatcher
        try:
            self._follow(dispatcher, feed, handler)
            dispatcher.finish()
            if self._topics is not None:
                self._topics.look_now(dispatcher.records)
        except Stopped:
            dispatcher.close()
        except CorruptError as error:
            # All before the damage is kept; starting again cannot help.
            dispatcher.close()
            self._page.publish(damaged_at=error.offset, state=DAMAGED)
            raise
        finally:
            feed.close()
        self._page.publish(state=STOPPED)
        return EXIT_OK

    def _follow(self, dispatcher: Dispatcher, feed: Feed, handler: Handler) -> None:
        dispatcher.start()
        topics = None
        if isinstance(handler, KnowsTopics):
            counts = TopicCounts(self._root, self._role, self._job.shard)
            topics = self._topics = TopicGrowth(handler, counts)
        report_ready(self._options.ready_fd)
        pace = self._job.pace
        while not self._stop.is_set:
            began = time.monotonic_ns()
            worked = dispatcher.turn()
            now = time.monotonic()
            if worked:
                self._stats.turn(time.monotonic_ns() - began, dispatcher.records)
                self._tell()
                pace.worked(now)
            elif self._options.once:
                break
            if topics is not None:
                # Here alone: within a turn a queue that is being rebuilt has no end.
                topics.look(now, dispatcher.records)
            self._sleep(pace, dispatcher.done, feed, now)
            self._beat()

    def _sleep(self, pace: TurnPace, done: int, feed: Feed, now: float) -> None:
        """Until there is reason for a turn. What has come before the wish was seen is seen here."""
        if self._options.once:
            return
        is_waited_for = self._growth is not None and self._growth.are_wanted
        sleep = pace.sleep(done, now, is_waited_for)
        self._rest.begin(sleep)
        limits = feed.peek()
        if limits.readable >= sleep.wake_at or (limits.is_ending and limits.readable > done):
            self._rest.end()
        else:
            self._rest.wait(sleep.seconds)

    def _tell(self) -> None:
        if self._growth is not None and self._job.grown is not None:
            grown = self._job.grown()
            if grown:
                # The page counts hints, so that a reader knows when it missed one.
                self._page.publish(hints=self._growth.send(grown))

    def _feed(self) -> Feed:
        """The log: at rest, or of a writer, which may come later than we. Raises Stopped."""
        if self._options.once:
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
        if now - self._beat_at >= HEARTBEAT_S:
            self._beat_at = now
            self._page.publish(heartbeat_ms=now_ms())
            self._stats.publish()
            if self._growth is not None:
                self._growth.look()

    def _pause(self, seconds: float) -> None:
        """Sleeps for so long, showing life. Raises Stopped."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._beat()
            if self._stop.is_set:
                raise Stopped
            time.sleep(min(left, HEARTBEAT_S))

    def _on_window(self) -> None:
        """Between two windows of the log. Resuming may walk all of it, and can be given up."""
        self._beat()
        if self._dispatcher is not None and self._dispatcher.done:
            self._tell()
        if self._stop.is_set and (self._dispatcher is None or self._dispatcher.is_resuming):
            raise Stopped


def _take_locks(root: Path, job: Job, whole_store: bool) -> list[FileLock]:
    """The slot's lock; those of slots that share our files must be free. Raises StoreLocked."""
    locks: list[FileLock] = []
    if whole_store:
        locks.append(StoreLock.acquire(root, wait_s=STORE_LOCK_S_MAX))
    own = run_dir(root) / f"{job.slot}.lock"
    locks.append(FileLock.take(own, record=False))
    others = run_dir(root).glob(f"{job.clashing}.lock") if job.clashing else ()
    for path in others:
        if path.name.rpartition("-of-")[2] != own.name.rpartition("-of-")[2]:
            FileLock.take(path, record=False).release()
    return locks
