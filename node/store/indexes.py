"""Reads the IndexFile files, in `index/`.

`IndexFile` has header, slots and entries of one file, and the walk along a key's chain. Listing the
folder opens nothing: the open of a FIFO would wait for its writer. `IndexReader` looks up keys in
all files: as RocketMQ does, or every entry, page by page.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime.store_paths import MOVE_HINT, FolderEntry, no_file
from node.store.file_cache import FileVanished, OpenFile, OpenFiles, list_entries, refuse
from protocol.derived.file_layouts import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
    key_hash,
)
from protocol.derived.index_build import IndexImage, next_entry
from protocol.errors import StoreDamaged
from protocol.names import DEFAULT_INDEX_NUM, DEFAULT_SLOT_COUNT, INDEX_DIR, is_index_file_name

MAX_MESSAGES_BATCH = 64
"""maxMsgsNumBatch: the cap of one query by key."""
END_OF_TIME = 2**63 - 1
SETTLED_NS = 2_000_000_000
"""After this time without a change a folder's next change gets another mtime."""
CLOCK_SLACK_MS = 60_000
"""How far a store time may lie outside its file's range: a clock may have been set back."""

_SLOT = struct.Struct(">i").unpack_from
_ENTRY = struct.Struct(">iqii").unpack_from
_ENTRIES_AT_ONCE = 4096
_ENTRIES_COMPARED = 16
"""Of a file whose geometry is in question."""


class IndexFile:
    """One index file: mapped, in memory, or read by `pread` each time.

    `trusts_slots`: a slot may name an entry that the header does not count yet, as in a live file:
    its worker writes entries first, then slots, and the header last. `is_image`: it is only in
    memory.
    """

    def __init__(
        self,
        name: str,
        geometry: IndexGeometry,
        data: memoryview | OpenFile,
        trusts_slots: bool = False,
        is_image: bool = False,
    ) -> None:
        self.name = name
        self.geometry = geometry
        self.is_image = is_image
        self._data = data
        self._trusts_slots = trusts_slots
        self._slots_at = geometry.slot_position(0)
        self._entries_at = geometry.entry_position(0)

    @classmethod
    def of_image(cls, name: str, image: IndexImage) -> "IndexFile":
        return cls(name, image.geometry, image.data.data, is_image=True)

    def read(self, position: int, count: int) -> memoryview | bytes:
        """Raw bytes of the file. Raises StoreDamaged, FileVanished."""
        if isinstance(self._data, OpenFile):
            return self._data.read(position, count)
        return self._data[position : position + count]

    @property
    def stated_header(self) -> IndexHeader:
        """The header as it is now, unchecked."""
        return INDEX_HEADER.read(self.read(0, INDEX_HEADER.size))

    @property
    def header(self) -> IndexHeader:
        """The header as it is now, with `index_count` limited to what the file can hold, from 1."""
        header = self.stated_header
        return header._replace(index_count=min(next_entry(header), self.geometry.index_num))

    def slots(self) -> NDArray[Any]:
        count = self.geometry.slot_count
        table = INDEX_SLOT.view(self.read(self._slots_at, INDEX_SLOT.size * count), 0, count)
        return table["newest_entry"]

    def entries(self, start: int = 1, end: int | None = None) -> NDArray[Any]:
        """The entries [start, end); without `end` up to the last one in use."""
        count = max((self.header.index_count if end is None else end) - start, 0)
        position = self._entries_at + INDEX_ENTRY.size * start
        return INDEX_ENTRY.view(self.read(position, INDEX_ENTRY.size * count), 0, count)

    def newest(self, key_hash: int) -> int:
        """The number of the newest entry of the hash's bucket; 0 when there is none."""
        position = self._slots_at + INDEX_SLOT.size * (key_hash % self.geometry.slot_count)
        number = int(_SLOT(self.read(position, INDEX_SLOT.size))[0])
        limit = self.geometry.index_num - 1 if self._trusts_slots else self.header.index_count
        return number if 0 < number <= min(limit, self.geometry.index_num - 1) else 0

    def select(self, found: list[int], key_hash: int, count_max: int, begin: int, end: int) -> None:
        """Adds log offsets to `found`, as IndexFile#selectPhyOffset does, newest first."""
        header = self.header
        number = self.newest(key_hash)
        if number == 0 or header.index_count <= 1:
            return
        while len(found) < count_max:
            hash_, offset, diff, prev = self._entry(number)
            if diff < 0:
                return
            time = header.begin_timestamp + diff * 1000
            if hash_ == key_hash and begin <= time <= end:
                found.append(offset)
            # A chain leads to older entries; any other link is damage, and may lead in a circle.
            if not 0 < prev < number or time < begin:
                return
            number = prev

    def chain(self, key_hash: int, start: int | None = None) -> Iterator[tuple[int, int]]:
        """Yields number and log offset of all entries of a hash, newest first, of any time; from
        entry `start` on."""
        number = self.newest(key_hash) if start is None else start
        while 0 < number < self.geometry.index_num:
            hash_, offset, _, prev = self._entry(number)
            if hash_ == key_hash:
                yield number, offset
            if prev >= number:
                return
            number = prev

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        position = self._entries_at + INDEX_ENTRY.size * number
        entry: tuple[int, int, int, int] = _ENTRY(self.read(position, INDEX_ENTRY.size))
        return entry


