"""A store without a running node: RocketMQ's or ours, after a clean stop or a crash.

It shows the store as recovery would leave it: it derives in memory what the queue and index files
lack, and leaves out what points beyond the log's end.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import islice
from pathlib import Path

from node.runtime.settings import Settings
from node.store.base import Store
from node.store.file_cache import OpenFiles
from node.store.indexes.file import IndexFile
from node.store.indexes.reader import IndexFolder, IndexReader
from node.store.log.end import WalkedEnd, find_tail
from node.store.log.reader import Bounds, LogReader
from node.store.log.segment_list import ListingProblem, SegmentList, list_folder
from node.store.queues.files import QueueFiles
from node.store.queues.listing import (
    find_queue_file_bytes,
    is_of_removed,
    list_queues,
    no_queue_files,
    open_queue_files,
    queue_folder,
)
from node.store.queues.reader import DerivedUnits, QueueReader
from node.store.replay.index import IndexRules, recovered_index
from node.store.replay.units import NOT_COVERED, Covered, derive_units, walk_start
from node.store.shutdown_state import Condition, check_is_store, read_condition
from protocol.derived.queue_unit import FILLER_SIZE, UNIT_BYTES
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR

_SMALL_SEGMENT_BYTES = 64 << 20
_HINT_QUEUES_MAX = 2_000
_ANY_OFFSET = 2**63 - 1


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
        self.folders = list_queues(root)
        self._queue_files: dict[Queue, QueueFiles] = {}
        self._readers: dict[Queue, QueueReader] = {}
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
        return find_queue_file_bytes(iter(self.folders.values()), self.settings.queue_file_bytes)

    def queues(self) -> list[Queue]:
        return sorted({*self.folders, *self._derived})

    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        queue = Queue(topic, queue_id)
        if queue in self._readers:
            return self._readers[queue]
        derived = self._derived.get(queue)
        if queue not in self.folders and derived is None:
            return None
        files, end = self.files_of(queue), self._covered[queue].next_number
        if end < 0 or (derived is not None and derived.replaces_files):
            files, end = no_queue_files(files.folder, files.file_bytes, self._files), 0
        log = self.log  # `lambda: self.log…` would be a cycle, which waits for the collector
        begin = self.removed.begin_of(queue)
        reader = QueueReader(files, end, lambda: max(log.min_offset, begin), derived)
        self._readers[queue] = reader
        return reader

    def files_of(self, queue: Queue) -> QueueFiles:
        """The files of a queue, without derived units. Raises StoreDamaged, StorePermission."""
        if queue not in self._queue_files:
            folder = queue_folder(self.root, queue)
            make = open_queue_files if queue in self.folders else no_queue_files
            self._queue_files[queue] = make(folder, self.queue_file_bytes, self._files)
        return self._queue_files[queue]

    def _is_of_removed(self, queue: Queue) -> bool:
        """True for a queue of a removed topic that no worker has deleted yet."""
        horizon = self.removed.horizon(queue.topic)
        if not horizon:
            return False
        with suppress(StoreDamaged):
            return is_of_removed(self.files_of(queue), horizon)
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
                end = files.end_below(_ANY_OFFSET)
                last = files.read(end - 1, 1) if end > files.first else ()
            except StoreDamaged:
                continue  # only a hint is lost; a read of the queue reports the damage
            yield from (int(unit["physical_offset"]) for unit in last)

    @cached_property
    def _covered(self) -> dict[Queue, Covered]:
        covered = {queue: self._cover(self.files_of(queue)) for queue in self.folders}
        return _WithDefault(covered)

    def _cover(self, files: QueueFiles) -> Covered:
        end = files.end_below(self.log.end, thorough=not self.condition.is_clean)
        if end <= files.first:
            return NOT_COVERED
        offset, size, _ = files.read(end - 1, 1)[0].tolist()
        return Covered(end, 0 if size == FILLER_SIZE else offset + size)

    @cached_property
    def _derived(self) -> dict[Queue, DerivedUnits]:
        start = walk_start(self.log, self.condition, self._covered, self.tail.walked_from)
        if start >= self.log.end:
            return {}
        return derive_units(
            self.log,
            start,
            self._covered.__getitem__,
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
        settings = self.settings
        rules = IndexRules(folder.geometry, settings.index_tags_enable, settings.delay_levels_ms)
        queued_end = max((queue.log_end for queue in self._covered.values()), default=-1)
        return recovered_index(on_disk, self.log, self.condition, rules, queued_end)


class _WithDefault(dict[Queue, Covered]):
    """A queue that has no files covers nothing."""

    def __missing__(self, _queue: Queue) -> Covered:
        return NOT_COVERED
