"""The index worker: IndexFile files, all keys of all records (RocketMQ: IndexService).

Run it as `python -m workers.index_file DIR`. `IndexWriter` finds, cuts, writes and syncs the files:
it is the one writer of them.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from node.runtime.disk import sync_dir_if_there, write_all
from node.runtime.event_log import fields
from node.runtime.process import leave
from node.runtime.service_loop import index_pace
from node.runtime.settings import Settings
from node.runtime.state_page import run_dir
from node.store.checkpoints import forget_progress
from node.store.condition import INDEX_WORKER
from node.store.file_cache import nonzero_pieces
from node.store.file_sizes import found_geometry
from node.store.indexes import check_index_names, list_index_files
from node.store.log.reader import Damage
from protocol.derived import file_layouts, index_build
from protocol.derived.dispatch_request import DispatchRequests, key_batch, plain_index_keys
from protocol.errors import BadRequest, NotFound, StoreDamaged
from protocol.names import ABORT_FILE, INDEX_DIR, next_index_file_name
from protocol.record.java_hash import java_hash
from workers.dispatch import Handler
from workers.feed import Feed
from workers.process import TurnPace, WorkerJob, parser_for, run_worker
from workers.progress import took_over_in_order, vouched_offset
from workers.sparse_file import Unsynced, make_file, zero_from

log = logging.getLogger("keelog.worker")

_SLOT_DTYPE = np.dtype(">i4")
_CHUNK_ENTRIES = 1 << 16

WINDOW_BYTES = 1 << 20
"""Log read at once: it stays in the processor's cache from its copy to its keys."""
PENDING_KEYS_MAX = 1 << 19
"""Keys that wait in memory, 20 bytes each, for their slots to be written at once."""
IDLE_S, TURN_BYTES = 0.02, 4 << 20
"""Nobody waits for a key: the writer rings for the first record after a quiet time alone."""


@dataclass(slots=True)
class IndexState:
    """The file that takes the next key: its name, header, and slot table as on disk.

    What is planned and not written yet is in the table already.
    """

    name: str
    header: file_layouts.IndexHeader
    slots: NDArray[Any]
    is_made: bool


