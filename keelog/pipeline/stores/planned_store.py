"""A store on the driver: what planning needs of it, wherever it is, and how it is opened.

Planning needs the store's ends, its queues, and parts' plain data. A folder is at rest, or run by a
node right now. A node's own pages say how far it may be read (LogPage.readable, the workers' ends).
They outlive a node that was killed, so they are believed only while somebody holds the store's
lock. In a task `task_files` gives the open files that the plan's paths are read through.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Self

from keelog.pipeline.errors import DataLoss, StoreUnreadable, few, log, naming_conditions
from keelog.pipeline.options import SourceOptions
from keelog.pipeline.stores.access import StoreAt, Way
from keelog.pipeline.task_spec import IndexSlice, LogAt, QueueSlice
from node.runtime.settings import Settings
from node.runtime.state_page import RECOVERING, STARTING, LogPage, run_dir
from node.store.condition import Owner, check_is_store, find_owner
from node.store.file_cache import OpenFiles
from node.store.indexes import readable_end
from node.store.log.reader import LogReader
from node.store.log.segments import list_folder
from node.store.opening import RunningStore, StoppedStore
from node.store.query.look_up import offset_by_time
from node.store.queues import QueueReader, queue_folder
from protocol import errors, ids
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.removed import Removed
from protocol.names import COMMIT_LOG_DIR, INDEX_DIR

OPEN_S_MAX = 10.0
"""How long a node that is just starting is waited for."""
SETTLE_S_MAX = 2.0
"""How long queue workers may take to catch up with the log, before what they have is taken."""
LOOK_S = 1.0
"""How often it is looked whether a node has come, or another one."""
UNFIT_S_MAX = 2.0
"""How long the log's folder may not fit to the pages: the writer makes and removes segments."""
_POLL_S = 0.01
_MISSING = frozenset({"missing_segment", "wrong_length"})
_GAPS_SHOWN = 5


def check_stores(stores: Iterable[StoreAt]) -> None:
    """Raises NotAStore, StoreUnreadable; no more than a look at the folders."""
    with naming_conditions():
        for at in stores:
            if at.way is Way.FILES:
                check_is_store(Path(at.root))


def open_planned(at: StoreAt, options: SourceOptions) -> "PlannedStore":
    """A store as it is now: a folder at rest, one that a node runs, a node, or an object store.

    A context manager. A node is asked for the queues of the named topics alone. Segments that are
    missing are a DataLoss, or passed over with a warning, as the options say.
    Raises NotAStore, StoreDamaged, StorePermission, StoreUnreadable, NotConnected.
    """
    # Imported here: few read from elsewhere, and both modules build on this one.
    if at.way is Way.NODE:
        from keelog.pipeline.stores.node_store import NodeStore

        return NodeStore(at, options.selection.named_topics)
    if at.way is Way.OBJECTS:
        from keelog.pipeline.stores.object_store import ObjectStore

        return ObjectStore(at, options.settings, options.fail_on_data_loss)
    return FolderStore(at, options.settings, options.fail_on_data_loss)


def task_files(at: StoreAt, maps: bool = False) -> OpenFiles:
    """What a task reads the files of a plan through; its owner closes it.

    The process keeps connections to a node and to an object store. `maps`: files that are here
    may be mapped, as those of a store at rest.
    """
    if at.way is Way.FILES:
        return OpenFiles(maps=maps)
    from keelog.pipeline.stores.remote_files import RemoteFiles

    if at.way is Way.NODE:
        from keelog.pipeline.stores.node_store import node_source

        return RemoteFiles(node_source(at))
    from keelog.pipeline.stores.object_store import object_source

    return RemoteFiles(object_source(at))


