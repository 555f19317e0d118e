"""RocketMQ's `checkpoint`, kept so that a broker can open the store after a clean stop and a kill.

After an unclean stop a broker drops every index file that ends above `indexMsgTimestamp` and
builds queues and index again from the segment that `logicsPhysicalOffset` lies in, or from the
last ten. So neither may go beyond what is synced. Our own recovery never reads this file.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from node.runtime import disk
from node.runtime.locks import record_lock_of
from node.runtime.settings import Settings
from node.runtime.state_page import WorkerPage, WorkerState, run_dir
from node.runtime.store_paths import held_open, is_in_place, open_regular
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX
from node.store.indexes import list_index_files
from protocol.derived.file_layouts import CHECKPOINT, INDEX_HEADER, IndexHeader, StoreCheckpoint
from protocol.names import CHECKPOINT_FILE, CHECKPOINT_FILE_BYTES, INDEX_DIR

SAVE_EVERY_S = 1.0


class BrokerCheckpoint:
    """Writes the file in place; an older content stays true, so only a clean stop syncs it.

    Foreign bytes in it are overwritten, and a foreign file of its name is replaced.
    """

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._path = root / CHECKPOINT_FILE
        self._descriptor = self._open()

    def _open(self) -> int:
        descriptor = disk.open_file(self._path, create=True, own=True)
        if os.fstat(descriptor).st_size < CHECKPOINT_FILE_BYTES:
            disk.allocate(descriptor, CHECKPOINT_FILE_BYTES)
        return descriptor

    def save_running(self) -> None:
        """Writes how far the workers have synced; without workers the file stays as it is."""
        workers = live_workers(self._root)
        queues = [state.saved for slot, state in workers.items() if slot != INDEX_WORKER]
        index = workers.get(INDEX_WORKER)
        if not queues or (index is None and self._settings.message_index_enable):
            return
        full_end, open_from, timestamp = (0, 0, 0) if index is None else self._index(index.saved)
        vouched = min(queues) if index is None else min(*queues, open_from)
        self._write(StoreCheckpoint(timestamp, timestamp, full_end, 0, 0, vouched))

    def save_clean(self, timestamp: int, last_record_offset: int, end: int) -> None:
        """Everything up to `end` is flushed and dispatched. Syncs."""
        full_end, _, _ = self._index(end)
        self._write(StoreCheckpoint(timestamp, timestamp, full_end, 0, 0, last_record_offset))
        disk.sync_with_length(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, checkpoint: StoreCheckpoint) -> None:
        if self._is_spoilt():
            os.close(self._descriptor)
            self._descriptor = self._open()
        data = CHECKPOINT.pack(checkpoint)
        if os.pread(self._descriptor, len(data), 0) != data:
            disk.write_all(self._descriptor, data, 0)

    def _is_spoilt(self) -> bool:
        """Whether the file is short, or another file, or none, has its name."""
        status = os.fstat(self._descriptor)
        if status.st_size < CHECKPOINT_FILE_BYTES:
            return True
        try:
            named = self._path.lstat()
        except FileNotFoundError:
            return is_in_place()
        return not os.path.samestat(named, status) and stat.S_ISREG(named.st_mode) and is_in_place()

    def _index(self, saved: int) -> tuple[int, int, int]:
        """The end time of the newest full index file, from which log offset on the index is not
        synced, and the time there. `saved`: the log offset below which it is synced."""
        open_from, open_timestamp = saved, 0
        for header in self._headers_newest_first():
            is_full = header.index_count >= self._settings.index_geometry.index_num
            if is_full and header.end_physical_offset < saved:
                return header.end_timestamp, open_from, open_timestamp or header.end_timestamp
            if header.index_count > 1:
                open_from = min(open_from, header.begin_physical_offset)
                open_timestamp = header.begin_timestamp
        return 0, open_from, open_timestamp

    def _headers_newest_first(self) -> Iterator[IndexHeader]:
        """Read, not mapped: the files are sparse, and a full disk would be a SIGBUS."""
        for entry in reversed(list_index_files(self._root / INDEX_DIR)):
            with entry.path.open("rb") as file:
                head = file.read(INDEX_HEADER.size)
            if len(head) == INDEX_HEADER.size:
                yield INDEX_HEADER.read(head)


def lowered_checkpoint(found: StoreCheckpoint, end: int, last_ms: int) -> StoreCheckpoint:
    """Names nothing above the `end` of a log whose last record has the store time `last_ms`; where
    it says nothing a broker looks for itself."""
    return found._replace(
        physic_msg_timestamp=min(found.physic_msg_timestamp, last_ms),
        logics_msg_timestamp=min(found.logics_msg_timestamp, last_ms),
        index_msg_timestamp=min(found.index_msg_timestamp, last_ms),
        confirm_physical_offset=_up_to(found.confirm_physical_offset, end),
        logics_physical_offset=_up_to(found.logics_physical_offset, end),
    )


def _up_to(offset: int, end: int) -> int:
    return offset if offset <= end else 0


def live_workers(root: Path) -> dict[str, WorkerState]:
    """The queue and index workers that run, by slot: those that hold its lock."""
    found: dict[str, WorkerState] = {}
    for path in run_dir(root).glob("*.page"):
        slot = path.name.removesuffix(".page")
        if slot != INDEX_WORKER and not slot.startswith(QUEUE_WORKER_PREFIX):
            continue
        try:
            with WorkerPage.open(root, slot) as page:
                state = page.read()
        except FileNotFoundError:
            continue  # it is being made, so its worker has done nothing yet
        if _is_locked(path.with_suffix(".lock")):
            found[slot] = state
    return found


def _is_locked(path: Path) -> bool:
    try:
        with held_open(open_regular(path)) as descriptor:
            return record_lock_of(descriptor) is not None
    except FileNotFoundError:
        return False
