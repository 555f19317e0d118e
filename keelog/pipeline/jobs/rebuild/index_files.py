"""Index files from spilled keys: which keys go into which file, and one file written at a time.

Each range of the log leaves its keys in a file, in log order. Which entry of which index file a key
becomes depends on how many keys come before it, and that is known when all ranges have been read.
"""

import os
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from keelog.pipeline.errors import StoreUnreadable
from keelog.pipeline.jobs.rebuild.folder import ObjectFolder, OutFile
from keelog.pipeline.jobs.rebuild.units import whole_file
from node.runtime import disk
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.derived.file_layouts import (
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
    KeyBatch,
)
from protocol.derived.index_build import EMPTY_HEADER, put_keys, rolled_header
from protocol.names import next_index_file_name

KEY_DTYPE = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
WRITE_KEYS = 1 << 16
READ_KEYS = 1 << 20
"""So many keys of an index file are entered at once: 20 MB, and about 100 MB to sort them."""
OpenKeys = Callable[[str], IO[bytes]]
"""Opens a spilled file by its path."""
_SLOTS_DTYPE = np.dtype(">i4")
_CHUNK_BYTES = 1 << 16
_COPY_BYTES = 1 << 20


class SpilledKeys(NamedTuple):
    """A range's keys: where they are, and how many."""

    path: str
    keys: int


class KeySlice(NamedTuple):
    """Keys [`start`, `stop`) of a spilled file."""

    path: str
    start: int
    stop: int


class KeySpill(ABC):
    """Writes one range's keys. They are there, whole, when `keep` has been called."""

    def __init__(self, with_tags: bool) -> None:
        self._with_tags = with_tags
        self._waiting: list[NDArray[Any]] = []
        self._written = 0
        self.count = 0

    def add(self, requests: DispatchRequests) -> None:
        """Takes the keys of a window's records, as the index worker enters them."""
        keys = key_batch(requests, self._with_tags)
        rows = np.empty(len(keys.key_hash), KEY_DTYPE)
        for name, column in zip(KeyBatch._fields, keys, strict=True):
            rows[name] = column
        self._waiting.append(rows)
        self.count += len(rows)
        if self.count - self._written >= WRITE_KEYS:
            self._write()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._put(rows.view(np.uint8).data, self._written * rows.itemsize)
            self._written += len(rows)

    def keep(self) -> None:
        """All keys are there: the file gets its name."""
        self._write()
        self._finish()

    @abstractmethod
    def _put(self, data: memoryview, position: int) -> None:
        """Writes bytes; positions follow each other."""

    @abstractmethod
    def _finish(self) -> None:
        """Nothing more will come."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; one that was not kept counts for nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class FileKeySpill(KeySpill):
    """Into a file, which appears under its name whole."""

    def __init__(self, path: Path, with_tags: bool, syncs: bool = False) -> None:
        super().__init__(with_tags)
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        self._syncs = syncs
        self._descriptor = disk.open_file(self._temporary, create=True, empty=True)

    def _put(self, data: memoryview, position: int) -> None:
        disk.write_all(self._descriptor, data, position)

    def _finish(self) -> None:
        if self._syncs:
            disk.sync_with_length(self._descriptor)
        disk.rename(self._temporary, self._path)

    def close(self) -> None:
        """Closes the file; one that was not kept is removed."""
        os.close(self._descriptor)
        disk.unlink(self._temporary, missing_ok=True)


class StreamKeySpill(KeySpill):
    """Into an object, which is there when its stream is closed."""

    def __init__(self, stream: IO[bytes], with_tags: bool) -> None:
        super().__init__(with_tags)
        self._stream = stream

    def _put(self, data: memoryview, _position: int) -> None:
        self._stream.write(data)

    def _finish(self) -> None:
        self._stream.close()

    def close(self) -> None:
        """What was not kept the attempt's folder takes along."""
        self._stream.close()


def key_slices(spilled: Sequence[SpilledKeys], start: int, stop: int) -> tuple[KeySlice, ...]:
    """The pieces that hold the keys [`start`, `stop`) of all that are `spilled`, in order."""
    pieces: list[KeySlice] = []
    before = 0
    for path, count in spilled:
        low, high = max(start - before, 0), min(stop - before, count)
        if low < high:
            pieces.append(KeySlice(path, low, high))
        before += count
    return tuple(pieces)


def open_keys(path: str) -> IO[bytes]:
    """A spilled file on a file system. Raises OSError."""
    return Path(path).open("rb")


def read_keys(pieces: Sequence[KeySlice], open_file: OpenKeys = open_keys) -> Iterator[KeyBatch]:
    """The keys of the pieces, in order, at most READ_KEYS at once. Raises OSError."""
    for path, start, stop in pieces:
        with open_file(path) as file:
            for first in range(start, stop, READ_KEYS):
                file.seek(first * KEY_DTYPE.itemsize)
                count = min(READ_KEYS, stop - first)
                rows = np.frombuffer(file.read(count * KEY_DTYPE.itemsize), KEY_DTYPE)
                if len(rows) != count:
                    raise OSError(f"{path} ends early")
                yield KeyBatch(
                    rows["key_hash"],
                    rows["physical_offset"].astype(np.int64),
                    rows["store_timestamp"].astype(np.int64),
                )


