"""Index files from spilled keys: which keys go into which file, and one file written at a time.

Each range of the log leaves its keys in a file, in log order. Which entry of which index file a key
becomes depends on how many keys come before it, and that is known when all ranges have been read.
"""

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keelog.pipeline.errors import StoreUnreadable
from keelog.pipeline.jobs.rebuild_folder import ObjectFolder, OutFile
from keelog.pipeline.jobs.rebuild_units import whole_file
from node.runtime import disk
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.derived.file_layouts import (
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
    KeyBatch,
)
from protocol.derived.index_build import EMPTY_HEADER, plan_entries, rolled_header
from protocol.names import next_index_file_name

KEY_DTYPE = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
WRITE_KEYS = 1 << 16
READ_KEYS = 1 << 20
"""So many keys of an index file are entered at once: 20 MB, and about 100 MB to sort them."""
OpenKeys = Callable[[str], IO[bytes]]
"""Opens a spilled file by its path."""
Spilled = Sequence[tuple[str, int]]
"""The ranges' keys in log order: where they are, and how many."""
_SLOTS_DTYPE = np.dtype(">i4")
_CHUNK_BYTES = 1 << 16
_COPY_BYTES = 1 << 20


class KeySlice(NamedTuple):
    """Keys [`start`, `stop`) of a spilled file."""

    path: str
    start: int
    stop: int


class KeySpill:
    """Gathers one range's keys, and gives them to `put`: bytes, and where in the file they go."""

    def __init__(self, with_tags: bool, put: Callable[[memoryview, int], object]) -> None:
        self._with_tags = with_tags
        self._put = put
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
            self.flush()

    def flush(self) -> None:
        """Gives away what waits."""
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._put(rows.view(np.uint8).data, self._written * rows.itemsize)
            self._written += len(rows)


def key_slices(spilled: Spilled, start: int, stop: int) -> tuple[KeySlice, ...]:
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

    In an object store `path` and the paths of `keys` are below the rebuild's folder.
    """

    path: str
    geometry: IndexGeometry
    header: IndexHeader
    keys: tuple[KeySlice, ...]


def plan_index_files(
    folder: str, geometry: IndexGeometry, spilled: Spilled, open_file: OpenKeys = open_keys
) -> list[IndexFilePlan]:
    """The files that the index worker makes of these keys, by its rules for rolling and names.

    Raises OSError.
    """
    total, room = sum(count for _, count in spilled), geometry.index_num - 1
    plans: list[IndexFilePlan] = []
    name, header = None, EMPTY_HEADER
    for start in range(0, total, room):
        stop = min(start + room, total)
        pieces = key_slices(spilled, start, stop)
        first, last = pieces[0], pieces[-1]
        name = next_index_file_name(_key(first.path, first.start, open_file)[1], name)
        plans.append(IndexFilePlan(f"{folder}/{name}", geometry, header, pieces))
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


def write_index_file(folder: str, syncs: bool, plan: IndexFilePlan) -> int:
    """Makes the file, and gives it its name when it is whole; returns how many entries it has.

    It is filled in `folder`, on the same file system. Entries go straight to the file: of a full
    one of 420 MB only the slots, 20 MB, and a million keys are in memory.
    """
    temporary = Path(folder) / uuid.uuid4().hex
    with whole_file(temporary, Path(plan.path), syncs) as descriptor:
        return _fill(descriptor, plan, open_keys).index_count - 1


def write_index_object(folder: ObjectFolder, plan: IndexFilePlan) -> tuple[int, OutFile]:
    """The same in an object store, by a file of this task's: the header is known last.

    Raises StoreUnreadable, JobFailed.
    """
    with naming_spill(folder), tempfile.TemporaryFile() as scratch:
        header = _fill(scratch.fileno(), plan, folder.input)
        scratch.seek(0)
        chunks = iter(lambda: scratch.read(_COPY_BYTES), b"")
        return header.index_count - 1, folder.write(plan.path, chunks)


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
    """Writes the whole of an empty file, the header last; returns that."""
    disk.set_length(descriptor, plan.geometry.file_bytes)
    header, geometry = plan.header, plan.geometry
    slots = np.zeros(geometry.slot_count, _SLOTS_DTYPE)
    for batch in read_keys(plan.keys, open_file):
        planned = plan_entries(header, geometry, slots, batch)
        assert planned.taken == len(batch.key_hash), "a file was planned with too many keys"
        position = geometry.entry_position(planned.first_entry)
        disk.write_all(descriptor, planned.entries.view(np.uint8).data, position)
        slots[planned.slots] = planned.newest
        header = planned.header
    table = slots.view(np.uint8)
    for start in range(0, len(table), _CHUNK_BYTES):
        chunk = table[start : start + _CHUNK_BYTES]
        if chunk.any():  # a hole stays one
            disk.write_all(descriptor, chunk.data, geometry.slot_position(0) + start)
    assert INDEX_SLOT.size == _SLOTS_DTYPE.itemsize
    disk.write_all(descriptor, INDEX_HEADER.pack(header), 0)
    return header
