"""Index files from spilled keys: which keys go into which file, and one file written at a time."""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from node.store import disk
from pipeline.jobs.key_spill import KeySlice, key_slices, read_keys
from protocol.index_build import EMPTY_HEADER, plan_entries, rolled_header
from protocol.index_entry import (
    INDEX_HEADER,
    INDEX_SLOT,
    IndexGeometry,
    IndexHeader,
)
from protocol.names import next_index_file_name

_SLOTS_DTYPE = np.dtype(">i4")
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class IndexFilePlan:
    """One file: `header` as it is before the first key, `keys` where its keys are.

    It is filled in the folder `temporary`, on the same file system.
    """

    path: str
    temporary: str
    geometry: IndexGeometry
    header: IndexHeader
    keys: tuple[KeySlice, ...]
    syncs: bool


def plan_index_files(
    folder: Path,
    temporary: Path,
    geometry: IndexGeometry,
    spilled: Sequence[tuple[str, int]],
    syncs: bool,
) -> list[IndexFilePlan]:
    """The files that the index worker makes of these keys, by its rules for rolling and names.

    `spilled` are (path, count) of each range, in log order. Raises OSError.
    """
    total, room = sum(count for _, count in spilled), geometry.index_num - 1
    plans: list[IndexFilePlan] = []
    name, header = None, EMPTY_HEADER
    for start in range(0, total, room):
        stop = min(start + room, total)
        pieces = key_slices(spilled, start, stop)
        first, last = pieces[0], pieces[-1]
        name = next_index_file_name(_key(first.path, first.start)[1], name)
        path = str(folder / name)
        plans.append(IndexFilePlan(path, str(temporary), geometry, header, pieces, syncs))
        # The next file begins with what the last key of this one leaves in its header.
        offset, time = _key(last.path, last.stop - 1)
        header = rolled_header(
            EMPTY_HEADER._replace(end_timestamp=time, end_physical_offset=offset)
        )
    return plans


def _key(path: str, number: int) -> tuple[int, int]:
    """Log offset and store time of one spilled key."""
    batch = next(read_keys([KeySlice(path, number, number + 1)]))
    return int(batch.physical_offset[0]), int(batch.store_timestamp[0])


def write_index_file(plan: IndexFilePlan) -> int:
    """Makes the file, and gives it its name when it is whole; answers how many entries it has.

    Entries go straight to the file: of a full one of 420 MB only the slots, 20 MB, and a million
    keys are in memory.
    """
    path = Path(plan.path)
    temporary = Path(plan.temporary) / uuid.uuid4().hex
    descriptor = disk.open_file(temporary, create=True, empty=True)
    try:
        disk.set_length(descriptor, plan.geometry.file_bytes)
        header = _write_entries(descriptor, plan)
        disk.write_all(descriptor, INDEX_HEADER.pack(header), 0)
        if plan.syncs:
            disk.sync_with_length(descriptor)
        disk.rename(temporary, path)
    finally:
        os.close(descriptor)
        disk.unlink(temporary, missing_ok=True)
    return header.index_count - 1


def _write_entries(descriptor: int, plan: IndexFilePlan) -> IndexHeader:
    """Writes entries and slots; answers the header as it is behind them."""
    header, geometry = plan.header, plan.geometry
    slots = np.zeros(geometry.slot_count, _SLOTS_DTYPE)
    for batch in read_keys(plan.keys):
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
