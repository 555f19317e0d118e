"""The IndexFile files of a store as their one writer sees them: found, cut, written, synced."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from node.runtime.disk import sync_dir_if_there, write_all
from node.store.indexes import check_index_names, list_index_files
from protocol.derived.index_build import (
    IndexPut,
    fill_slots,
    next_entry,
    rolled_header,
    spans_of,
)
from protocol.derived.index_entry import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
)
from protocol.errors import BadRequest
from protocol.names import INDEX_DIR, next_index_file_name
from workers.sparse_file import Unsynced, make_file, nonzero_pieces, zero_from

_SLOT_DTYPE = np.dtype(">i4")
_CHUNK_ENTRIES = 1 << 16


@dataclass(slots=True)
class IndexState:
    """The file that takes the next key: its name, header, and slot table as on disk.

    What is planned and not written yet is in the table already.
    """

    name: str
    header: IndexHeader
    slots: NDArray[Any]
    is_made: bool


class IndexWriter:
    """All index files below one store. One thread writes; `sync` may run in another."""

    def __init__(self, root: Path, geometry: IndexGeometry, temp: Path) -> None:
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

    def header(self, name: str) -> IndexHeader:
        """A file's header as it is."""
        return INDEX_HEADER.read(os.pread(self._descriptor(name), INDEX_HEADER.size, 0))

    def entries(self, name: str, first: int, stop: int) -> NDArray[Any]:
        """The entries with numbers [first, stop)."""
        position = self.geometry.entry_position(first)
        size = (stop - first) * INDEX_ENTRY.size
        return INDEX_ENTRY.view(_read(self._descriptor(name), position, size))

    def slots(self, name: str) -> NDArray[Any]:
        """A copy of the slot table."""
        size = self.geometry.slot_count * INDEX_SLOT.size
        data = _read(self._descriptor(name), self.geometry.slot_position(0), size)
        return np.frombuffer(data, _SLOT_DTYPE).copy()

    # Cutting

    def drop_unfinished(self) -> None:
        """Removes files without a byte: a power loss can keep a name and lose the length."""
        for entry in list_index_files(self.root):
            if entry.size == 0:
                self.remove(entry.name)

    def open_last(self, name: str) -> IndexState:
        """A whole file, to go on writing."""
        header = self.header(name)
        return IndexState(
            name, header._replace(index_count=next_entry(header)), self.slots(name), True
        )

    def next_file(
        self, last_name: str | None, last_header: IndexHeader, store_timestamp: int
    ) -> IndexState:
        """The file after the last one, if there is one; it is made by its first `write`."""
        return IndexState(
            name=next_index_file_name(store_timestamp, last_name),
            header=rolled_header(last_header),
            slots=np.zeros(self.geometry.slot_count, _SLOT_DTYPE),
            is_made=False,
        )

    def kept_entries(self, name: str, limit: int) -> int:
        """How many entries may name records below log offset `limit`.

        Those are whole and in order; after them may be anything that a crash left, an entry
        of which only some bytes reached the disk, too: the last record must be looked at.
        """
        header = self.header(name)
        stop = min(next_entry(header), self.geometry.index_num)
        if header.end_physical_offset < limit:
            return stop - 1
        last = 0
        for first in range(1, stop, _CHUNK_ENTRIES):
            found = self.entries(name, first, min(first + _CHUNK_ENTRIES, stop))
            offsets = found["physical_offset"].astype(np.int64)
            good = (offsets < limit) & (offsets >= np.append(last, offsets[:-1]))
            good &= found.view(np.uint8).reshape(-1, INDEX_ENTRY.size).any(axis=1)
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
            fill_slots(table, first, self.entries(name, first, stop)["key_hash"])
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
        self._write_spans(descriptor, state.slots, spans_of(changed))
        zero_from(descriptor, self.geometry.entry_position(kept + 1), self.geometry.file_bytes)
        write_all(descriptor, INDEX_HEADER.pack(header), 0)
        self._unsynced.add(name)
        return state

    def is_whole(self, name: str, kept: int) -> bool:
        """Whether a file ends with its `kept`-th entry, and nothing is after it or points there.

        A power loss can keep entries and take others before them.
        """
        if next_entry(self.header(name)) != kept + 1 or int(self.slots(name).max()) > kept:
            return False
        start, stop = self.geometry.entry_position(kept + 1), self.geometry.file_bytes
        return next(nonzero_pieces(self._descriptor(name), start, stop), None) is None

    def remove(self, name: str) -> None:
        """Deletes a file."""
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

    def write(self, state: IndexState, put: IndexPut) -> None:
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
        write_all(descriptor, INDEX_HEADER.pack(put.header), 0)
        state.header = put.header
        self._unsynced.add(state.name)

    def _write_spans(
        self, descriptor: int, table: NDArray[Any], spans: list[tuple[int, int]]
    ) -> None:
        data = table.view(np.uint8).data
        origin, width = self.geometry.slot_position(0), INDEX_SLOT.size
        for start, stop in spans:
            write_all(descriptor, data[start * width : stop * width], origin + start * width)

    # Syncing

    def sync(self) -> None:
        """Makes durable all that was done before the call."""
        self._unsynced.sync()

    def close(self) -> None:
        """Closes the open file; syncs nothing."""
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


def _read(descriptor: int, position: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.pread(descriptor, size, position)
        if not part:
            break
        parts.append(part)
        position, size = position + len(part), size - len(part)
    return b"".join(parts)
