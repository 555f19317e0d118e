"""A store that a node is running: what may be read is what its processes publish."""

from pathlib import Path

from node.store.index_file import IndexFile
from node.store.index_reader import IndexFolder, IndexReader
from node.store.log_reader import Bounds, LogReader
from node.store.open_files import FileVanished
from node.store.queue_list import (
    list_queue_ids,
    list_queues,
    list_topics,
    open_queue_files,
    queue_folder,
)
from node.store.queue_reader import QueueReader
from node.store.segment_list import SegmentList, list_folder
from node.store.settings import Settings
from node.store.state_page import LogPage, LogState, WorkerPage, queue_slot, visible_end
from node.store.store_view import Store
from protocol.ids import Queue, shard_of
from protocol.names import COMMIT_LOG_DIR, is_folder_name


class LiveStore(Store):
    """Follows a node. Call `refresh` before each look; it costs a few page reads when idle.

    Queue readers are told their new end when they are asked for, not while they are held.
    """

    def __init__(self, root: Path, shards: int, settings: Settings) -> None:
        super().__init__(root, settings)
        self._shards = shards
        self._page: LogPage | None = None
        self._workers: list[WorkerPage | None] = [None] * shards
        self._readers: dict[Queue, QueueReader] = {}
        self._ends: list[int] = [0] * shards
        self._epoch = 0
        self._epoch_start = 0
        self._rewound: dict[Queue, int] = {}
        listing = list_folder(root / COMMIT_LOG_DIR)
        listing.check()
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, self._files)
        self.log = LogReader(segments, Bounds(0, 0))
        folder = IndexFolder(root, settings.index_geometry, self._files)
        self._index_folder = folder
        self.index = IndexReader(self._index_files)
        self.refresh()

    def refresh(self) -> None:
        """Reads the pages. Raises StoreDamaged when the log's files do not fit to them."""
        if self._page is None:
            try:
                self._page = LogPage.open(self.root)
            except FileNotFoundError:
                return
        state = self._page.read()
        if state.epoch == 0:
            return
        self._follow_log(state)
        for shard in range(self._shards):
            self._ends[shard] = self._end_of(shard, state)

    def _follow_log(self, state: LogState) -> None:
        if state.epoch != self._epoch:
            self._epoch, self._epoch_start = state.epoch, state.epoch_start
            self.log.segments.refresh()
        bounds = self.log.bounds
        if state.readable > self.log.segments.end or state.min_offset != bounds.start:
            self.log.segments.refresh()
        if state.min_offset != bounds.start:
            for reader in self._readers.values():
                reader.drop_vanished()
        bounds.start, bounds.end = state.min_offset, state.readable

    def _end_of(self, shard: int, state: LogState) -> int:
        page = self._workers[shard]
        if page is None:
            try:
                page = WorkerPage.open(self.root, queue_slot(shard, self._shards))
            except FileNotFoundError:
                return 0
            self._workers[shard] = page
        worker = page.read()
        return visible_end(state, worker) if worker.epoch else self._ends[shard]

    def visible_end(self, queue: Queue) -> int:
        """Up to which log offset the units of a queue may be believed, as of the last `refresh`."""
        return self._ends[shard_of(queue, self._shards)]

    @property
    def followed(self) -> int:
        """Below it all queues can be read, as of the last `refresh`: this reader's own offset."""
        return min(self._ends)

    def queues(self) -> list[Queue]:
        return [queue for queue in list_queues(self.root) if self.queue(*queue) is not None]

    def topics(self) -> list[str]:
        # Folders alone: opening every queue would stop a reader for a second.
        return [topic for topic in list_topics(self.root) if list_queue_ids(self.root, topic)]

    def has_topic(self, topic: str) -> bool:
        return is_folder_name(topic) and bool(list_queue_ids(self.root, topic))

    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        queue = Queue(topic, queue_id)
        limit = self.visible_end(queue)
        reader = self._readers.get(queue)
        if reader is None:
            reader = self._open(queue)
            if reader is None:
                return None
            self._readers[queue] = reader
            self._rewound[queue] = self._epoch
            reader.rewind(limit)
        if self._rewound[queue] != self._epoch:
            # Units above the new epoch's start may have been taken back and written anew.
            reader.rewind(limit)
            self._rewound[queue] = self._epoch
        try:
            reader.advance(limit)
        except FileVanished:
            del self._readers[queue]
            return self.queue(topic, queue_id)
        return reader

    def _open(self, queue: Queue) -> QueueReader | None:
        folder = queue_folder(self.root, queue)
        files = open_queue_files(folder, self.settings.queue_file_bytes, self._files)
        if files.is_empty:
            return None
        return QueueReader(files, files.first, lambda: self.log.min_offset)

    def _index_files(self) -> list[IndexFile]:
        return self._index_folder.open(self._index_folder.names(), trusts_slots=True)

    def close(self) -> None:
        for page in (self._page, *self._workers):
            if page is not None:
                page.close()
        super().close()
