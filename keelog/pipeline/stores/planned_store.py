"""What planning needs of a store, wherever it is: its ends, its queues, and parts' plain data."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from keelog.pipeline.stores.access import StoreAt
from keelog.pipeline.task_spec import IndexSlice, LogAt, QueueSlice
from node.runtime.settings import Settings
from node.store.log.reader import LogReader
from node.store.query.look_up import offset_by_time
from node.store.queues import QueueReader, queue_folder
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.removed import Removed
from protocol.ids import Queue


class IndexTable(NamedTuple):
    """One index file: entries [1, `end`) are rows."""

    name: str
    end: int


class PlannedStore(ABC):
    """An open store on the driver. A context manager; it never writes and takes no lock.

    A batch opens one, plans and closes it. A stream keeps one, calls `refresh` at each look, and
    asks for queues anew: the readers of `queue` are good until the next `refresh`. Ends of queues
    that were seen may go back for a moment while a node's worker starts again (`is_resuming`); a
    stream keeps the ends that it knew. All methods raise StoreDamaged, StorePermission where files
    are not as they should be.
    """

    at: StoreAt
    settings: Settings
    _root: Path

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Of the node that runs it, 0 at rest: when it moves, the log may have been cut before."""

    @property
    @abstractmethod
    def log(self) -> LogReader:
        """The log, with its bounds as of the last `refresh`: [`min_offset`, `end`)."""

    @property
    @abstractmethod
    def removed(self) -> Removed:
        """The messages of the log that are removed, as of the last `refresh`."""

    @abstractmethod
    def refresh(self) -> None:
        """Takes in what has been written since. Idle it costs well below a millisecond."""

    @abstractmethod
    def settle(self) -> None:
        """Waits a moment for queues to hold what the log holds; for a batch that is planned."""

    @abstractmethod
    def is_resuming(self, queue: Queue) -> bool:
        """Whether the queue may show fewer units than it did."""

    def followed(self, queue: Queue) -> int:
        """The log offset below which the queue's units are there, as of the last `refresh`."""
        return self.log.end

    @abstractmethod
    def queues(self) -> list[Queue]:
        """Every queue that has a unit or a folder, sorted by topic and queue id."""

    def topics(self) -> list[str]:
        """Every topic, also those whose queues were not asked for, sorted."""
        return sorted({queue.topic for queue in self.queues()})

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        """One queue: `min_offset`, `max_offset`, and `units(start, count)`; None without it."""

    def queue_slice(self, reader: QueueReader, start: int, end: int) -> QueueSlice:
        """Units [start, end) of a queue, as a task gets them."""
        first = max(start, reader.disk_end)
        return QueueSlice(
            topic=reader.queue.topic,
            queue_id=reader.queue.queue_id,
            folder=str(queue_folder(self._root, reader.queue)),
            file_bytes=reader.file_units * UNIT_BYTES,
            start=start,
            end=end,
            disk_end=min(reader.disk_end, end),
            derived=reader.units(first, end - first).tobytes() if first < end else b"",
        )

    @abstractmethod
    def index_tables(self) -> Sequence[IndexTable]:
        """The index files, oldest first."""

    @abstractmethod
    def index_slice(self, name: str, start: int, end: int) -> IndexSlice:
        """Entries [start, end) of an index file, from number 1 on, as a task gets them."""

    @abstractmethod
    def tear(self) -> str:
        """Why the log ends where it does, empty for an end in order."""

    @abstractmethod
    def close(self) -> None:
        """Closes all files and sockets."""

    def log_at(self) -> LogAt:
        """The log, as a task gets it."""
        return LogAt.of(self.at.root, self.log, self.removed)

    def offset_by_time(self, reader: QueueReader, time_ms: int) -> int:
        """The first queue offset stored at or after a time, by RocketMQ's bisection."""
        return offset_by_time(self.log, reader, time_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
