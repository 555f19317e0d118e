"""From options to parts: opens the stores, finds the ends of queues and log, plans the tasks.

Runs once for a DataFrame, on the driver's machine. The ends that it finds are the ends of the read.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from node.store.condition import check_is_store
from node.store.log_damage import next_record
from node.store.log_reader import Bounds, LogReader
from node.store.queue_list import queue_folder
from node.store.queue_reader import QueueReader
from node.store.seek import offset_by_time
from node.store.store import DeadStore, open_store
from pipeline.bounds import Bound, Extent, QueueAt, check_offsets, offsets_for
from pipeline.errors import UnknownTopic, naming_conditions
from pipeline.options import SourceOptions, StoreAt
from pipeline.parts import IndexPart, IndexSlice, LogAt, LogPart, Part, QueuePart, QueueSlice, Task
from pipeline.plan import Limits, Range, log_borders, plan_partitions, share
from pipeline.tables import INDEX, MESSAGES
from protocol.ids import Queue
from protocol.index_entry import INDEX_ENTRY
from protocol.queue_unit import FILLER_SIZE

log = logging.getLogger("keelog.pipeline")

BORDER_SEARCH_BYTES = 16 << 20
"""How far behind the wished place of a border a record is looked for."""
SAMPLE_UNITS = 64
"""How many units of a queue, at three places, tell the size of its records."""


@dataclass(frozen=True, slots=True)
class _Open:
    at: StoreAt
    store: DeadStore

    def task(self, options: SourceOptions) -> Task:
        return Task(self.at, options.columns, options.fail_on_data_loss, options.on_corrupt)

    def log_at(self) -> LogAt:
        reader = self.store.log
        segments = tuple(segment.start for segment in reader.segments.segments)
        return LogAt(self.at.root, reader.segment_bytes, segments, reader.min_offset, reader.end)


@dataclass(frozen=True, slots=True)
class _QueueRows:
    """A queue whose rows [`start`, `end`) are read."""

    opened: _Open
    reader: QueueReader
    queue: Queue
    start: int
    end: int


def check_stores(stores: Iterable[StoreAt]) -> None:
    """Raises NotAStoreError, StoreUnreadable; no more than a look at the folders."""
    with naming_conditions():
        for at in stores:
            check_is_store(Path(at.root))


def plan_parts(options: SourceOptions) -> list[Part]:
    """The parts of a read, none of them empty.

    Raises NotAStoreError, StoreDamagedError, StoreUnreadable, UnknownTopic, OffsetOutOfRange,
    DataLoss, BadOption.
    """
    with naming_conditions(), ExitStack() as stack:
        opened = [
            _Open(at, stack.enter_context(open_store(at.root, options.settings)))
            for at in options.stores
        ]
        for one in opened:
            _warn_of_tear(one)
        if options.table is INDEX:
            return list(_index_parts(opened, options))
        if options.table is MESSAGES and options.selection.is_everything:
            return list(_log_parts(opened, options))
        return list(_queue_parts(opened, options))


def _warn_of_tear(one: _Open) -> None:
    """A tear is where recovery would end the log, so there it ends; nobody should wonder."""
    stop = one.store.tail.stop
    if stop is not None and stop.kind != "end":
        log.warning("the log of %s ends at offset %d: %s", one.at.root, stop.position, stop.why)


def _log_parts(opened: list[_Open], options: SourceOptions) -> Iterator[Part]:
    sizes = [one.store.log.end - one.store.log.min_offset for one in opened]
    for one, size in zip(opened, sizes, strict=True):
        reader = one.store.log
        limits = share(options.limits, size, sum(sizes))
        borders = [reader.min_offset, *record_borders(reader, limits), reader.end]
        task, log_at = one.task(options), one.log_at()
        for start, end in pairwise(borders):
            if start < end:
                yield LogPart(task, log_at, start, end)


def record_borders(reader: LogReader, limits: Limits) -> list[int]:
    """Places strictly inside the log where a record proves that it starts there, rising.

    A border in whose neighbourhood none does is left out. Segments begin with a record by
    definition: parts that may be as large are cut there and nowhere else.
    """
    places = log_borders(reader.min_offset, reader.end, limits)
    if limits.bytes_max >= reader.segment_bytes and limits.partitions_min == 1:
        starts = {place - place % reader.segment_bytes for place in places}
        return sorted(start for start in starts if start > reader.min_offset)
    borders: list[int] = []
    for wished in places:
        bounds = Bounds(reader.min_offset, min(wished + BORDER_SEARCH_BYTES, reader.end))
        found = next_record(LogReader(reader.segments, bounds), wished)
        if found is not None and found > max(borders, default=reader.min_offset):
            borders.append(found)
    return borders


def _queue_parts(opened: list[_Open], options: SourceOptions) -> Iterator[Part]:
    rows = _queue_rows(opened, options)
    by_store = [[row for row in rows if row.opened is one] for one in opened]
    ranges = [
        [Range(place, row.start, row.end, _row_bytes(row, options)) for place, row in enumerate(of)]
        for of in by_store
    ]
    counts = [sum(found.rows for found in of) for of in ranges]
    is_messages = options.table is MESSAGES
    for one, of, found, count in zip(opened, by_store, ranges, counts, strict=True):
        task = one.task(options)
        log_at = one.log_at() if is_messages else None
        for part in plan_partitions(found, share(options.limits, count, sum(counts))):
            slices = tuple(_slice(of[piece.source], piece.start, piece.end) for piece in part)
            yield QueuePart(task, slices, log_at, options.selection.tags)


def _queue_rows(opened: list[_Open], options: SourceOptions) -> list[_QueueRows]:
    """The queues that are asked for, each with its bounds, without those that give no row."""
    found = [
        (one, queue, reader)
        for one in opened
        for queue in one.store.queues()
        if options.selection.takes(*queue) and (reader := one.store.queue(*queue)) is not None
    ]
    _check_topics(opened, options)
    extents = [
        Extent(
            QueueAt(queue.topic, one.at.node, queue.queue_id), reader.min_offset, reader.max_offset
        )
        for one, queue, reader in found
    ]
    selection, count = options.selection, len(opened)
    readers = [(one.store.log, reader) for one, _, reader in found]
    starts = _offsets(selection.start, "startingOffsets", extents, readers, count)
    ends = _offsets(selection.end, "endingOffsets", extents, readers, count)
    rows: list[_QueueRows] = []
    for (one, queue, reader), extent in zip(found, extents, strict=True):
        # Times in wrong order ask for nothing; offsets in wrong order are an error.
        end = ends[extent.queue]
        if "time" in (selection.start.kind, selection.end.kind):
            end = max(end, min(starts[extent.queue], extent.high))
        start, end, lost = check_offsets(
            extent, starts[extent.queue], end, options.fail_on_data_loss
        )
        if lost:
            log.warning("messages are lost: %s", lost)
        if start < end:
            rows.append(_QueueRows(one, reader, queue, start, end))
    return rows


def _check_topics(opened: list[_Open], options: SourceOptions) -> None:
    """Raises UnknownTopic for a topic, or queue, that was named and that no store has."""
    selection = options.selection
    there = {queue for one in opened for queue in one.store.queues()}
    topics = {queue.topic for queue in there}
    asked = set(selection.topics or selection.assigned or ())
    for topic in sorted(asked - topics):
        raise UnknownTopic(f"there is no topic {topic[:255]!r}", _known_topics(topics))
    for topic, ids in sorted((selection.assigned or {}).items()):
        for queue_id in sorted(ids):
            if Queue(topic, queue_id) not in there:
                known = sorted(queue.queue_id for queue in there if queue.topic == topic)
                raise UnknownTopic(f"topic {topic} has no queue {queue_id}", f"one of {known}")


def _known_topics(topics: set[str]) -> str:
    listed = sorted(topics)
    rest = f" and {len(listed) - 20} more" if len(listed) > 20 else ""
    return f"one of {', '.join(listed[:20])}{rest}" if listed else "another store: it has none"


def _offsets(
    bound: Bound,
    name: str,
    extents: list[Extent],
    readers: list[tuple[LogReader, QueueReader]],
    stores: int,
) -> dict[QueueAt, int]:
    if bound.kind == "offsets":
        return offsets_for(bound, name, extents, stores)
    if bound.kind == "earliest":
        return {extent.queue: extent.low for extent in extents}
    if bound.kind == "latest":
        return {extent.queue: extent.high for extent in extents}
    return {
        extent.queue: offset_by_time(log_reader, reader, bound.time_ms)
        for extent, (log_reader, reader) in zip(extents, readers, strict=True)
    }


def _row_bytes(row: _QueueRows, options: SourceOptions) -> float:
    """About how many bytes of the store one row costs: a record, or a unit."""
    if options.table is not MESSAGES:
        return 20.0
    count = row.end - row.start
    places = {row.start, row.start + count // 2, max(row.end - SAMPLE_UNITS, row.start)}
    sizes = [
        size
        for place in sorted(places)
        for size in row.reader.units(place, min(SAMPLE_UNITS, row.end - place))["size"].tolist()
        if 0 < size < FILLER_SIZE
    ]
    return sum(sizes) / len(sizes) if sizes else 1.0


def _slice(row: _QueueRows, start: int, end: int) -> QueueSlice:
    reader = row.reader
    first = max(start, reader.disk_end)
    return QueueSlice(
        topic=row.queue.topic,
        queue_id=row.queue.queue_id,
        folder=str(queue_folder(row.opened.store.root, row.queue)),
        file_bytes=row.opened.store.queue_file_bytes,
        start=start,
        end=end,
        disk_end=reader.disk_end,
        derived=reader.units(first, end - first).tobytes() if first < end else b"",
    )


def _index_parts(opened: list[_Open], options: SourceOptions) -> Iterator[Part]:
    for one in opened:
        files = one.store.index.files()
        ranges = [
            Range(place, 1, file.header.index_count, INDEX_ENTRY.size)
            for place, file in enumerate(files)
        ]
        for part in plan_partitions(ranges, options.limits):
            slices = []
            for found in part:
                file, geometry = files[found.source], files[found.source].geometry
                entries = file.entries()[found.start - 1 : found.end - 1]
                slices.append(
                    IndexSlice(
                        path=str(Path(one.store.index_folder.path) / file.name),
                        name=file.name,
                        slot_count=geometry.slot_count,
                        file_bytes=geometry.file_bytes,
                        entries_at=geometry.entry_position(0),
                        begin_timestamp=file.header.begin_timestamp,
                        start=found.start,
                        end=found.end,
                        data=entries.tobytes() if file.is_image else None,
                    )
                )
            yield IndexPart(one.task(options), tuple(slices))
