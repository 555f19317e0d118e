"""What a task does: its part of the files, as batches of rows. Knows nothing of Spark.

A part of the log is read from its first record to its last, window by window; units of queues, and
entries of index files, by ranges; messages that units lead to in the order of the log.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keelog.pipeline import task_spec as spec
from keelog.pipeline.errors import naming_conditions
from keelog.pipeline.read import message_rows
from keelog.pipeline.read.arrays import arrow_schema, numbers, times
from keelog.pipeline.read.message_rows import DamagedPlace, on_damage, on_loss
from keelog.pipeline.stores import access, planned_store
from node.runtime.store_paths import path_in
from node.store.file_cache import FileVanished, OpenFiles, Run
from node.store.log.reader import Bounds, Damage, LogReader, columns_past_damage
from node.store.queues import NO_UNITS, QueueFiles, Units, is_filler, open_queue_files
from protocol.derived.file_layouts import FILLER_SIZE, INDEX_ENTRY, QUEUE_UNIT, UNIT_BYTES
from protocol.derived.removed import Removed
from protocol.errors import StoreDamaged
from protocol.names import SCHEDULE_TOPIC
from protocol.record.codec import RECORD_BYTES_MIN, Record
from protocol.record.columns import Bools, Bytes, Ints, RecordColumns, gather_verified
from protocol.record.properties import TAGS

WINDOW_BYTES = 4 << 20
"""Bytes of one read, and about those of one batch of rows."""
BATCH_BYTES = 4 << 20
"""About how much is read for one batch of rows."""
BATCH_ROWS = 65_536
"""Of units, and of entries."""


def read_part(part: spec.Part) -> Iterator[pa.RecordBatch]:
    """The rows of a part, none of the batches empty. Raises MqError."""
    with naming_conditions(), closing(planned_store.task_files(part.task.store)) as files:
        if isinstance(part, spec.LogPart):
            yield from _read_log(part, files)
        elif isinstance(part, spec.IndexPart):
            yield from _read_index(part, files)
        elif part.log is None:
            yield from _read_units(part, files)
        else:
            yield from _read_messages(part, part.log.open(files), files)


def _table_batch(task: spec.Task, arrays: dict[str, pa.Array]) -> pa.RecordBatch:
    """The columns that are asked for; `arrays` has all of the table, but the node."""
    count = len(next(iter(arrays.values())))
    arrays["node"] = pa.repeat(task.store.node, count)
    schema = arrow_schema(task.columns)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _read_log(part: spec.LogPart, files: OpenFiles) -> Iterator[pa.RecordBatch]:
    """Batches of the part's records. Raises CorruptRecord, DataLoss, StoreDamaged.

    The segments are opened before the first one is read: retention does not cut a read short.
    """
    log = part.log.open(files)
    for start, end in _stretches(part, log):
        yield from _stretch(part, log, start, end)


def _stretches(part: spec.LogPart, log: LogReader) -> list[tuple[int, int]]:
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


def _stretch(part: spec.LogPart, log: LogReader, start: int, end: int) -> Iterator[pa.RecordBatch]:
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
    part: spec.LogPart, log: LogReader, start: int, end: int
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
            for batch in message_rows.message_batches(task, shown):
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


def _read_index(part: spec.IndexPart, files: OpenFiles) -> Iterator[pa.RecordBatch]:
    """Batches of entries, in the order of files and numbers. Raises DataLoss."""
    log = None if part.log is None else part.log.open(files)
    for found in part.slices:
        for start in range(found.start, found.end, BATCH_ROWS):
            end = min(start + BATCH_ROWS, found.end)
            try:
                entries = _entries(part, found, start, end, files)
            except FileVanished:
                on_loss(part.task, f"{found.path} was deleted after the read was planned")
                break
            numbered = np.arange(start, start + len(entries))
            if part.log is not None and log is not None:
                shown = _are_shown(entries, log, part.log.removed)
                numbered, entries = numbered[shown], entries[shown]
            yield _entry_batch(part, found, numbered, entries)


def _entries(
    part: spec.IndexPart, found: spec.IndexSlice, start: int, end: int, files: OpenFiles
) -> Units:
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


def _entry_batch(
    part: spec.IndexPart, found: spec.IndexSlice, numbered: Ints, entries: Units
) -> pa.RecordBatch:
    seconds = entries["time_diff_s"].astype(np.int64)
    hashes = entries["key_hash"].astype(np.int64)
    return _table_batch(
        part.task,
        {
            "file": pa.repeat(found.name, len(entries)),
            "entry": numbers(numbered, "int32"),
            "slot": numbers(hashes % found.geometry.slot_count, "int32"),
            "keyHash": numbers(hashes, "int32"),
            "physicalOffset": numbers(entries["physical_offset"], "int64"),
            "storeTimestamp": times(found.begin_timestamp + seconds * 1000),
            "prevEntry": numbers(entries["prev"], "int32"),
        },
    )


def _read_units(part: spec.QueuePart, files: OpenFiles) -> Iterator[pa.RecordBatch]:
    """Batches of the table `queues`. Raises DataLoss, and what QueueFiles raises."""
    for found in part.slices:
        units = _units_of(part, found, files)
        for start in range(0, len(units), BATCH_ROWS):
            rows = units[start : start + BATCH_ROWS]
            yield _unit_batch(part, found, found.start + start, rows)


def _unit_batch(
    part: spec.QueuePart, found: spec.QueueSlice, first: int, units: Units
) -> pa.RecordBatch:
    count = len(units)
    return _table_batch(
        part.task,
        {
            "topic": pa.repeat(found.topic, count),
            "queueId": pa.repeat(pa.scalar(found.queue_id, pa.int32()), count),
            "queueOffset": numbers(np.arange(first, first + count), "int64"),
            "physicalOffset": numbers(units["physical_offset"], "int64"),
            "storeSize": numbers(units["size"], "int32"),
            "tagsCode": numbers(units["tags_code"], "int64"),
        },
    )


def _read_messages(
    part: spec.QueuePart, log: LogReader, files: OpenFiles
) -> Iterator[pa.RecordBatch]:
    """Batches of the messages that the part's units lead to. Within a queue they come in its order.

    A filler lies before a queue's first message, where nothing is read, or marks one that was lost.
    Raises CorruptRecord, DataLoss, and what OpenFile raises.
    """
    wanted, broken = _wanted(part, log, files)
    for row in range(len(broken.place)):
        yield from on_damage(part.task, _damage(part, log, broken, row))
    wanted = _without_lost(part, log, wanted)
    for start, end in _batches(wanted, 0 if files.joins_pieces else files.gap_bytes):
        yield from _until_lost(part, log, wanted.take(slice(start, end)), files)


def _units_of(part: spec.QueuePart, found: spec.QueueSlice, files: OpenFiles) -> Units:
    """The units of a slice, from files and from the plan; fewer, or none, where they are lost."""
    stop = min(found.end, found.disk_end)
    on_disk = NO_UNITS
    if found.start < stop:
        try:
            queue = _queue_files(part, found, files)
            on_disk = queue.read(found.start, stop - found.start)
        except FileVanished:
            on_disk = NO_UNITS
        missing = stop - found.start - len(on_disk)
        if missing:
            on_loss(part.task, f"{found.folder}: files of {missing} queue units were deleted")
            return NO_UNITS
    derived = QUEUE_UNIT.view(found.derived) if found.derived else NO_UNITS
    return np.concatenate([on_disk, derived]) if len(derived) else on_disk


def _queue_files(part: spec.QueuePart, found: spec.QueueSlice, files: OpenFiles) -> QueueFiles:
    if part.task.store.way is access.Way.FILES:
        return open_queue_files(Path(found.folder), found.file_bytes, files)
    folder = path_in(part.task.store.root, found.folder)
    first, end = found.start * UNIT_BYTES, found.disk_end * UNIT_BYTES
    return spec.planned_queue_files(folder, found.file_bytes, first, end, files)


class _Wanted(NamedTuple):
    """The messages that units name, one row each; `place` is that of the queue's slice."""

    place: Ints
    number: Ints
    offset: Ints
    size: Ints
    tags_code: Ints

    def take(self, rows: Any) -> "_Wanted":
        return _Wanted(*(column[rows] for column in self))