def open_index_file(
    path: Path, geometry: IndexGeometry, files: OpenFiles, trusts_slots: bool = False
) -> IndexFile:
    """A file on disk, its length checked; mapped where `files` allows that.

    Raises StoreDamaged, StorePermission.
    """
    file = files.get(path, geometry.file_bytes)
    if not files.maps:
        file.check()
    return IndexFile(path.name, geometry, file.view() if files.maps else file, trusts_slots)


def readable_end(file: IndexFile, log_end: int) -> int:
    """The end of the entries of records below `log_end`; a live index may be ahead of that."""
    end = file.header.index_count
    while end > 1:
        start = max(1, end - _ENTRIES_AT_ONCE)
        readable = file.entries(start, end)["physical_offset"] < log_end
        if readable.any():
            return end - int(readable[::-1].argmax())
        end = start
    return end


class IndexFolder:
    """The files in `index/`; their names are the times when they were made."""

    def __init__(self, root: Path, settings_geometry: IndexGeometry, files: OpenFiles) -> None:
        self.path = root / INDEX_DIR
        self._folder = str(self.path)
        self._files = files
        self._likely = [settings_geometry, IndexGeometry(DEFAULT_SLOT_COUNT, DEFAULT_INDEX_NUM)]
        self._known: dict[str, IndexGeometry] = {}
        self._paths: dict[str, Path] = {}
        self._seen: tuple[int, int] | None = None
        self._listed: list[str] = []

    @property
    def geometry(self) -> IndexGeometry:
        """The geometry of the files; without files that of the settings."""
        return next(iter(self._known.values()), self._likely[0])

    def names(self) -> list[str]:
        """The names of the files, oldest first. Skips other names, as a broker does.

        Skips empty files too: a power loss may keep a name and lose the bytes.
        """
        return [entry.name for entry in list_index_files(self.path) if entry.size]

    def check_readable(self) -> None:
        """Reads every file once by `pread`; call it before reading all of them through maps.

        Raises StoreDamaged where the disk cannot read.
        """
        for name in self.names():
            path = self.path / name
            self._files.get(path, path.stat().st_size).check_readable()

    def open(self, names: list[str], trusts_slots: bool = False) -> list[IndexFile]:
        """Opens the files with these names. Raises StoreDamaged, StorePermission."""
        unclear = [name for name in reversed(names) if name not in self._known]
        while unclear:
            left = [name for name in unclear if not self._find_geometry(name)]
            if len(left) == len(unclear):
                self._known[left[0]] = self._geometry_by_length(left[0])
            unclear = [name for name in left if name not in self._known]
        if self._paths.keys() != set(names):
            self._paths = {name: self.path / name for name in names}
        return [
            open_index_file(self._paths[name], self._known[name], self._files, trusts_slots)
            for name in names
        ]

    def live_names(self) -> list[str]:
        """As `names`, for a running store: lists the folder when its mtime has changed.

        Two changes within one tick of the file system's clock have one mtime, so a folder that has
        changed lately is listed each time.
        """
        try:
            status = os.stat(self._folder)  # noqa: PTH116  (a third of Path.stat)
        except OSError:
            return self.names()
        mark = status.st_ino, status.st_mtime_ns
        if mark != self._seen:
            is_settled = time.time_ns() - status.st_mtime_ns > SETTLED_NS
            self._listed = self.names()
            self._seen = mark if is_settled else None
            # A file may have been removed, and made anew under the same name.
            for path in self._paths.values():
                self._files.forget(path)
        return self._listed

    def live_files(self) -> list[IndexFile]:
        """The files, opened, oldest first. Raises StoreDamaged, StorePermission."""
        while True:
            try:
                return self.open(self.live_names(), trusts_slots=True)
            except FileVanished as gone:
                # The worker deletes expired files one by one, perhaps faster than they are opened.
                self._seen = None
                if Path(gone.where).name in self.names():
                    raise

    def _find_geometry(self, name: str) -> bool:
        """Finds the sizes of a file, in it or in another one of its length; True if it did."""
        path = self.path / name
        try:
            size = path.stat().st_size
        except OSError as error:
            refuse(path, error)
        same = [known for known in self._known.values() if known.file_bytes == size]
        geometry = find_geometry(path, size, [*same, *self._likely], self._files)
        if geometry is None and same:
            geometry = same[0]
        if geometry is not None:
            self._known[name] = geometry
        return geometry is not None

    def _geometry_by_length(self, name: str) -> IndexGeometry:
        """Likely sizes that make the length of a file whose header and entries show none."""
        path = self.path / name
        size = path.stat().st_size
        for geometry in self._likely:
            if geometry.file_bytes == size:
                return geometry
        raise StoreDamaged(
            str(path),
            0,
            f"{size} bytes are no index file, or none whose sizes can be told",
            "name them with -X store.max_hash_slot_num=… -X store.max_index_num=…,"
            " or make it anew with: keelog store rebuild --index",
        )