@dataclass(frozen=True, slots=True)
class IndexFilePlan:
    """One file: `header` as it is before the first key, `keys` where its keys are.

    It is filled in the folder `temporary`, on the same file system. In an object store `path` and
    `keys` are below the rebuild's folder, and it is filled in a folder of the task's own.
    """

    path: str
    temporary: str
    geometry: IndexGeometry
    header: IndexHeader
    keys: tuple[KeySlice, ...]
    syncs: bool


def plan_index_files(
    folder: str,
    temporary: str,
    geometry: IndexGeometry,
    spilled: Sequence[SpilledKeys],
    syncs: bool = False,
    open_file: OpenKeys = open_keys,
) -> list[IndexFilePlan]:
    """The files that the index worker makes of these keys, by its rules for rolling and names.

    `spilled` are the ranges' keys in log order. Raises OSError.
    """
    total, room = sum(one.keys for one in spilled), geometry.index_num - 1
    plans: list[IndexFilePlan] = []
    name, header = None, EMPTY_HEADER
    for start in range(0, total, room):
        stop = min(start + room, total)
        pieces = key_slices(spilled, start, stop)
        first, last = pieces[0], pieces[-1]
        name = next_index_file_name(_key(first.path, first.start, open_file)[1], name)
        path = f"{folder}/{name}"
        plans.append(IndexFilePlan(path, temporary, geometry, header, pieces, syncs))
        # The next file begins with what the last key of this one leaves in its header.
        offset, time = _key(last.path, last.stop - 1, open_file)
        header = rolled_header(
            EMPTY_HEADER._replace(end_timestamp=time, end_physical_offset=offset)
        )
    return plans


def _key(path: str, number: int, open_file: OpenKeys) -> tuple[int, int]:
    """Log offset and store time of one spilled key."""
    batch = next(read_keys([KeySlice(path, number, number + 1)], open_file))
    return int(batch.physical_offset[0]), int(batch.store_timestamp[0])


def write_index_file(plan: IndexFilePlan) -> int:
    """Makes the file, and gives it its name when it is whole; returns how many entries it has.

    Entries go straight to the file: of a full one of 420 MB only the slots, 20 MB, and a million
    keys are in memory.
    """
    temporary = Path(plan.temporary) / uuid.uuid4().hex
    with whole_file(temporary, Path(plan.path), plan.syncs) as descriptor:
        return _fill(descriptor, plan, open_keys).index_count - 1


def write_index_object(folder: ObjectFolder, plan: IndexFilePlan) -> tuple[int, OutFile]:
    """The same in an object store, by a file of this task's: the header is known last.

    Raises StoreUnreadable, JobFailed.
    """
    out = folder.open()
    with naming_spill(folder), tempfile.TemporaryFile() as scratch:
        header = _fill(scratch.fileno(), plan, out.input)
        scratch.seek(0)
        chunks = iter(lambda: scratch.read(_COPY_BYTES), b"")
        return header.index_count - 1, out.write(plan.path, chunks)


@contextmanager
def naming_spill(folder: ObjectFolder) -> Iterator[None]:
    """Errors about keys in an object store, or of the file that they are put into, get a name."""
    try:
        yield
    except OSError as error:
        raise StoreUnreadable(
            f"index files for {folder.shown}: {error}",
            "room in the executors' TMPDIR for one index file; credentials",
        ) from None


def _fill(descriptor: int, plan: IndexFilePlan, open_file: OpenKeys) -> IndexHeader:
    """Writes the whole of an empty file; returns its header."""
    disk.set_length(descriptor, plan.geometry.file_bytes)
    header = _write_entries(descriptor, plan, open_file)
    disk.write_all(descriptor, INDEX_HEADER.pack(header), 0)
    return header


def _write_entries(descriptor: int, plan: IndexFilePlan, open_file: OpenKeys) -> IndexHeader:
    """Writes entries and slots; returns the header that belongs to them."""
    header, geometry = plan.header, plan.geometry
    slots = np.zeros(geometry.slot_count, _SLOTS_DTYPE)
    for batch in read_keys(plan.keys, open_file):
        planned = put_keys(header, geometry, slots, batch)
        assert planned.taken == len(batch.key_hash), "a file was planned with too many keys"
        position = geometry.entry_position(planned.first_entry)
        disk.write_all(descriptor, planned.entries.view(np.uint8).data, position)
        header = planned.header
    table = slots.view(np.uint8)
    for start in range(0, len(table), _CHUNK_BYTES):
        chunk = table[start : start + _CHUNK_BYTES]
        if chunk.any():  # a hole stays one
            disk.write_all(descriptor, chunk.data, geometry.slot_position(0) + start)
    assert INDEX_SLOT.size == _SLOTS_DTYPE.itemsize
    return header