def _wanted(part: spec.QueuePart, log: LogReader, files: OpenFiles) -> tuple[_Wanted, _Wanted]:
    """The messages to read, in the order of the log, and units that name none."""
    columns: list[_Wanted] = []
    for place, found in enumerate(part.slices):
        units = _units_of(part, found, files)
        rows = np.ones(len(units), np.bool_)
        # The units of delayed messages hold delivery times, no hashes.
        if part.tags is not None and found.topic != SCHEDULE_TOPIC:
            rows = part.tags.takes_units(units) | is_filler(units)
        kept = np.flatnonzero(rows)
        columns.append(
            _Wanted(
                np.full(len(kept), place, np.int64),
                kept + found.start,
                *(units[name][kept].astype(np.int64) for name in QUEUE_UNIT.wires),
            )
        )
    every = _Wanted(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    step = log.segment_bytes
    end = every.offset + every.size
    good = (every.offset >= log.min_offset) & (every.size >= RECORD_BYTES_MIN) & (end <= log.end)
    good &= every.offset // step == (end - 1) // step
    order = np.argsort(every.offset[good], kind="stable")
    return every.take(good).take(order), every.take(~good)


def _without_lost(part: spec.QueuePart, log: LogReader, wanted: _Wanted) -> _Wanted:
    """Opens all segments that are needed; what stood in those that are gone is lost."""
    segment = wanted.offset // log.segment_bytes
    lost = np.zeros(len(segment), np.bool_)
    for number in np.unique(segment).tolist():
        found = log.segments.find(number * log.segment_bytes)
        try:
            if found is not None:
                found.file.check()
                continue
        except FileVanished:
            pass
        lost |= segment == number
    if not lost.any():
        return wanted
    counts = Counter(wanted.place[lost].tolist())
    texts = [
        f"{part.slices[place].topic}/{part.slices[place].queue_id}: {count} messages"
        for place, count in sorted(counts.items())
    ]
    on_loss(part.task, f"segments were deleted after the read was planned: {', '.join(texts)}")
    return wanted.take(~lost)


def _gaps(wanted: _Wanted) -> Ints:
    """Bytes between each record and the one before it; a negative one is damage."""
    gaps: Ints = wanted.offset[1:] - wanted.offset[:-1] - wanted.size[:-1]
    return gaps


def _batches(wanted: _Wanted, gap_bytes: int) -> Iterator[tuple[int, int]]:
    """[start, end) of rows that one batch is made from."""
    if not len(wanted.offset):
        return
    gaps = _gaps(wanted)
    cost = wanted.size.copy()
    cost[1:] += np.where((gaps > 0) & (gaps <= gap_bytes), gaps, 0)
    number = np.cumsum(cost) // BATCH_BYTES
    cuts = (np.flatnonzero(np.diff(number)) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(number)], strict=True)