class Candidate(NamedTuple):
    """An entry with the right hash; only its record shows whether it has the right key."""

    file: str
    entry: int
    physical_offset: int


class IndexReader:
    """The index of a store. `files` returns its files, oldest first; each look-up calls it.

    It raises StoreDamaged, StorePermission.
    """

    def __init__(self, files: Callable[[], list[IndexFile]]) -> None:
        self.files = files

    def query(
        self,
        topic: str,
        key: str,
        max_num: int = MAX_MESSAGES_BATCH,
        begin: int = 0,
        end: int = END_OF_TIME,
        cap: int = MAX_MESSAGES_BATCH,
    ) -> list[int]:
        """Log offsets as RocketMQ's `queryOffset` returns them: by hash alone, newest first.

        `begin` and `end` are store times in ms, inclusive, compared as the index stores them: in
        seconds. `cap` is RocketMQ's maxMsgsNumBatch.
        """
        max_num = min(max_num, cap)
        wanted = key_hash(topic, key)
        found: list[int] = []
        for file in reversed(self.files()):
            header = file.header
            if begin <= header.end_timestamp and end >= header.begin_timestamp:
                file.select(found, wanted, max_num, begin, end)
            if header.begin_timestamp < begin or len(found) >= max_num:
                break
        return found

    def candidates(
        self,
        topic: str,
        key: str,
        begin: int = 0,
        end: int = END_OF_TIME,
        after: Candidate | None = None,
    ) -> Iterator[Candidate]:
        """Yields every entry of the key's hash, newest first, without a cap; starts after `after`.

        Skips files whose store times lie outside [`begin`, `end`]. The caller checks the time of
        each record: an entry holds it in seconds only.
        """
        wanted, is_any_time = key_hash(topic, key), begin <= 0 and end >= END_OF_TIME
        for file in reversed(self.files()):
            if after is not None and file.name > after.file:
                continue
            if not is_any_time:
                header = file.stated_header
                is_older = header.end_timestamp + CLOCK_SLACK_MS < begin
                if is_older or header.begin_timestamp - CLOCK_SLACK_MS > end:
                    continue
            start = after.entry if after is not None and file.name == after.file else None
            for number, offset in file.chain(wanted, start):
                if number != start:
                    yield Candidate(file.name, number, offset)


def list_index_names(folder: Path) -> list[FolderEntry]:
    """All entries with the name of an index file, oldest first; none without the folder.

    Raises StorePermission.
    """
    return [entry for entry in list_entries(folder) if is_index_file_name(entry.name)]


def list_index_files(folder: Path) -> list[FolderEntry]:
    """The entries that are files. Raises StorePermission."""
    return [entry for entry in list_index_names(folder) if entry.is_file]


