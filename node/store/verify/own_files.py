"""Checks the small files of a node against the store's id and its log.

`store verify` reports what it finds. The snapshot of the queues' ends is compared with the log
before a node uses it, too. Two copies of a store that both went on have the same id, and so do
files that were copied together with `lock`. Only the log shows the difference: the record that the
snapshot names as its last, and the last records of some queues.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from node.runtime.store_paths import IrregularFile
from node.store.checkpoints import TAILS_FILE, EpochLine, Tails, own_dir
from node.store.config.topics_file import unreadable_tables
from node.store.file_cache import OpenFiles
from node.store.identity import places, store_id
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList
from node.store.queues import (
    NO_UNITS,
    QueueFiles,
    list_queue_ids,
    list_topics,
    open_queue_files,
    queue_folder,
)
from node.store.verify.findings import NO_START, CheckedStore, Finding
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import SCHEDULE_TOPIC
from protocol.record.codec import TRANSACTION_COMMIT, TRANSACTION_MASK, Record

FOREIGN_FILE = "foreign_file"
TAILS_SAMPLE_QUEUES = 64
"""The number of queues whose last records are compared, spread over all queues."""

_T = TypeVar("_T")


def irregular_findings(root: Path) -> Iterator[Finding]:
    """Yields what a node refuses to start with: a link, a FIFO or the like in the place of one of
    its files, and a table of topics, or the copy that then counts, that makes no sense."""
    tables = (one for one in unreadable_tables(root) if not isinstance(one, IrregularFile))
    for damage in (*places.strangers(root), *tables):
        detail = f"{damage.found}: {NO_START}"
        yield Finding("error", FOREIGN_FILE, damage.where, 0, detail)


def own_findings(store: CheckedStore) -> Iterator[Finding]:
    """Yields the files of another store: errors where a node would not start, or not publish."""
    needed, spared = store_id.strangers(store.root)
    yield from (Finding("error", FOREIGN_FILE, str(path), 0, why) for path, why in needed)
    yield from (Finding("warning", FOREIGN_FILE, str(path), 0, why) for path, why in spared)
    tails, epochs = store.condition.tails, store.condition.epochs
    if tails is None:
        return
    with closing(OpenFiles()) as files:
        removed = store.condition.removed
        found = disagreement(store.root, tails, epochs, store.log.segments, files, removed)
    if found is not None:
        path = str(own_dir(store.root) / TAILS_FILE)
        yield Finding("error", FOREIGN_FILE, path, tails.last_record, f"is of another log: {found}")


def disagreement(
    root: Path,
    tails: Tails,
    epochs: Sequence[EpochLine],
    segments: SegmentList,
    files: OpenFiles,
    removed: Removed = NOTHING_REMOVED,
) -> str | None:
    """Why the snapshot must be of another log; None if nothing shows that.

    Damage is not a disagreement: a walk over the log reports it. Raises StorePermission.
    """
    if not segments.start <= tails.at <= segments.end:
        return None
    reader = LogReader(segments, Bounds(segments.start, tails.at))
    known = tails, removed
    return _of_last_record(reader, *known, epochs) or _of_queues(root, reader, *known, files)


def _of_last_record(
    reader: LogReader, tails: Tails, removed: Removed, epochs: Sequence[EpochLine]
) -> str | None:
    """Compares the record that the snapshot names as its last; 0: unknown, or the first record."""
    offset, stated = tails.last_record, tails.store_timestamp
    if not max(reader.min_offset, 1) <= offset < tails.at:
        return None
    record = _record_at(reader, offset)
    if record is None:
        return None
    time = record.head.store_timestamp
    # A broker's clock may have gone back: the snapshot has the latest time of all. A marker of
    # `store repair` has an empty body, and the time of the record before it.
    is_exact = bool(epochs) and epochs[-1].start <= offset and bool(record.raw_body.strip(b"\0"))
    if stated > 0 and (time > stated or (is_exact and time != stated)):
        return f"its last record, at {offset}, is of {stated}, the one in the log is of {time}"
    return _used(record, _queue_of(record), tails, removed)


def _of_queues(
    root: Path, reader: LogReader, tails: Tails, removed: Removed, files: OpenFiles
) -> str | None:
    topics = _spread(list_topics(root))
    queues = [Queue(topic, number) for topic in topics for number in list_queue_ids(root, topic)]
    for queue in _spread(queues):
        found = None
        with suppress(StoreDamaged):
            units = open_queue_files(queue_folder(root, queue), None, files)
            found = _last_of(units, queue, reader, tails)
        why = None if found is None else _used(found, queue, tails, removed)
        if why is not None:
            return why
    return None


def _spread(found: Sequence[_T]) -> Sequence[_T]:
    """Up to TAILS_SAMPLE_QUEUES of them, evenly spaced."""
    return found[:: -(-len(found) // TAILS_SAMPLE_QUEUES) or 1]


def _last_of(files: QueueFiles, queue: Queue, reader: LogReader, tails: Tails) -> Record | None:
    """The record of a queue's last unit below the snapshot, if it is in the log and the queue's."""
    end, following = files.end_below(tails.at), tails.next_offset.get(queue, 0)
    if end <= max(files.first, following):
        return None
    place, known = _place_of(files, end - 1), _place_of(files, following - 1)
    if known is not None and place is not None and known > place:
        return None  # A broker has begun this queue's offsets again, below those it had given.
    record = _record_at(reader, place) if place is not None and reader.holds(place, 1) else None
    if record is None or record.head.queue_offset != end - 1:
        return None
    return record if _queue_of(record) == queue else None


def _record_at(reader: LogReader, offset: int) -> Record | None:
    try:
        found = reader.peek(offset)
    except StoreDamaged:
        return None
    return found if isinstance(found, Record) else None


def _place_of(files: QueueFiles, number: int) -> int | None:
    units = files.read(number, 1) if number >= files.first else NO_UNITS
    return int(units[0]["physical_offset"]) if len(units) else None


def _used(record: Record, queue: Queue | None, tails: Tails, removed: Removed) -> str | None:
    """Why the snapshot would give a record's queue offset again; None if it would not."""
    following = tails.next_offset.get(queue, 0) if queue is not None else 0
    number = record.head.queue_offset
    if queue is None or number < following:
        return None
    if record.physical_offset < removed.horizon(queue.topic):
        return None
    return (
        f"the next offset of {queue.topic} {queue.queue_id} is {following} in it, the record at "
        f"{record.physical_offset} has {number} already"
    )


def _queue_of(record: Record) -> Queue | None:
    """The queue that has the record; None if that is not the queue that the record names."""
    kind = record.head.sys_flag & TRANSACTION_MASK
    if kind not in (0, TRANSACTION_COMMIT) or record.topic == SCHEDULE_TOPIC:
        return None
    return Queue(record.topic, record.head.queue_id)