class IndexWriter:
    """All index files below one store. One thread writes; `sync` may run in another."""

    def __init__(self, root: Path, geometry: file_layouts.IndexGeometry, temp: Path) -> None:
        self.root = root / INDEX_DIR
        self.geometry = geometry
        self._temp = temp
        self._open: tuple[str, int] | None = None
        self._in_place: dict[str, int] = {}
        """The inodes of the files that are to stay, and under "" that of the folder."""
        self._unsynced: Unsynced[str] = Unsynced(lambda name: self.root / name)

    # Finding

    def names(self) -> list[str]:
        """All files, oldest first. Raises BadRequest when one is of another length than ours,
        StoreDamaged for what has such a name and is not a file."""
        entries = check_index_names(self.root)
        for entry in entries:
            if entry.size != self.geometry.file_bytes:
                raise BadRequest(
                    f"index file {entry.name} has {entry.size} bytes, the settings say "
                    f"{self.geometry.file_bytes}",
                    "set max_hash_slot_num and max_index_num as the store was written with",
                )
        return [entry.name for entry in entries]

    def make_root(self) -> None:
        """Makes the folder: a missing one means that somebody deleted the index."""
        if not self.root.is_dir():
            disk.make_dir(self.root)
            sync_dir_if_there(self.root.parent)

    def lost(self) -> str:
        """What is gone, or another file by now, since the last look; empty while nothing is."""
        try:
            found = {"": self.root.stat().st_ino}
            with os.scandir(self.root) as entries:
                found |= {entry.name: entry.inode() for entry in entries if entry.name.isdigit()}
        except FileNotFoundError:
            return f"{self.root} is gone"
        for name, inode in self._in_place.items():
            if found.get(name, inode) != inode:
                return f"{self.root / name} is another one"
            if name not in found:
                return f"{self.root / name} is gone"
        self._in_place = found
        return ""

    def header(self, name: str) -> file_layouts.IndexHeader:
        return file_layouts.INDEX_HEADER.read(
            os.pread(self._descriptor(name), file_layouts.INDEX_HEADER.size, 0)
        )

    def entries(self, name: str, first: int, stop: int) -> NDArray[Any]:
        position = self.geometry.entry_position(first)
        size = (stop - first) * file_layouts.INDEX_ENTRY.size
        return file_layouts.INDEX_ENTRY.view(_read(self._descriptor(name), position, size))

    def slots(self, name: str) -> NDArray[Any]:
        size = self.geometry.slot_count * file_layouts.INDEX_SLOT.size
        data = _read(self._descriptor(name), self.geometry.slot_position(0), size)
        return np.frombuffer(data, _SLOT_DTYPE).copy()

    # Cutting

    def drop_unfinished(self) -> None:
        """Removes files without a byte: a power loss can keep a name and lose the length."""
        for entry in list_index_files(self.root):
            if entry.size == 0:
                self.remove(entry.name)

    def kept_entries(self, name: str, limit: int) -> int:
        """How many entries may name records below log offset `limit`.

        Those are whole and in order; after them may be anything that a crash left, an entry
        of which only some bytes reached the disk, too: the last record must be looked at.
        """
        header = self.header(name)
        stop = min(index_build.next_entry(header), self.geometry.index_num)
        if header.end_physical_offset < limit:
            return stop - 1
        last = 0
        for first in range(1, stop, _CHUNK_ENTRIES):
            found = self.entries(name, first, min(first + _CHUNK_ENTRIES, stop))
            offsets = found["physical_offset"].astype(np.int64)
            good = (offsets < limit) & (offsets >= np.append(last, offsets[:-1]))
            good &= found.view(np.uint8).reshape(-1, file_layouts.INDEX_ENTRY.size).any(axis=1)
            if not good.all():
                return first - 1 + int(np.argmin(good))
            last = int(offsets[-1])
        return stop - 1

    def cut(self, name: str, kept: int, end_timestamp: int) -> IndexState:
        """Keeps the first `kept` entries and makes all the rest of the file agree with them.

        `end_timestamp` is the store time of the last kept entry's record.
        """
        header = self.header(name)
        table = np.zeros(self.geometry.slot_count, np.int32)
        for first in range(1, kept + 1, _CHUNK_ENTRIES):
            stop = min(first + _CHUNK_ENTRIES, kept + 1)
            index_build.fill_slots(table, first, self.entries(name, first, stop)["key_hash"])
        last = self.entries(name, kept, kept + 1)[0]
        header = header._replace(
            end_timestamp=end_timestamp,
            end_physical_offset=int(last["physical_offset"]),
            slot_count=int(np.count_nonzero(table)),
            index_count=kept + 1,
        )
        state = IndexState(name, header, table.astype(_SLOT_DTYPE), True)
        descriptor = self._descriptor(name)
        changed = np.flatnonzero(self.slots(name) != state.slots)
        self._write_spans(descriptor, state.slots, index_build.spans_of(changed))
        zero_from(descriptor, self.geometry.entry_position(kept + 1), self.geometry.file_bytes)
        write_all(descriptor, file_layouts.INDEX_HEADER.pack(header), 0)
        self._unsynced.add(name)
        return state

    def is_whole(self, name: str, kept: int) -> bool:
        """Whether a file ends with its `kept`-th entry, and nothing is after it or points there.

        A power loss can keep entries and take others before them.
        """
        if (
            index_build.next_entry(self.header(name)) != kept + 1
            or int(self.slots(name).max()) > kept
        ):
            return False
        start, stop = self.geometry.entry_position(kept + 1), self.geometry.file_bytes
        return next(nonzero_pieces(self._descriptor(name), start, stop), None) is None

    def remove(self, name: str) -> None:
        self.close()
        self._in_place.pop(name, None)
        disk.unlink(self.root / name, missing_ok=True)
        self._unsynced.add_folders(self.root)

    def trim(self, min_offset: int) -> None:
        """Deletes files whose last entry is of a record below `min_offset`, never the last file.

        RocketMQ: IndexService#deleteExpiredFile.
        """
        for name in self.names()[:-1]:
            if self.header(name).end_physical_offset >= min_offset:
                break
            self.remove(name)

    # Writing

    def write(self, state: IndexState, put: index_build.IndexPut) -> None:
        """Entries first, then slots, the header last: a reader in between sees less, not nonsense.

        After an OSError the same call again completes the write.
        """
        position = self.geometry.entry_position(put.first_entry)
        data = put.entries.view(np.uint8).data
        if state.is_made:
            descriptor = self._descriptor(state.name)
            write_all(descriptor, data, position)
        else:
            path = self.root / state.name
            made = make_file(path, self.geometry.file_bytes, position, data, self._temp)
            descriptor = self._keep(state.name, made)
            state.is_made = True
            self._unsynced.add_folders(self.root)
        self._write_spans(descriptor, state.slots, put.spans)
        write_all(descriptor, file_layouts.INDEX_HEADER.pack(put.header), 0)
        state.header = put.header
        self._unsynced.add(state.name)

    def _write_spans(
        self, descriptor: int, table: NDArray[Any], spans: list[tuple[int, int]]
    ) -> None:
        data = table.view(np.uint8).data
        origin, width = self.geometry.slot_position(0), file_layouts.INDEX_SLOT.size
        for start, stop in spans:
            write_all(descriptor, data[start * width : stop * width], origin + start * width)

    # Syncing

    def sync(self) -> None:
        """Makes durable all that was done before the call."""
        self._unsynced.sync()

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _descriptor(self, name: str) -> int:
        if self._open is not None and self._open[0] == name:
            return self._open[1]
        return self._keep(name, disk.open_file(self.root / name))

    def _keep(self, name: str, descriptor: int) -> int:
        self.close()
        self._open = (name, descriptor)
        return descriptor


