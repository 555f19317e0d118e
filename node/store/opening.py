"""An open store, read-only: at rest, or run by a node.

A `StoppedStore` is RocketMQ's or ours, after a clean stop or a crash. It shows the store as
recovery would leave it: it derives in memory what the queue and index files lack, and leaves out
what points beyond the log's end. For a `RunningStore` the node's processes publish what may be
read.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

from node.runtime import state_page
from node.runtime.settings import Settings
from node.store import queues as queue_files
from node.store import replay
from node.store.checkpoints import load_removed
from node.store.condition import Condition, check_is_store, read_condition
from node.store.file_cache import FileVanished, OpenFiles
from node.store.indexes import IndexFile, IndexFolder, IndexReader
from node.store.log.end import WalkedEnd, find_tail
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import ListingProblem, SegmentList, list_folder, open_segments
from protocol.derived.file_layouts import FILLER_SIZE, UNIT_BYTES
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import NotFound, StoreDamaged
from protocol.ids import Queue, shard_of
from protocol.names import COMMIT_LOG_DIR, is_folder_name
from protocol.record.codec import Record

QUEUE_READERS_MAX = 20_000
"""The number of queue readers that are kept; the one opened first is dropped for the next."""

_SMALL_SEGMENT_BYTES = 64 << 20
_HINT_QUEUES_MAX = 2_000


class Store(ABC):
    """An open store, read-only; use it as a context manager. It closes `files` at the end."""

    def __init__(self, root: Path, settings: Settings, files: OpenFiles | None = None) -> None:
        self.root = root
        self.settings = settings
        self._files = OpenFiles() if files is None else files

    log: LogReader
    removed: Removed = NOTHING_REMOVED
    """The removed topics and purged queues, whose records the log may still have."""

    @property
    @abstractmethod
    def index(self) -> IndexReader:
        """The index. Raises StoreDamaged, StorePermission."""

    @abstractmethod
    def queues(self) -> list[Queue]:
        """Every queue that has a unit or a folder, sorted by topic and queue id."""

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> queue_files.QueueReader | None:
        """The reader of one queue; None for a queue that does not exist."""

    @abstractmethod
    def refresh(self) -> None:
        """Takes in what a running node has written since; cheap if that is nothing."""

    def topics(self) -> list[str]:
        """Every topic that has a queue, sorted."""
        return sorted({queue.topic for queue in self.queues()})

    def has_topic(self, topic: str) -> bool:
        """True if `topics` lists it."""
        return topic in self.topics()

    def look_up(self, offset: int) -> Record:
        """As `LogReader.look_up`, for readers: raises NotFound for a removed record, too."""
        record = self.log.look_up(offset)
        if self.removed.hides(Queue(record.topic, record.head.queue_id), offset):
            raise NotFound(
                f"no message is at offset {offset}: topic {record.topic} was removed or purged",
                "the log keeps removed messages until retention deletes their segment; see them"
                " with: keelog store dump --raw DIR",
            )
        return record

    def close(self) -> None:
        """Closes all files; records and arrays that were handed out stay valid."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoppedStore(Store):
    """A store whose bounds are found once, when it is opened; `tail` is the log's end, and why.

    `strict=False` opens a log with missing or odd segments too, which `problems` names. Then the
    walk to the log's end begins after the last gap, and goes on past damaged records. `on_window`:
    see `find_tail`.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        strict: bool = True,
        on_window: Callable[[int, int], None] | None = None,
        files: OpenFiles | None = None,
    ) -> None:
        super().__init__(root, settings, files)
        check_is_store(root, strict)
        self.condition: Condition = read_condition(root, strict)
        self.removed = self.condition.removed
        listing = list_folder(root / COMMIT_LOG_DIR)
        if strict:
            listing.check()
        self.problems: list[ListingProblem] = listing.problems
        self.runs = listing.runs()
        self.unfinished = listing.unfinished
        if not listing.file_bytes:
            listing = listing._replace(file_bytes=settings.mapped_file_size_commit_log)
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, self._files)
        self.folders = queue_files.list_queues(root)
        self._queue_files: dict[Queue, queue_files.QueueFiles] = {}
        self._readers: dict[Queue, queue_files.QueueReader] = {}
        if self.removed.topics:
            self.folders = {
                queue: folder
                for queue, folder in self.folders.items()
                if not self._is_of_removed(queue)
            }
        last_run = SegmentList(segments.folder, listing.last_run(), self._files)
        hints = self._hints(listing.file_bytes)
        self.tail: WalkedEnd = find_tail(last_run, self.condition, hints, on_window, not strict)
        self.log = LogReader(segments, Bounds(segments.start, self.tail.end))
        self.index_folder = IndexFolder(root, settings.index_geometry, self._files)

    def refresh(self) -> None:
        """Does nothing: the store does not change."""

    @cached_property
    def queue_file_bytes(self) -> int:
        """The length of a queue file, from the files or else the settings. Raises StoreDamaged."""
        return queue_files.find_queue_file_bytes(
            iter(self.folders.values()), self.settings.queue_file_bytes
        )

    def queues(self) -> list[Queue]:
        return sorted({*self.folders, *self._derived})

    def queue(self, topic: str, queue_id: int) -> queue_files.QueueReader | None:
        queue = Queue(topic, queue_id)
        if queue in self._readers:
            return self._readers[queue]
        derived = self._derived.get(queue)
        if queue not in self.folders and derived is None:
            return None
        files, end = self.files_of(queue), self._covered.get(queue, replay.NOT_COVERED).next_number
        if end < 0 or (derived is not None and derived.replaces_files):
            files, end = queue_files.no_queue_files(files.folder, files.file_bytes, self._files), 0
        log = self.log  # `lambda: self.log…` would be a cycle, which waits for the collector
        begin = self.removed.begin_of(queue)
        reader = queue_files.QueueReader(files, end, lambda: max(log.min_offset, begin), derived)
        self._readers[queue] = reader
        return reader

    def files_of(self, queue: Queue) -> queue_files.QueueFiles:
        """The files of a queue, without derived units. Raises StoreDamaged, StorePermission."""
        if queue not in self._queue_files:
            folder = queue_files.queue_folder(self.root, queue)
            make = (
                queue_files.open_queue_files
                if queue in self.folders
                else queue_files.no_queue_files
            )
            self._queue_files[queue] = make(folder, self.queue_file_bytes, self._files)
        return self._queue_files[queue]

    def _is_of_removed(self, queue: Queue) -> bool:
        """True for a queue of a removed topic that no worker has deleted yet."""
        horizon = self.removed.horizon(queue.topic)
        if not horizon:
            return False
        with suppress(StoreDamaged):
            return queue_files.is_of_removed(self.files_of(queue), horizon)
        return False

    def _hints(self, segment_bytes: int) -> Iterator[int]:
        """Yields offsets near the log's end where records may start: they shorten the walk."""
        condition = self.condition
        if segment_bytes <= _SMALL_SEGMENT_BYTES or not condition.is_clean:
            return
        yield from (offset for offset in (condition.queues_done, condition.index_done) if offset)
        for queue in islice(self.folders, _HINT_QUEUES_MAX):
            try:
                files = self.files_of(queue)
                end = files.end_below(queue_files.ANY_OFFSET)
                last = files.read(end - 1, 1) if end > files.first else ()
            except StoreDamaged:
                continue  # only a hint is lost; a read of the queue reports the damage
            yield from (int(unit["physical_offset"]) for unit in last)

    @cached_property
    def _covered(self) -> dict[Queue, replay.Covered]:
        found: dict[Queue, replay.Covered] = {}
        for queue in self.folders:
            files = self.files_of(queue)
            end = files.end_below(self.log.end, thorough=not self.condition.is_clean)
            if end > files.first:
                offset, size, _ = files.read(end - 1, 1)[0].tolist()
                found[queue] = replay.Covered(end, 0 if size == FILLER_SIZE else offset + size)
        return found

    @cached_property
    def _derived(self) -> dict[Queue, queue_files.DerivedUnits]:
        start = replay.walk_start(self.log, self.condition, self._covered, self.tail.walked_from)
        if start >= self.log.end:
            return {}
        return replay.derive_units(
            self.log,
            start,
            self._covered,
            self.queue_file_bytes // UNIT_BYTES,
            self.settings.delay_levels_ms,
            self.removed,
        )

    @cached_property
    def index(self) -> IndexReader:
        files = self._recovered_index()
        return IndexReader(lambda: files)

    def close(self) -> None:
        # The index files are mapped: a user unmounts the volume while this object is still there.
        self.__dict__.pop("index", None)
        super().close()

    def _recovered_index(self) -> list[IndexFile]:
        folder = self.index_folder
        on_disk = folder.open(folder.names())
        if not self.settings.message_index_enable:
            return on_disk
        queued_end = max((queue.log_end for queue in self._covered.values()), default=-1)
        known = on_disk, self.log, self.condition, queued_end
        return replay.recovered_index(*known, folder.geometry, self.settings)