def _until_lost(
    part: spec.QueuePart, log: LogReader, wanted: _Wanted, files: OpenFiles
) -> Iterator[pa.RecordBatch]:
    """One batch; without what a segment held that is not open here, and goes away just now."""
    try:
        data, start = _gather(log, wanted, files)
    except FileVanished:
        wanted = _without_lost(part, log, wanted)
        if not len(wanted.offset):
            return
        data, start = _gather(log, wanted, files)
    yield from _read_batch(part, log, wanted, data, start)


def _read_batch(
    part: spec.QueuePart, log: LogReader, wanted: _Wanted, data: Bytes, start: Ints
) -> Iterator[pa.RecordBatch]:
    columns, good = gather_verified(data, start, wanted.size, wanted.offset)
    good &= columns.queue_offset == wanted.number
    queue_ids = np.array([found.queue_id for found in part.slices], np.int64)
    good &= columns.queue_id == queue_ids[wanted.place]
    good[good] = _topics_fit(part, columns.take(good), wanted.take(good))
    for row in np.flatnonzero(~good).tolist():
        yield from on_damage(part.task, _damage(part, log, wanted, row))
    columns = columns.take(good)
    if part.tags is not None:
        columns = columns.take(_has_tag(columns, part.tags.tags))
    if len(columns):
        yield from message_rows.message_batches(part.task, columns)


