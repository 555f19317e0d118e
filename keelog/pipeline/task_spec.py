"""What a task gets: where its files are, and which of their rows it reads. Plain data, pickled."""

from dataclasses import dataclass
from pathlib import Path

from keelog.pipeline import options, tables
from keelog.pipeline.stores.access import StoreAt
from node.runtime.store_paths import path_in
from node.store.file_cache import OpenFiles
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import Listing, SegmentList
from node.store.query.filters import TagFilter
from node.store.queues import QueueFiles
from protocol.derived.file_layouts import IndexGeometry
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.names import COMMIT_LOG_DIR, offset_file_name


@dataclass(frozen=True, slots=True)
class Task:
    """What all kinds have in common."""

    store: StoreAt
    columns: tuple[tables.Column, ...]
    fail_on_data_loss: bool
    on_corrupt: options.OnCorrupt


@dataclass(frozen=True, slots=True)
class LogAt:
    """The log of a store: segments that were there when the read was planned, its bounds, and which
    of its messages are removed."""

    store: StoreAt
    segment_bytes: int
    segments: tuple[int, ...]
    start: int
    end: int
    removed: Removed = NOTHING_REMOVED

    @classmethod
    def of(cls, store: StoreAt, log: LogReader, removed: Removed = NOTHING_REMOVED) -> "LogAt":
        """The log of an open store."""
        segments = tuple(segment.start for segment in log.segments.segments)
        return cls(store, log.segment_bytes, segments, log.min_offset, log.end, removed)

    def open(self, files: OpenFiles) -> LogReader:
        """A reader of these very segments; none is opened before it is needed."""
        folder = path_in(self.store.root, self.store.root) / COMMIT_LOG_DIR
        listed = [(start, folder / offset_file_name(start)) for start in self.segments]
        segments = SegmentList(folder, Listing(listed, self.segment_bytes, []), files)
        return LogReader(segments, Bounds(self.start, self.end))


@dataclass(frozen=True, slots=True)
class LogPart:
    """Records that start in [`start`, `end`) of the log; a record starts at `start`."""

    task: Task
    log: LogAt
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class QueueSlice:
    """Units [`start`, `end`) of a queue; those from `disk_end` on are in `derived`, not in files.

    `folder` holds the queue's files of `file_bytes` each.
    """

    topic: str
    queue_id: int
    folder: str
    file_bytes: int
    start: int
    end: int
    disk_end: int
    derived: bytes


def planned_queue_files(
    folder: Path, file_bytes: int, first: int, end: int, files: OpenFiles
) -> QueueFiles:
    """The files that hold bytes [`first`, `end`) of a queue, by their names: nobody lists folders
    elsewhere for each task."""
    starts = range(first - first % file_bytes, end, file_bytes)
    listed = [(start, folder / offset_file_name(start)) for start in starts]
    return QueueFiles(folder, Listing(listed, file_bytes, []), files)


@dataclass(frozen=True, slots=True)
class QueuePart:
    """Units of some queues, or, with a log, the messages that they lead to."""

    task: Task
    slices: tuple[QueueSlice, ...]
    log: LogAt | None = None
    tags: TagFilter | None = None


@dataclass(frozen=True, slots=True)
class IndexSlice:
    """Entries [`start`, `end`) of an index file; `data` holds them when no file does."""

    path: str
    name: str
    geometry: IndexGeometry
    begin_timestamp: int
    start: int
    end: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Entries of some index files."""

    task: Task
    slices: tuple[IndexSlice, ...]
    log: LogAt | None = None
    """The log, where some of its messages are removed: their entries give no rows."""


Part = LogPart | QueuePart | IndexPart
