"""The interface of every open store, with or without a running node."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from node.runtime.settings import Settings
from node.store.file_cache import OpenFiles
from node.store.indexes.reader import IndexReader
from node.store.log.reader import LogReader
from node.store.queues.reader import QueueReader
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import NotFound
from protocol.ids import Queue
from protocol.record.codec import Record


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
    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
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
