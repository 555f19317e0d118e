"""Index files from spilled keys: which keys go into which file, and one file written at a time."""

import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keelog.pipeline.errors import StoreUnreadable
from keelog.pipeline.jobs.rebuild.key_spill import (
    KeySlice,
    OpenKeys,
    SpilledKeys,
    key_slices,
    open_keys,
    read_keys,
)
from keelog.pipeline.jobs.rebuild.object_folder import ObjectFolder, OutFile
from keelog.pipeline.jobs.rebuild.unit_files import whole_file
from node.runtime import disk
from protocol.derived.file_layouts import INDEX_HEADER, INDEX_SLOT, IndexGeometry, IndexHeader
from protocol.derived.index_build import EMPTY_HEADER, plan_entries, rolled_header
from protocol.names import next_index_file_name

_SLOTS_DTYPE = np.dtype(">i4")
_CHUNK_BYTES = 1 << 16
_COPY_BYTES = 1 << 20


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
    return header