def _gather(log: LogReader, wanted: _Wanted, files: OpenFiles) -> tuple[Bytes, Ints]:
    """The records' bytes and what is read along, joined, and where each record starts in them."""
    if files.joins_pieces:
        return _gather_pieces(log, wanted), np.cumsum(wanted.size) - wanted.size
    gaps = _gaps(wanted)
    segment = wanted.offset // log.segment_bytes
    breaks = (gaps < 0) | (gaps > files.gap_bytes) | (np.diff(segment) != 0)
    first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    last = np.concatenate([first[1:], [len(wanted.offset)]]) - 1
    begin, end = wanted.offset[first], wanted.offset[last] + wanted.size[last]
    runs = []
    for offset, count in zip(begin.tolist(), (end - begin).tolist(), strict=True):
        found = log.segment_at(offset)
        runs.append(Run(found.path, found.size, offset - found.start, count))
    parts = files.read_runs(runs)
    base = np.concatenate([[0], np.cumsum(end - begin)])[:-1]
    of = np.repeat(np.arange(len(first)), np.diff(np.concatenate([first, [len(wanted.offset)]])))
    return np.frombuffer(b"".join(parts), np.uint8), wanted.offset - begin[of] + base[of]


def _gather_pieces(log: LogReader, wanted: _Wanted) -> Bytes:
    """The records' bytes, joined."""
    segment = wanted.offset // log.segment_bytes
    bounds = [0, *(np.flatnonzero(np.diff(segment)) + 1).tolist(), len(segment)]
    parts = []
    for first, stop in pairwise(bounds):
        found = log.segment_at(int(wanted.offset[first]))
        position = wanted.offset[first:stop] - found.start
        parts.append(found.file.read_pieces(position, wanted.size[first:stop]))
    return np.concatenate(parts) if len(parts) > 1 else parts[0]


def _topics_fit(part: spec.QueuePart, columns: RecordColumns, wanted: _Wanted) -> Bools:
    """Whether each record is of the topic whose queue led to it."""
    topics = message_rows.MessageRows(columns, "").topics
    names = pa.array([found.topic.encode() for found in part.slices], pa.binary())
    expected = names.take(pa.array(wanted.place))
    same: Bools = pc.equal(topics, expected).to_numpy(zero_copy_only=False)
    return same


def _has_tag(columns: RecordColumns, tags: frozenset[str]) -> Bools:
    """By text: two tags may have one hash."""
    found = message_rows.MessageRows(columns, "").property_text(TAGS.encode())
    asked = pa.array(sorted(tags), pa.string())
    answer: Bools = pc.is_in(found, asked).to_numpy(zero_copy_only=False)
    return answer


def _damage(part: spec.QueuePart, log: LogReader, wanted: _Wanted, row: int) -> DamagedPlace:
    """What is wrong where a unit leads to no record, or not to its own."""
    place, number, offset, size, _ = (int(column[row]) for column in wanted)
    found = part.slices[place]
    where, why = found.folder, f"the unit names {size} bytes at {offset}, no record of the log"
    if size == FILLER_SIZE:
        return DamagedPlace(where, 0, 0, "the message is lost", found.topic, found.queue_id, number)
    if log.holds(offset, size) and size >= RECORD_BYTES_MIN:
        there = log.peek(offset)
        if isinstance(there, Record):
            why = f"the unit leads to another message, {there.message_id}"
        else:
            where = str(log.segment_at(offset).path)
            why = getattr(there, "why", "the segment ends here")
    return DamagedPlace(where, offset, size, why, found.topic, found.queue_id, number)
