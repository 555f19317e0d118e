"""Reads entries of index files by `pread`: the table `index`."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from keelog.pipeline.read.arrays import arrow_schema, numbers, times
from keelog.pipeline.read.damage_rows import on_loss
from keelog.pipeline.stores.opening import task_files
from keelog.pipeline.task_spec import IndexPart, IndexSlice
from node.runtime.store_paths import path_in
from node.store.file_cache import FileVanished, OpenFiles
from node.store.log.reader import Damage, LogReader, columns_past_damage
from node.store.queues import Units
from protocol.derived.file_layouts import INDEX_ENTRY
from protocol.derived.removed import Removed
from protocol.record.columns import Bools, Ints

BATCH_ENTRIES = 65_536


def read_index(part: IndexPart) -> Iterator[pa.RecordBatch]:
    """Batches of entries, in the order of files and numbers.

    Raises DataLoss, and what OpenFile raises.
    """
    files = task_files(part.task.store)
    try:
        log = None if part.log is None else part.log.open(files)
        for found in part.slices:
            for start in range(found.start, found.end, BATCH_ENTRIES):
                end = min(start + BATCH_ENTRIES, found.end)
                try:
                    entries = _entries(part, found, start, end, files)
                except FileVanished:
                    on_loss(part.task, f"{found.path} was deleted after the read was planned")
                    break
                numbered = np.arange(start, start + len(entries))
                if part.log is not None and log is not None:
                    shown = _are_shown(entries, log, part.log.removed)
                    numbered, entries = numbered[shown], entries[shown]
                yield _batch(part, found, numbered, entries)
    finally:
        files.close()


def _entries(part: IndexPart, found: IndexSlice, start: int, end: int, files: OpenFiles) -> Units:
    if found.data is not None:
        return INDEX_ENTRY.view(found.data)[start - found.start : end - found.start]
    geometry = found.geometry
    file = files.get(path_in(part.task.store.root, found.path), geometry.file_bytes)
    data = file.read(geometry.entry_position(start), (end - start) * INDEX_ENTRY.size)
    return INDEX_ENTRY.view(data)


def _are_shown(entries: Units, log: LogReader, removed: Removed) -> Bools:
    """Marks the entries of messages that are not removed. An entry names no topic: the log does."""
    offsets = entries["physical_offset"].astype(np.int64)
    asked = offsets[(offsets >= log.min_offset) & (offsets < min(removed.end, log.end))]
    hidden: list[Ints] = []
    if len(asked):
        for item in columns_past_damage(log, int(asked.min()), int(asked.max()) + 1):
            if not isinstance(item, Damage):
                shown = removed.visible(item).physical_offset
                hidden.append(np.setdiff1d(item.physical_offset, shown, assume_unique=True))
    if not hidden:
        return np.ones(len(entries), np.bool_)
    return ~np.isin(offsets, np.concatenate(hidden))


def _batch(part: IndexPart, found: IndexSlice, numbered: Ints, entries: Units) -> pa.RecordBatch:
    count = len(entries)
    seconds = entries["time_diff_s"].astype(np.int64)
    hashes = entries["key_hash"].astype(np.int64)
    arrays = {
        "file": pa.repeat(found.name, count),
        "entry": numbers(numbered, "int32"),
        "slot": numbers(hashes % found.geometry.slot_count, "int32"),
        "keyHash": numbers(hashes, "int32"),
        "physicalOffset": numbers(entries["physical_offset"], "int64"),
        "storeTimestamp": times(found.begin_timestamp + seconds * 1000),
        "prevEntry": numbers(entries["prev"], "int32"),
        "node": pa.repeat(part.task.store.node, count),
    }
    schema = arrow_schema(part.task.columns)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