class PlannedStore(ABC):
    """An open store on the driver. A context manager; it never writes and takes no lock.

    A batch opens one, plans and closes it. A stream keeps one, calls `refresh` at each look, and
    asks for queues anew: the readers of `queue` are good until the next `refresh`. Ends of queues
    that were seen may go back for a moment while a node's worker starts again (`is_resuming`); a
    stream keeps the ends that it knew. All methods raise StoreDamaged, StorePermission where files
    are not as they should be.
    """

    at: StoreAt
    _root: Path
    # As of the last `refresh`:
    epoch: int
    """Of the node that runs it, 0 at rest: when it moves, the log may have been cut before."""
    log: LogReader
    """The log, with its bounds: [`min_offset`, `end`)."""
    removed: Removed
    """The messages of the log that are removed."""
    all_followed: int
    """The log offset below which the units of all queues are there. At rest that is the end of the
    log: what files lack is derived."""

    @abstractmethod
    def refresh(self) -> None:
        """Takes in what has been written since. Idle it costs well below a millisecond."""

    @abstractmethod
    def is_resuming(self, queue: ids.Queue) -> bool:
        """Whether the queue may show fewer units than it did."""

    def followed(self, queue: ids.Queue) -> int:
        """The same of one queue; where nobody knows it, of all."""
        return self.all_followed

    @abstractmethod
    def queues(self) -> list[ids.Queue]:
        """Every queue that has a unit or a folder, sorted by topic and queue id."""

    def topics(self) -> list[str]:
        """Every topic, also those whose queues were not asked for, sorted."""
        return sorted({queue.topic for queue in self.queues()})

    @abstractmethod
    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        """One queue: `min_offset`, `max_offset`, and `units(start, count)`; None without it."""

    @abstractmethod
    def index_slices(self) -> list[IndexSlice]:
        """The rows of each index file, whole, oldest first."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of all files, maps and pages."""

    def settle(self) -> None:
        """Waits a moment for queues to hold what the log holds; for a batch that is planned."""
        end, deadline = self.log.end, time.monotonic() + SETTLE_S_MAX
        while self.all_followed < end and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            self.refresh()

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

    def log_at(self) -> LogAt:
        """The log, as a task gets it."""
        return LogAt.of(self.at, self.log, self.removed)

    def offset_by_time(self, reader: QueueReader, time_ms: int) -> int:
        """The first queue offset stored at or after a time, by RocketMQ's bisection."""
        return offset_by_time(self.log, reader, time_ms)

    def tear(self) -> str:
        """Where and why the log of a store at rest ends within a record; empty: nowhere."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FolderStore(PlannedStore):
    """A StoppedStore, or a RunningStore while a node runs; `refresh` notices one that comes."""

    def __init__(self, at: StoreAt, settings: Settings, fail_on_data_loss: bool = True) -> None:
        self.at = at
        self._settings = settings
        self._fail_on_data_loss = fail_on_data_loss
        self._root = self._find_root()
        check_is_store(self._root)
        self._store = self._open()
        self._note()
        self._looked_at = time.monotonic()
        self._unfit_since: float | None = None

    def _find_root(self) -> Path:
        return Path(self.at.root)

    def _open_resting(self, files: OpenFiles) -> StoppedStore:
        """Raises DataLoss for missing segments; without `failOnDataLoss` it warns of them."""
        missing = missing_segments(self._root)
        if missing and self._fail_on_data_loss:
            raise DataLoss(missing, "failOnDataLoss=false to read what is left")
        if missing:
            log.warning("messages are lost: %s", missing)
        return StoppedStore(self._root, self._settings, strict=not missing, files=files)

    def _open(self) -> StoppedStore | RunningStore:
        owner = find_owner(self._root)
        if owner in (Owner.NOBODY, Owner.BROKER):
            if owner is Owner.BROKER:
                log.warning("a broker runs %s: rows end at what its files hold", self._root)
            return self._open_resting(OpenFiles(maps=False))
        return open_running(self._root, self._settings, self.at.access.flushed_only)

    def _note(self) -> None:
        store = self._store
        self.log, self.removed = store.log, store.removed
        self.epoch, self.all_followed = 0, store.log.end
        if isinstance(store, RunningStore):
            self.epoch, self.all_followed = store.epoch, store.followed

    def refresh(self) -> None:
        """Raises StoreDamaged when the files do not fit to what the node says for two seconds."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            owner = find_owner(self._root)
            if isinstance(self._store, StoppedStore):
                is_replaced = owner in (Owner.WRITER, Owner.SUPERVISOR)
            else:
                is_replaced = owner is not Owner.NOBODY and self._store.pages.are_gone()
            if is_replaced:
                before, self._store = self._store, self._open()
                before.close()
        try:
            self._store.refresh()
        except errors.CorruptError:
            self._unfit_since = self._unfit_since or now
            if now - self._unfit_since >= UNFIT_S_MAX:
                raise
        else:
            self._unfit_since = None
        finally:
            self._note()

    def is_resuming(self, queue: ids.Queue) -> bool:
        return isinstance(self._store, RunningStore) and self._store.is_resuming(queue)

    def followed(self, queue: ids.Queue) -> int:
        store = self._store
        return store.visible_end(queue) if isinstance(store, RunningStore) else store.log.end

    def queues(self) -> list[ids.Queue]:
        return self._store.queues()

    def queue(self, topic: str, queue_id: int) -> QueueReader | None:
        return self._store.queue(topic, queue_id)

    def index_slices(self) -> list[IndexSlice]:
        log_end = None if isinstance(self._store, StoppedStore) else self.log.end
        slices: list[IndexSlice] = []
        for file in self._store.index.files():
            end = file.header.index_count if log_end is None else readable_end(file, log_end)
            slices.append(
                IndexSlice(
                    path=str(self._root / INDEX_DIR / file.name),
                    name=file.name,
                    geometry=file.geometry,
                    begin_timestamp=file.header.begin_timestamp,
                    start=1,
                    end=end,
                    data=file.entries(1, end).tobytes() if file.is_image else None,
                )
            )
        return slices

    def tear(self) -> str:
        stop = self._store.tail.stop if isinstance(self._store, StoppedStore) else None
        return f"offset {stop.position}: {stop.why}" if stop and stop.kind != "end" else ""

    def close(self) -> None:
        self._store.close()