@dataclass(slots=True)
class _Shard:
    """What the store knows of one queue worker, as of the last `refresh`."""

    end: int = 0
    """The log offset below which the units of its queues are valid."""
    seen: tuple[int, bool] = 0, True
    """Its process id, and whether it is still resuming."""
    damaged_at: int | None = None
    """The log offset where it stopped before damage; None if it did not."""
    turn: int = 0
    """Rises when units that were read may have been taken back."""

    def follow(self, state: state_page.LogState, page: state_page.WorkerPage | None) -> None:
        """Takes in what the worker's page says."""
        if page is None:
            self.end = 0
            return
        try:
            worker = page.read()
        except state_page.PageAbsent:
            return
        end = state_page.visible_end(state, worker) if worker.epoch else self.end
        # A page of another epoch may be from before a repair.
        is_damaged = worker.state == state_page.DAMAGED and worker.epoch == state.epoch
        self.damaged_at = worker.damaged_at if is_damaged else None
        seen = worker.pid, worker.state == state_page.STARTING or worker.epoch != state.epoch
        if end < self.end or seen != self.seen:
            # A worker that resumes takes back the units that it cannot vouch for.
            self.turn += 1
        self.end, self.seen = end, seen


class _OpenQueue(NamedTuple):
    """The reader of a queue, and the turn of its shard in which it was opened."""

    shard: _Shard
    turn: int
    reader: queue_files.QueueReader


