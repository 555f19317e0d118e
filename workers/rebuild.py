"""Queues and index made anew from the log of a store at rest, by the workers' own handlers."""

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from node.runtime import disk
from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.runtime.state_page import run_dir
from node.store import checkpoints
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX, check_is_store
from node.store.file_sizes import found_geometry
from node.store.queues import refuse_batch_queues
from node.store.repair.plan import REBUILD_INDEX, REBUILD_QUEUES, FileStep, Step
from protocol.derived.dispatch_request import DispatchRequests
from protocol.errors import NotAStore
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR
from workers import consume_queue
from workers.dispatch import Handler
from workers.feed import Feed, RestingFeed
from workers.index_file import IndexFiles, IndexWriter

Progress = Callable[[str, int, int], None]
"""Called with what is rebuilt (`queues` or `index`), log bytes done, and all there are."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was made of the records in [start, end) of the log, and what there is now."""

    start: int
    end: int
    records: int
    queues: int
    queue_files: int
    index_files: int
    seconds: float


def rebuild(
    root: Path,
    queues: bool = True,
    index: bool = True,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> RebuildReport:
    """Throws away and rebuilds `consumequeue/`, `index/`, or both; the log is only read.

    File sizes are those of the files found, else the settings'. Stopped in the middle it leaves
    files that end early, which the next start of the workers, or another rebuild, makes whole.
    Raises StoreLocked, NotAStore, BadRequest, StoreDamaged (the log itself), OSError; StoreError
    for queues that a node does not have.
    """
    check_is_store(root)
    if not (root / COMMIT_LOG_DIR).is_dir():
        # Without the log nothing can be made anew, so nothing is thrown away either.
        raise NotAStore(f"{root} holds no commitlog/", "name the folder that holds commitlog/")
    if queues:
        refuse_batch_queues(root)
    root = root.resolve()
    lock = StoreLock.acquire(root)
    try:
        return rebuild_locked(root, queues, index, settings or Settings(), progress)
    finally:
        lock.release()


def rebuild_locked(
    root: Path, queues: bool, index: bool, settings: Settings, progress: Progress | None = None
) -> RebuildReport:
    """As `rebuild`, for a caller that holds the store's lock."""
    began = time.monotonic()
    with closing(RestingFeed(root)) as feed:
        check_log(feed)
        disk.make_dir(run_dir(root))
        work = _Rebuild(root, feed, settings, progress or (lambda _what, _done, _all: None))
        if queues:
            work.queues()
        if index:
            work.index()
        limits = feed.limits()
    folder = root / CONSUME_QUEUE_DIR
    return RebuildReport(
        start=limits.min_offset,
        end=limits.readable,
        records=work.records,
        queues=sum(1 for _ in folder.glob("*/*")),
        queue_files=sum(1 for _ in folder.glob("*/*/*")),
        index_files=sum(1 for _ in (root / INDEX_DIR).glob("*")),
        seconds=time.monotonic() - began,
    )


def check_log(feed: Feed) -> None:
    """Reads the whole log before anything is thrown away. Raises StoreDamaged."""
    limits = feed.limits()
    for _ in feed.columns(limits.min_offset, limits.readable):
        pass
    feed.check("queues and index were left as they are; ")


@dataclass(slots=True)
class _Rebuild:
    root: Path
    feed: Feed
    settings: Settings
    notify: Progress
    records: int = 0

    def queues(self) -> None:
        all_queues = consume_queue.Shard(0, 1)
        handler = consume_queue.make_queues(
            self.root, self.settings, self.feed, self._temp(), all_queues
        )
        workers = self._forget(QUEUE_WORKER_PREFIX, CONSUME_QUEUE_DIR)
        checkpoints.clear_unfinished(self.root)
        with closing(handler.files):
            self._walk("queues", handler)
        self._vouch(workers)

    def index(self) -> None:
        geometry = found_geometry(self.root, self.settings.index_geometry)
        folder = IndexWriter(self.root, geometry, self._temp())
        workers = self._forget(INDEX_WORKER, INDEX_DIR)
        with closing(folder):
            handler = IndexFiles(self.root, folder, self.feed, self.settings.index_tags_enable)
            self._walk("index", handler)
        self._vouch(workers)

    def _temp(self) -> Path:
        return run_dir(self.root) / "rebuild.new"

    def _forget(self, workers: str, folder: str) -> list[str]:
        """Takes back what the workers vouched for, then deletes it; returns their slots."""
        slots = checkpoints.forget_progress(self.root, workers)
        if (self.root / folder).is_dir():
            disk.remove_tree(self.root / folder)
            disk.sync_dir(self.root)
        return slots

    def _vouch(self, slots: list[str]) -> None:
        """What was forgotten is there again, as far as the log is durable."""
        limits = self.feed.limits()
        progress = checkpoints.WorkerCheckpoint(limits.epoch, limits.flushed)
        checkpoints.vouch_again(self.root, slots, progress)

    def _walk(self, what: str, handler: Handler) -> None:
        limits = self.feed.limits()
        start = handler.resume_from()
        self.records = 0
        for columns in self.feed.columns(start, limits.readable):
            handler.apply(DispatchRequests(columns, self.settings.delay_levels_ms))
            self.records += len(columns)
            done = columns.end
            self.notify(what, done - limits.min_offset, limits.readable - limits.min_offset)
        handler.settle()
        handler.flush()
        self.feed.check()


def rebuild_damaged(root: Path, steps: Iterable[Step], settings: Settings) -> None:
    """Takes the plan's rebuilding steps; the caller holds the store's lock.

    Killed in the middle it leaves a note, and the next plan has the same steps.
    Raises StoreDamaged (the log itself), OSError.
    """
    rebuilds = (REBUILD_QUEUES, REBUILD_INDEX)
    files = (step for step in steps if isinstance(step, FileStep))
    folders = [step.path.name for step in files if step.action in rebuilds]
    if folders:
        checkpoints.save_rebuilding(root, folders)
        queues, index = CONSUME_QUEUE_DIR in folders, INDEX_DIR in folders
        rebuild_locked(root, queues, index, settings)
        checkpoints.save_rebuilding(root, [])
