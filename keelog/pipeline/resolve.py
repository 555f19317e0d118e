"""From options to parts: opens the stores, finds the ends of queues and log, plans the tasks.

Runs once for a DataFrame, on the driver's machine. The ends that it finds are the ends of the read.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise

from keelog.pipeline import bounds
from keelog.pipeline.bounds import Extent, PartitionLimits, QueueAt, Range
from keelog.pipeline.errors import few, log, naming_conditions
from keelog.pipeline.options import SourceOptions
from keelog.pipeline.stores.access import Way
from keelog.pipeline.stores.planned_store import PlannedStore, check_stores, open_planned
from keelog.pipeline.tables import INDEX, MESSAGES
from keelog.pipeline.task_spec import IndexPart, IndexSlice, LogPart, Part, QueuePart, Task
from node.store.log.reader import Bounds, LogReader, next_record
from node.store.queues import QueueReader
from protocol.derived.file_layouts import FILLER_SIZE, INDEX_ENTRY
from protocol.errors import UnknownTopic
from protocol.ids import Queue

BORDER_SEARCH_BYTES = 16 << 20
"""How far after the wished place of a border a record is looked for."""
SAMPLE_UNITS = 64
"""How many units of a queue, at three places, give the size of its records."""


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """A queue of an open store whose rows [`start`, `end`) are read."""

    store: PlannedStore
    reader: QueueReader
    start: int
    end: int


def plan_parts(options: SourceOptions) -> list[Part]:
    """The parts of a read, none of them empty.

    Raises NotAStore, StoreDamaged, StoreUnreadable, UnknownTopic, OffsetOutOfRange,
    DataLoss, BadOption.
    """
    with naming_conditions(), ExitStack() as stack:
        stores = [stack.enter_context(open_planned(at, options)) for at in options.stores]
        for store in stores:
            # Recovery would end the log there, so there it ends; nobody should wonder.
            tear = store.tear()
            if tear:
                log.warning("the log of %s ends at %s", store.at.root, tear)
        if options.table.name == INDEX.name:
            return list(_index_parts(stores, options))
        if options.table.name == MESSAGES.name and options.selection.is_everything:
            return list(_log_parts(stores, options))
        for store in stores:
            store.settle()
        return list(parts_of_rows(_queue_rows(stores, options), stores, options))


def check_read(options: SourceOptions) -> None:
    """Raises what is known without planning: no store, no such topic, a node that is away.

    Object stores are not looked into.
    """
    check_stores(options.stores)
    ways, named = {at.way for at in options.stores}, options.selection.named_topics
    if Way.OBJECTS in ways or (named is None and Way.NODE not in ways):
        return
    with naming_conditions(), ExitStack() as stack:
        stores = [stack.enter_context(open_planned(at, options)) for at in options.stores]
        for store in stores:
            store.settle()
        check_topics(stores, options)


def _task(store: PlannedStore, options: SourceOptions) -> Task:
    return Task(store.at, options.columns, options.fail_on_data_loss, options.on_corrupt)


def _log_parts(stores: list[PlannedStore], options: SourceOptions) -> Iterator[Part]:
    sizes = [store.log.end - store.log.min_offset for store in stores]
    for store, size in zip(stores, sizes, strict=True):
        reader = store.log
        limits = bounds.share(options.limits, size, sum(sizes))
        borders = [reader.min_offset, *record_borders(reader, limits), reader.end]
        task, log_at = _task(store, options), store.log_at()
        for start, end in pairwise(borders):
            if start < end:
                yield LogPart(task, log_at, start, end)


def record_borders(reader: LogReader, limits: PartitionLimits) -> list[int]:
    """Places strictly inside the log where a record proves that it starts there, rising.

    A border in whose neighbourhood none does is left out. Segments begin with a record by
    definition: parts that may be as large are cut there and nowhere else.
    """
    places = bounds.log_borders(reader.min_offset, reader.end, limits)
    if limits.bytes_max >= reader.segment_bytes and limits.partitions_min == 1:
        starts = {place - place % reader.segment_bytes for place in places}
        return sorted(start for start in starts if start > reader.min_offset)
    borders: list[int] = []
    for wished in places:
        segment = reader.segments.find(wished)
        if segment is None:
            continue  # It is missing, which is the loss of its own.
        end = min(wished + BORDER_SEARCH_BYTES, reader.end, segment.end)
        near = LogReader(reader.segments, Bounds(reader.min_offset, end))
        found = next_record(near, wished)
        if found is None and end == segment.end < reader.end:
            found = end
        if found is not None and found > (borders[-1] if borders else reader.min_offset):
            borders.append(found)
    return borders


def parts_of_rows(
    rows: list[QueueSpan], stores: list[PlannedStore], options: SourceOptions
) -> Iterator[Part]:
    """The parts that read these rows, cut as the options say."""
    by_store = [
        [
            Range(row.reader, row.start, row.end, _row_bytes(row, options))
            for row in rows
            if row.store is store
        ]
        for store in stores
    ]
    counts = [sum(found.rows for found in of) for of in by_store]
    is_messages = options.table.name == MESSAGES.name
    for store, of, count in zip(stores, by_store, counts, strict=True):
        if not count:
            continue
        task = _task(store, options)
        log_at = store.log_at() if is_messages else None
        for part in bounds.plan_partitions(of, bounds.share(options.limits, count, sum(counts))):
            slices = tuple(store.queue_slice(one.source, one.start, one.end) for one in part)
            yield QueuePart(task, slices, log_at, options.selection.tags)


def _queue_rows(stores: list[PlannedStore], options: SourceOptions) -> list[QueueSpan]:
    """The queues that are asked for, each with its bounds, without those that give no row."""
    selection = options.selection
    found = {
        QueueAt(queue.topic, store.at.node, queue.queue_id): (store, reader)
        for store in stores
        for queue in store.queues()
        if selection.takes(*queue) and (reader := store.queue(*queue)) is not None
    }
    check_topics(stores, options)
    extents = [
        Extent(queue, reader.min_offset, reader.max_offset) for queue, (_, reader) in found.items()
    ]
    count, find = len(stores), offset_finder(found)
    starts = bounds.bound_offsets(selection.start, "startingOffsets", extents, count, find)
    ends = bounds.bound_offsets(selection.end, "endingOffsets", extents, count, find)
    rows: list[QueueSpan] = []
    for extent in extents:
        start, end = starts[extent.queue], ends[extent.queue]
        # Times in wrong order ask for nothing; offsets in wrong order are an error.
        if {"time", "times"} & {selection.start.kind, selection.end.kind}:
            end = max(end, min(start, extent.high))
        start, end, lost = bounds.check_offsets(extent, start, end, options.fail_on_data_loss)
        if lost:
            log.warning("messages are lost: %s", lost)
        if start < end:
            rows.append(QueueSpan(*found[extent.queue], start, end))
    return rows


def offset_finder(
    found: Mapping[QueueAt, tuple[PlannedStore, QueueReader]],
) -> Callable[[QueueAt, int], int]:
    """Finds offsets by time, for `bounds.bound_offsets`, in queues that are open."""

    def find(queue: QueueAt, time_ms: int) -> int:
        store, reader = found[queue]
        return store.offset_by_time(reader, time_ms)

    return find


def check_topics(stores: list[PlannedStore], options: SourceOptions) -> None:
    """Raises UnknownTopic for a topic, or queue, that was named and that no store has."""
    selection = options.selection
    there = {queue for store in stores for queue in store.queues()}
    topics = {queue.topic for queue in there}
    missing = set(selection.named_topics or ()) - topics
    # A node knows topics that were made and have no message yet: no queue of theirs is there.
    every = {topic for store in stores for topic in store.topics()} if missing else set()
    for topic in sorted(missing - every):
        hint = f"one of {few(sorted(every), 20)}" if every else "another store: it has none"
        raise UnknownTopic(f"there is no topic {topic[:255]!r}", hint)
    for topic, ids in sorted((selection.assigned or {}).items()):
        for queue_id in sorted(ids):
            if Queue(topic, queue_id) not in there:
                known = sorted(queue.queue_id for queue in there if queue.topic == topic)
                raise UnknownTopic(f"topic {topic} has no queue {queue_id}", f"one of {known}")


def _row_bytes(row: QueueSpan, options: SourceOptions) -> float:
    """About how many bytes of the store one row costs: a record, or a unit."""
    if options.table.name != MESSAGES.name:
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


def _index_parts(stores: list[PlannedStore], options: SourceOptions) -> Iterator[Part]:
    for store in stores:
        ranges = [
            Range(file, file.start, file.end, INDEX_ENTRY.size) for file in store.index_slices()
        ]
        task, log_at = _task(store, options), store.log_at()
        for part in bounds.plan_partitions(ranges, options.limits):
            slices = tuple(_cut(one.source, one.start, one.end) for one in part)
            yield IndexPart(task, slices, log_at if log_at.removed.end else None)


def _cut(whole: IndexSlice, start: int, end: int) -> IndexSlice:
    first, stop = ((at - whole.start) * INDEX_ENTRY.size for at in (start, end))
    data = None if whole.data is None else whole.data[first:stop]
    return replace(whole, start=start, end=end, data=data)