class LastIndexed(NamedTuple):
    """The last indexed record, and how many entries it has."""

    physical_offset: int = -1
    entries: int = 0


class IndexFiles(Handler):
    """The handler that enters keys."""

    def __init__(self, root: Path, folder: IndexWriter, feed: Feed, with_tags: bool = True) -> None:
        self._root = root
        self._folder = folder
        self._feed = feed
        feed.window_bytes = WINDOW_BYTES
        self._with_tags = with_tags
        self._state: IndexState | None = None
        self._tail = LastIndexed()
        self._writes: list[tuple[IndexState, index_build.IndexPut]] = []
        self._pending: list[file_layouts.KeyBatch] = []
        self._pending_keys = 0
        self._gathered = 0
        self.applied = 0

    # Resuming

    def resume_from(self) -> int:
        """Cuts the files back to what can be vouched for, syncs, returns where to go on."""
        limits = self._feed.limits()
        self._folder.make_root()
        self._folder.drop_unfinished()
        is_kept = bool(self._folder.names()) or not self._begins_with_keys(limits.min_offset)
        vouched = vouched_offset(self._root, INDEX_WORKER)
        if not is_kept:
            if vouched:
                found = fields(folder=self._folder.root)
                log.warning("the index is lost: it is made anew from the log", extra=found)
            vouched = 0
        if vouched is None:
            start = self._resume_unvouched(limits.readable)
        else:
            start = min(max(vouched, limits.min_offset), limits.readable)
            self._cut(self._folder.names(), start)
        self.applied = self._gathered = max(start, limits.min_offset)
        self._folder.sync()
        return self.applied

    def _begins_with_keys(self, min_offset: int) -> bool:
        """True if the log's first record has keys. Without any file somebody deleted them then: the
        last one always stays."""
        try:
            record = self._feed.log.record_at(min_offset)
        except (NotFound, StoreDamaged):
            return False
        return bool(plain_index_keys(record.topic, record.unique_key, record.keys, ""))

    def _resume_unvouched(self, readable: int) -> int:
        """Another owner's files: the last one counts only after a clean stop.

        Goes on with the last indexed record, which may have entries missing. Files of some other
        log do not count at all.
        """
        names = self._folder.names()
        if names and (self._root / ABORT_FILE).exists() and not took_over_in_order(self._root):
            self._folder.remove(names.pop())
        self._cut(names, readable)
        offset = max(self._tail.physical_offset, 0)
        try:
            if self._tail.entries:
                self._feed.log.record_at(offset)
        except NotFound:
            if offset < self._feed.limits().min_offset:
                return offset
        except StoreDamaged:
            pass
        else:
            return offset
        self._cut(names, 0)
        return 0

    def _cut(self, names: list[str], limit: int) -> None:
        """Undoes every entry of a record at `limit` or above."""
        self._state, self._tail = None, LastIndexed()
        self._writes, self._pending, self._pending_keys = [], [], 0
        while names:
            kept = self._kept(names, limit)
            if kept:
                self._open(names, kept)
                return
            self._folder.remove(names.pop())

    def _kept(self, names: list[str], limit: int) -> int:
        """How many entries of the last of these files stay."""
        name = names[-1]
        header = self._folder.header(name)
        if header.index_count <= 1 or header.begin_physical_offset >= limit:
            return 0
        if names[1:]:
            before = self._folder.header(names[-2])
            if header.begin_physical_offset < before.end_physical_offset:
                return 0  # of another place in the log, whatever a crash has put here
        kept = self._folder.kept_entries(name, limit)
        while kept and not self._is_logged(name, kept):
            kept -= 1
        return kept

    def _is_logged(self, name: str, kept: int) -> bool:
        """Whether a file's last record has, in order, the keys that the log says.

        A file may begin in the middle of a record, and may have been made without TAGS; an
        expired record is believed.
        """
        offset = int(self._folder.entries(name, kept, kept + 1)[0]["physical_offset"])
        try:
            record = self._feed.log.record_at(offset)
        except NotFound:
            return offset < self._feed.limits().min_offset
        except StoreDamaged:
            return False
        texts = plain_index_keys(record.topic, record.unique_key, record.keys, record.tags)
        wanted = [file_layouts.fold_hash(java_hash(text)) for text in texts]
        found = self._folder.entries(name, max(kept - len(wanted), 0) + 1, kept + 1)
        hashes = found["key_hash"][found["physical_offset"] == offset].tolist()
        return any(
            hashes == wanted[:end][-len(hashes) :] for end in range(len(hashes), len(wanted) + 1)
        )

    def _open(self, names: list[str], kept: int) -> None:
        name = names[-1]
        if self._folder.is_whole(name, kept):
            header = self._folder.header(name)
            header = header._replace(index_count=index_build.next_entry(header))
            self._state = IndexState(name, header, self._folder.slots(name), True)
        else:
            self._state = self._folder.cut(name, kept, self._end_timestamp(name, kept))
        self._tail = self._last_record(names, kept)

    def _end_timestamp(self, name: str, kept: int) -> int:
        """Store time of the record of a file's `kept`-th entry; nearly so if it has expired."""
        header = self._folder.header(name)
        entry = self._folder.entries(name, kept, kept + 1)[0]
        offset = int(entry["physical_offset"])
        if offset == header.end_physical_offset:
            return header.end_timestamp
        try:
            return self._feed.log.record_at(offset).head.store_timestamp
        except NotFound:
            return header.begin_timestamp + 1000 * int(entry["time_diff_s"])

    def _last_record(self, names: list[str], kept: int) -> LastIndexed:
        """The last record's entries may begin in the file before the last."""
        offset = int(self._folder.entries(names[-1], kept, kept + 1)[0]["physical_offset"])
        count = 0
        for name in reversed(names):
            last = kept if name == names[-1] else self._folder.header(name).index_count - 1
            number = last
            while number and self._folder.entries(name, number, number + 1)[0][
                "physical_offset"
            ] == np.int64(offset):
                number -= 1
            count += last - number
            if number:
                break
        return LastIndexed(offset, count)

    # Applying

    def apply(self, requests: DispatchRequests) -> None:
        """Enters the batch's keys, rolling files as they fill.

        The slots of a few keys lie on nearly as many pages as those of many: keys wait in memory
        until there are PENDING_KEYS_MAX of them, or `settle` is called.
        """
        if not self._writes:
            self._gather(requests)
        if self._pending_keys >= PENDING_KEYS_MAX:
            self.settle()

    def _gather(self, requests: DispatchRequests) -> None:
        batch, columns = self._new_keys(key_batch(requests, self._with_tags)), requests.columns
        self._pending.append(batch)
        self._pending_keys += len(batch.key_hash)
        self._tail = self._tail_after(batch)
        self._gathered = columns.end

    def settle(self) -> None:
        """Writes what waits, all planned before: after an error the same writes are made again."""
        if not self._writes and self._pending_keys:
            self._writes = self._plans(file_layouts.KeyBatch.join(self._pending))
        while self._writes:
            state, put = self._writes[0]
            self._folder.write(state, put)
            self._state = state
            self._writes.pop(0)
        self._pending, self._pending_keys = [], 0
        self.applied = self._gathered

    def pass_over(self, hole: Damage) -> None:
        """As `Handler` has it. Nothing waits."""
        self.applied = self._gathered = hole.resumed_at

    def _new_keys(self, batch: file_layouts.KeyBatch) -> file_layouts.KeyBatch:
        """Without the keys that are entered already: of older records, of half the last one."""
        offsets = batch.physical_offset
        first = int(np.searchsorted(offsets, self._tail.physical_offset, "left"))
        same = int(np.searchsorted(offsets, self._tail.physical_offset, "right")) - first
        return batch.rows(first + min(same, self._tail.entries), len(offsets))

    def _plans(self, batch: file_layouts.KeyBatch) -> list[tuple[IndexState, index_build.IndexPut]]:
        """What to write into the present file and into as many new ones as it takes."""
        plans: list[tuple[IndexState, index_build.IndexPut]] = []
        geometry = self._folder.geometry
        state = self._state
        header = index_build.EMPTY_HEADER if state is None else state.header
        while len(batch.key_hash):
            if state is None or not index_build.free_entries(header, geometry):
                # It is made by its first `write`.
                last = None if state is None else state.name
                name = next_index_file_name(int(batch.store_timestamp[0]), last)
                header = index_build.rolled_header(header)
                state = IndexState(name, header, np.zeros(geometry.slot_count, _SLOT_DTYPE), False)
            put = index_build.put_keys(header, geometry, state.slots, batch)
            plans.append((state, put))
            header = put.header
            batch = batch.rows(put.taken, len(batch.key_hash))
        return plans

    def _tail_after(self, batch: file_layouts.KeyBatch) -> LastIndexed:
        if not len(batch.key_hash):
            return self._tail
        last = int(batch.physical_offset[-1])
        count = int(np.count_nonzero(batch.physical_offset == last))
        if last == self._tail.physical_offset:
            count += self._tail.entries
        return LastIndexed(last, count)

    def flush(self) -> int:
        """Syncs what was entered."""
        applied = self.applied
        self._folder.sync()
        return applied

    def trim(self, min_offset: int) -> None:
        self._folder.trim(min_offset)

    # Whether the files stay

    def lost_files(self) -> str:
        return self._folder.lost()

    def disown_lost(self) -> None:
        """As `Handler` has it: keys of all times may be in a file that is gone."""
        forget_progress(self._root, INDEX_WORKER)
        for name in self._folder.names():
            self._folder.remove(name)


def _read(descriptor: int, position: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.pread(descriptor, size, position)
        if not part:
            break
        parts.append(part)
        position, size = position + len(part), size - len(part)
    return b"".join(parts)


def main(arguments: list[str] | None = None) -> int:
    options = parser_for("workers.index_file", __doc__).parse_args(arguments)

    def make_handler(root: Path, settings: Settings, feed: Feed) -> IndexFiles:
        geometry = found_geometry(root, settings.index_geometry)
        folder = IndexWriter(root, geometry, run_dir(root) / f"{INDEX_WORKER}.new")
        return IndexFiles(root, folder, feed, settings.index_tags_enable)

    pace = TurnPace(batch_bytes=TURN_BYTES, idle_s=IDLE_S, idle_bytes=TURN_BYTES)
    return run_worker(
        options, WorkerJob(INDEX_WORKER, "keelog-index", make_handler, index_pace, pace=pace)
    )


if __name__ == "__main__":
    leave(main())
