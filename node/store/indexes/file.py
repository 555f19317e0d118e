"""One index file: its header, slots and entries, and the walk along a key's chain."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.file_cache import OpenFile, OpenFiles
from protocol.derived.index_build import IndexImage, next_entry
from protocol.derived.index_entry import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
)

_SLOT = struct.Struct(">i").unpack_from
_ENTRY = struct.Struct(">iqii").unpack_from
_ENTRIES_AT_ONCE = 4096
_ENTRIES_COMPARED = 16
"""Of a file whose geometry is in question."""


class FoundEntry(NamedTuple):
    """An entry with the hash that was looked for."""

    number: int
    physical_offset: int
    prev: int


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
        """A file that is only in memory."""
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
        """The whole slot table."""
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

    def chain(self, key_hash: int, start: int | None = None) -> Iterator[FoundEntry]:
        """Yields all entries of a hash, newest first, from entry `start` on, of any time."""
        number = self.newest(key_hash) if start is None else start
        while 0 < number < self.geometry.index_num:
            hash_, offset, _, prev = self._entry(number)
            if hash_ == key_hash:
                yield FoundEntry(number, offset, prev)
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
    for number, (key_hash, offset, _, prev) in enumerate(INDEX_ENTRY.view(raw).tolist(), start):
        position = geometry.slot_position(key_hash % geometry.slot_count)
        slot = INDEX_SLOT.read(file.read(position, INDEX_SLOT.size))
        is_later = offset >= header.begin_physical_offset and 0 <= prev < number
        found += key_hash >= 0 and is_later and slot.newest_entry >= number
    return found
