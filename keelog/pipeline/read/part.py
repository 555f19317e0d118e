"""What a task does: its part of the files, as batches of rows. Knows nothing of Spark.

A part of the log is read from its first record to its last, window by window, and entries of index
files by `pread`: the table `index`. The module `queues` reads by queues.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from keelog.pipeline.errors import naming_conditions
from keelog.pipeline.read.arrays import arrow_schema, numbers, times
from keelog.pipeline.read.message_rows import DamagedPlace, message_batches, on_damage, on_loss
from keelog.pipeline.read.queues import read_messages, read_units
from keelog.pipeline.stores.opening import task_files
from keelog.pipeline.task_spec import IndexPart, IndexSlice, LogPart, Part
from node.runtime.store_paths import path_in
from node.store.file_cache import FileVanished, OpenFiles
from node.store.log.reader import Bounds, Damage, LogReader, columns_past_damage
from node.store.queues import Units
from protocol.derived.file_layouts import INDEX_ENTRY
from protocol.derived.removed import Removed
from protocol.errors import StoreDamaged
from protocol.record.columns import Bools, Ints

WINDOW_BYTES = 4 << 20
"""Bytes of one read, and about those of one batch of rows."""
BATCH_ENTRIES = 65_536


def read_part(part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, none of the batches empty. Raises MqError."""
    with naming_conditions():
        if isinstance(part, LogPart):
            yield from read_log(part)
        elif isinstance(part, IndexPart):
            yield from read_index(part)
        else:
            yield from read_units(part) if part.log is None else read_messages(part)


def read_log(part: LogPart) -> Iterator[pa.RecordBatch]:
    """Batches of the part's records. Raises CorruptRecord, DataLoss, StoreDamaged.

    The segments are opened before the first one is read: retention does not cut a read short.
    """
    files = task_files(part.task.store)
    try:
        log = part.log.open(files)
        for start, end in _stretches(part, log):
            yield from _until_lost(part, log, start, end)
    finally:
        files.close()


def _stretches(part: LogPart, log: LogReader) -> list[tuple[int, int]]:
    """The part, cut at segments, without those that are gone."""
    stretches: list[tuple[int, int]] = []
    for segment in log.segments.segments:
        start, end = max(part.start, segment.start), min(part.end, segment.end)
        if start >= end:
            continue
        try:
            segment.file.check()
        except FileVanished:
            on_loss(
                part.task,
                f"{segment.path} was deleted after the read was planned: log offsets {start} to"
                f" {end - 1}",
            )
            continue
        stretches.append((start, end))
    return stretches


def _until_lost(part: LogPart, log: LogReader, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records of a stretch; what is left of it when its file goes away is a loss.

    A file that is open here stays readable, one that is read from elsewhere does not.
    """
    reached = start
    try:
        for batch, reached in _read_segment(part, log, start, end):  # noqa: B007
            yield batch
    except FileVanished as gone:
        on_loss(
            part.task,
            f"{gone.where} was deleted while it was read: log offsets {reached} to {end - 1}",
        )


def _read_segment(
    part: LogPart, log: LogReader, start: int, end: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches, and where each of them ends in the log."""
    task = part.task
    segment = log.segment_at(start)
    log.bounds = Bounds(segment.start, min(segment.end, part.log.end))
    ahead = min(end + WINDOW_BYTES, log.bounds.end)
    segment.file.expect(start - segment.start, ahead - segment.start)
    last_end = start
    for item in columns_past_damage(log, start, end, window_bytes=WINDOW_BYTES):
        if isinstance(item, Damage):
            offset = item.torn.position
            size = item.resumed_at - offset
            for row in on_damage(task, DamagedPlace(item.where, offset, size, item.torn.why)):
                yield row, item.resumed_at
            continue
        last_end = item.end
        shown = part.log.removed.visible(item)
        if len(shown):
            for batch in message_batches(task, shown):
                yield batch, last_end
    if log.stopped is not None and log.stopped.position < end:
        # Nothing up to the end of the segment proves itself.
        offset = log.stopped.position
        place = DamagedPlace(str(segment.path), offset, end - offset, log.stopped.why)
        for row in on_damage(task, place):
            yield row, end
    if last_end > end:
        raise StoreDamaged.worded(
            "KEELOG_STORE_DAMAGED",
            f"{segment.path}: the record that ends at {last_end} reaches over {end}, where the"
            " body of a message imitates a record",
            f"maxPartitionBytes={part.log.segment_bytes} without minPartitions, which cuts at"
            " segments alone",
        )
    log.bounds = Bounds(part.log.start, part.log.end)


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