def missing_segments(root: Path) -> str:
    """Which stretches of the log have no whole file, as text; empty when it is all there.

    Where something else is wrong with the folder it is not for us to pass over.
    """
    listing = list_folder(root / COMMIT_LOG_DIR)
    if any(problem.kind not in _MISSING for problem in listing.problems):
        return ""
    gaps = [(end, start) for (_, end), (start, _) in pairwise(listing.runs())]
    if not gaps:
        return ""
    texts = [f"log offsets {start} to {end - 1}" for start, end in gaps]
    return f"segments of {root / COMMIT_LOG_DIR} are missing: {few(texts, _GAPS_SHOWN)}"


def open_running(root: Path, settings: Settings, flushed_only: bool = False) -> RunningStore:
    """A store whose lock is held. Raises StoreUnreadable when no state pages give its ends.

    A writer that is starting is waited for: until it has recovered the log, its predecessor's page
    may name more than will be left. One that stays away, for want of room on the disk, leaves a
    page that its readers go by, and so do we.
    """
    deadline = time.monotonic() + OPEN_S_MAX
    first_beat = 0
    while True:
        is_late = time.monotonic() >= deadline
        shards = _shards(root)
        beat = _writer_beat(root)
        first_beat = first_beat or beat
        lives = beat not in (0, first_beat)
        if shards and (lives or (is_late and find_owner(root) is Owner.SUPERVISOR)):
            try:
                store = RunningStore(root, shards, settings, OpenFiles(maps=False), flushed_only)
            except errors.CorruptError:
                if is_late:
                    raise
            else:
                if store.knows_log:
                    return store
                store.close()
        if is_late:
            raise StoreUnreadable(
                f"{root} is locked, and no node on this machine says how far it may be read: it is"
                " being recovered, rebuilt or repaired, or its node runs elsewhere",
                "again when that is done, or the node's address: tcp://host:port",
            )
        time.sleep(_POLL_S)


def _writer_beat(root: Path) -> int:
    """The heart-beat in the page of the writer that holds the lock; 0 while it is starting.

    The page is its own once the heart-beat moves; until then it may be a predecessor's. The pid in
    the page says nothing: a node in another container has pids of its own.
    """
    if find_owner(root) is not Owner.WRITER:
        return 0
    try:
        with LogPage.open(root) as page:
            state = page.read()
    except FileNotFoundError:
        return 0
    is_ready = state.epoch != 0 and state.state not in (STARTING, RECOVERING)
    return state.heartbeat_ms if is_ready else 0


def _shards(root: Path) -> int:
    """How many queue workers the node has, by their pages; 0 while that is not clear."""
    names = [path.stem for path in run_dir(root).glob("queue-*-of-*.page")]
    counts = {name.rpartition("-")[2] for name in names}
    if len(counts) != 1:
        return 0
    count = counts.pop()
    return int(count) if count.isdigit() and len(names) == int(count) else 0