def check_index_names(folder: Path) -> list[FolderEntry]:
    """The files, for their worker. Raises StorePermission, StoreDamaged for any other entry."""
    found = list_index_names(folder)
    for entry in found:
        if not entry.is_file:
            raise StoreDamaged(str(entry.path), 0, no_file(entry.path), MOVE_HINT)
    return found


def find_geometry(
    path: Path, file_bytes: int, likely: list[IndexGeometry], files: OpenFiles
) -> IndexGeometry | None:
    """The numbers of slots and entries of a file of this length; None if nothing shows them.

    The length alone proves nothing: the first and last entries must be as the header says, and the
    last one must be the newest of its bucket. An empty file gets the first likely sizes that make
    its length.
    """
    fitting = [geometry for geometry in likely if geometry.file_bytes == file_bytes]
    body = file_bytes - INDEX_HEADER.size
    if body <= 0 or body % INDEX_SLOT.size:
        return None
    file = files.get(path, file_bytes)
    header = INDEX_HEADER.read(file.read(0, INDEX_HEADER.size))
    if next_entry(header) <= 1:
        return fitting[0] if fitting else None
    # One after the other: a first record at log offset 0 has millions of candidates.
    for geometry in fitting:
        if _agrees(file, header, geometry):
            return geometry
    best, most = None, -1
    compared = min(_ENTRIES_COMPARED, header.index_count - 1)
    for geometry in _candidates(file, files.maps, header, body):
        if _agrees(file, header, geometry):
            found = _count_in_slots(file, header, geometry, compared)
            if found == compared:
                return geometry
            if found > most:
                best, most = geometry, found
    return best  # some entries are damaged


def _candidates(
    file: OpenFile, maps: bool, header: IndexHeader, body: int
) -> Iterator[IndexGeometry]:
    """Yields geometries of that length whose last entry names the log offset of the header."""
    data = file.view() if maps else file.read(0, file.size)
    last_entry = INDEX_ENTRY.size * (header.index_count - 1)
    end_offset = header.end_physical_offset.to_bytes(8, "big", signed=True)
    raw = np.frombuffer(data, np.uint8)
    # Slot counts that leave whole entries: one residue modulo 5, as 20 bytes are 5 slots.
    first = (body // INDEX_SLOT.size) % 5 or 5
    slot_counts = np.arange(first, body // INDEX_SLOT.size, 5, dtype=np.int64)
    at = INDEX_HEADER.size + INDEX_SLOT.size * slot_counts + last_entry + 4
    slot_counts, at = slot_counts[at + 16 <= len(raw)], at[at + 16 <= len(raw)]
    fits = np.ones(len(at), np.bool_)
    for byte, value in reversed(list(enumerate(end_offset))):
        rows = np.flatnonzero(fits)
        fits[rows] = raw[at[rows] + byte] == value
    for slot_count in slot_counts[fits].tolist():
        yield IndexGeometry(slot_count, (body - INDEX_SLOT.size * slot_count) // INDEX_ENTRY.size)


def _agrees(file: OpenFile, header: IndexHeader, geometry: IndexGeometry) -> bool:
    count = header.index_count
    if geometry.slot_count < 1 or not 1 < count <= geometry.index_num:
        return False
    first, last = (
        INDEX_ENTRY.read(file.read(geometry.entry_position(number), INDEX_ENTRY.size))
        for number in (1, count - 1)
    )
    if first.physical_offset != header.begin_physical_offset or first.prev != 0:
        return False
    if last.physical_offset != header.end_physical_offset or last.key_hash < 0:
        return False
    position = geometry.slot_position(last.key_hash % geometry.slot_count)
    slot = INDEX_SLOT.read(file.read(position, INDEX_SLOT.size))
    return slot.newest_entry >= count - 1


def _count_in_slots(
    file: OpenFile, header: IndexHeader, geometry: IndexGeometry, count: int
) -> int:
    """To how many of the last `count` entries the slots lead: the very last may agree by chance."""
    start, found = header.index_count - count, 0
    raw = file.read(geometry.entry_position(start), INDEX_ENTRY.size * count)
    for number, (hashed, offset, _, prev) in enumerate(INDEX_ENTRY.view(raw).tolist(), start):
        position = geometry.slot_position(hashed % geometry.slot_count)
        slot = INDEX_SLOT.read(file.read(position, INDEX_SLOT.size))
        is_later = offset >= header.begin_physical_offset and 0 <= prev < number
        found += hashed >= 0 and is_later and slot.newest_entry >= number
    return found