class RunningStore(Store):
    """Follows a node. Call `refresh` before each look; it costs a few page reads when idle.

    Its bounds come from the state pages of the writer and of `shards` queue workers.
    `queue` moves a reader to the new end of its queue; a reader that is kept does not move itself.
    `flushed_only`: the readable log ends where it is flushed.
    """

    def __init__(
        self,
        root: Path,
        shards: int,
        settings: Settings,
        files: OpenFiles | None = None,
        flushed_only: bool = False,
    ) -> None:
        super().__init__(root, settings, files)
        self._flushed_only = flushed_only
        self.pages = state_page.StatePages(root, shards)
        self._readers: dict[Queue, _OpenQueue] = {}
        self._known = [_Shard() for _ in range(shards)]
        self.followed = 0
        """The log offset below which all queues can be read, as of the last `refresh`."""
        self.epoch = 0
        """The writer's epoch as of the last `refresh`; 0 until a writer has published one."""
        self.removed = load_removed(root)
        self._seen: bytes | None = None
        """The raw pages that the last complete `refresh` took in."""
        self.queue_file_bytes = 0
        """The length of each queue file; 0 until one was opened."""
        self.log = LogReader(open_segments(root / COMMIT_LOG_DIR, self._files), Bounds(0, 0))
        self.index_folder = IndexFolder(root, settings.index_geometry, self._files)
        self.refresh()

    @cached_property
    def index(self) -> IndexReader:
        return IndexReader(self.index_folder.live_files)

    def refresh(self) -> None:
        """Takes in the pages. Raises StoreDamaged if the log's files disagree with them."""
        raw = self.pages.raw()
        if raw is not None and raw == self._seen:
            return
        self._seen = None
        page = self.pages.log
        if page is None:
            return
        try:
            state = page.read()
        except state_page.PageAbsent:
            return
        if state.epoch == 0:
            return
        if self._flushed_only:
            state = state._replace(readable=min(state.readable, state.flushed))
        self._follow_log(state)
        if state.removals != self.removed.number:
            self.removed = load_removed(self.root)
            self._begin_turn()
        for number, shard in enumerate(self._known):
            shard.follow(state, self.pages.worker(number))
        self.followed = min((shard.end for shard in self._known), default=0)
        self._seen = raw

    def _begin_turn(self) -> None:
        for shard in self._known:
            shard.turn += 1

    def _follow_log(self, state: state_page.LogState) -> None:
        if state.epoch != self.epoch:
            self.epoch = state.epoch
            self._begin_turn()
            # A segment that recovery removed may have come back as another file of the same name.
            self.log.segments.forget_above(state.epoch_start)
            self.log.segments.refresh(state.min_offset)
        bounds = self.log.bounds
        if state.readable > self.log.segments.end or state.min_offset != bounds.start:
            self.log.segments.refresh(state.min_offset)
        if state.min_offset != bounds.start:
            for queue in self._readers.values():
                queue.reader.drop_vanished()
        bounds.start, bounds.end = state.min_offset, state.readable

    def _shard_of(self, queue: Queue) -> _Shard:
        return self._known[shard_of(queue, len(self._known))]

    def visible_end(self, queue: Queue) -> int:
        """The log offset below which a queue's units are valid, as of the last `refresh`."""
        return self._shard_of(queue).end

    def is_behind(self, queue: Queue) -> bool:
        """True if the worker of a queue has not dispatched the whole log yet."""
        return self.is_resuming(queue) or self.visible_end(queue) < self.log.end

    def is_resuming(self, queue: Queue) -> bool:
        """True while the worker of a queue resumes: units that were visible may be missing."""
        return not self.knows_log or self._shard_of(queue).seen[1]

    def damaged_at(self, queue: Queue) -> int | None:
        """The log offset where a queue's worker stopped before damage; None if it did not.

        Messages may be missing after the queue's last unit.
        """
        return self._shard_of(queue).damaged_at

    @property
    def knows_log(self) -> bool:
        """True once a writer has published the log's end."""
        return self.epoch != 0

    @property
    def is_current(self) -> bool:
        """True if no epoch has begun since the last `refresh`, so that what was read is valid."""
        return self.pages.epoch() == self.epoch

    @property
    def token(self) -> str:
        """A text that changes when log or queues may have changed since an earlier `refresh`."""
        bounds = self.log.bounds
        numbers = [self.epoch, self.removed.number, bounds.start, bounds.end]
        numbers += [shard.end for shard in self._known]
        return "-".join(map(str, numbers + [int(shard.seen[1]) for shard in self._known]))

    def queues(self) -> list[Queue]:
        return [
            queue for queue in queue_files.list_queues(self.root) if self.queue(*queue) is not None
        ]

    def topics(self) -> list[str]:
        # Folders alone: opening every queue would stop a reader for a second.
        return [topic for topic in queue_files.list_topics(self.root) if self.queue_ids(topic)]

    def has_topic(self, topic: str) -> bool:
        return is_folder_name(topic) and bool(self.queue_ids(topic))

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of one topic that have a folder, sorted. Raises StorePermission."""
        ids = queue_files.list_queue_ids(self.root, topic)
        if not self.removed.horizon(topic):
            return ids
        return [number for number in ids if self.queue(topic, number) is not None]

    def shows(self, topic: str) -> bool:
        """False for a removed topic that has no new queue."""
        return not self.removed.horizon(topic) or bool(self.queue_ids(topic))

    def queue(self, topic: str, queue_id: int) -> queue_files.QueueReader | None:
        queue = Queue(topic, queue_id)
        known = self._readers.get(queue)
        shard = self._shard_of(queue) if known is None else known.shard
        if known is not None and known.turn == shard.turn:
            try:
                if known.reader.seen_limit != shard.end:
                    known.reader.advance(shard.end)
            except FileVanished:
                pass
            else:
                return known.reader
        if known is not None:
            del self._readers[queue]
            known.reader.files.forget()
        reader = self._open(queue)
        if reader is not None:
            reader.rewind(shard.end)
            if reader.ends_below(self.removed.horizon(topic)):
                reader.files.forget()
                return None  # of a removed topic: its worker will delete the files
            self._readers[queue] = _OpenQueue(shard, shard.turn, reader)
            if len(self._readers) > QUEUE_READERS_MAX:
                self._readers.pop(next(iter(self._readers))).reader.files.forget()
        return reader

    def _open(self, queue: Queue) -> queue_files.QueueReader | None:
        if not is_folder_name(queue.topic):
            return None
        folder = queue_files.queue_folder(self.root, queue)
        file_bytes = self.queue_file_bytes or list_folder(folder).file_bytes
        files = queue_files.open_queue_files(folder, file_bytes, self._files)
        if files.is_empty:
            return None
        # All queues of a store have files of one length, whatever the settings say.
        self.queue_file_bytes = files.file_bytes
        bounds, begin = (
            self.log.bounds,
            self.removed.begin_of(queue),
        )  # as in StoppedStore: no cycle
        return queue_files.QueueReader(files, files.first, lambda: max(bounds.start, begin))

    def close(self) -> None:
        self.pages.close()
        super().close()


def open_store(path: Path | str, settings: Settings | None = None) -> StoppedStore:
    """Opens a store, RocketMQ's or ours, as it is after recovery; takes no lock, never writes.

    Sizes come from the files; `settings` gives the sizes of files that do not exist.
    Raises NotAStore, StoreDamaged, StorePermission.
    """
    return StoppedStore(Path(path), settings or Settings())
