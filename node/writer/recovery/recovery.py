"""Recovery: finds the log's end and every queue's next offset from the files of a store.

There is one walk, for clean and unclean stops: a clean stop only changes where it starts. `examine`
reads and decides, and changes nothing, so that a refused store stays as it is. `carry_out` then
writes the decision. After a kill at any point, both are done again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from node.runtime import disk
from node.runtime.settings import Settings
from node.store.checkpoints import (
    TAILS_FILE,
    EpochLine,
    Tails,
    list_progress,
    own_dir,
    save_epochs,
    save_tails,
)
from node.store.condition import Condition, read_condition
from node.store.file_cache import OpenFiles
from node.store.identity.store_id import PUT_BACK
from node.store.log.end import TailWalk, ends_at
from node.store.log.reader import Bounds, LogReader, columns_past_damage
from node.store.log.segments import SegmentList, list_folder
from node.store.opening import StoppedStore
from node.store.queues import refuse_batch_queues
from node.store.verify.own_files import disagreement
from node.writer.recovery.queues import TailNotes
from node.writer.recovery.tail import (
    LogEnd,
    drop_segments_behind,
    has_bytes_behind,
    looks_torn,
    make_tail_durable,
    quarantine,
    records_behind,
    segment_bases,
    written_end,
    zero_behind,
)
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR
from protocol.record.codec import FILLER_BYTES, Filler, Torn, decode
from protocol.record.columns import RecordColumns

__all__ = ["Recovery", "Tell", "carry_out", "examine", "segment_bases", "tell_nobody"]

TAILS_AGE_BYTES_MAX = 8 * 1024 * 1024
"""An older snapshot is replaced at once, so that the start after the next kill is short."""
WALK_BYTES_MAX = 256 * 1024 * 1024
"""Up to this size, records that a broker appended after us are walked; beyond it the queues' ends
come from the queues' files."""

Tell = Callable[[int, int], None]
"""Called with (done, total) log bytes, window by window."""


def tell_nobody(_done: int, _total: int) -> None:
    """A `Tell` that ignores the progress."""


@dataclass(slots=True)
class Recovery:
    """The findings. `cut` says why bytes from `end` on must go; None if there are none."""

    root: Path
    segment_bytes: int
    min_offset: int
    end: int
    floor: int
    tails: dict[Queue, int]
    epochs: list[EpochLine]
    epoch: int
    """The epoch that begins with this start."""
    was_clean: bool
    last_store_timestamp: int = 0
    last_record_offset: int = 0
    cut: Torn | None = None
    looks_torn: bool = True
    records_behind: int = 0
    first_behind: int | None = None
    tails_at: int | None = None
    """The log offset of the snapshot that the walk began from."""
    removed: Removed = NOTHING_REMOVED

    @property
    def log_end(self) -> LogEnd:
        """The end that was found."""
        return LogEnd(self.root, self.end, self.segment_bytes)


def examine(root: Path, settings: Settings, tell: Tell = tell_nobody) -> Recovery:
    """Walks the log from the snapshot of the queues' ends on. Changes nothing.

    Raises StoreDamaged for damage below the durable floor, and for files that cannot be a log;
    StoreError for queues that a node does not have.
    """
    refuse_batch_queues(root)
    condition = read_condition(root)
    listing = list_folder(root / COMMIT_LOG_DIR)
    for problem in listing.problems:
        raise _refused(root, problem.path, problem.offset, problem.detail)
    found = Recovery(
        root,
        listing.file_bytes or settings.mapped_file_size_commit_log,
        listing.files[0][0] if listing.files else 0,
        0,
        condition.floor,
        {},
        condition.epochs,
        _next_epoch(root, condition.epochs),
        condition.is_clean,
        removed=condition.removed,
    )
    if not listing.files:
        if condition.floor:
            raise _refused(root, root / COMMIT_LOG_DIR, 0, "there is no segment", condition.floor)
        return found
    files = OpenFiles()
    try:
        segments = SegmentList(root / COMMIT_LOG_DIR, listing, files)
        found.end = segments.end
        if segments.end < condition.floor:
            path, why = listing.files[-1][1], "the log ends with this file"
            raise _refused(root, path, segments.end, why, condition.floor)
        if condition.tails is not None:
            _check_tails(condition.tails, segments, found, files)
        total = written_end(LogEnd(root, 0, found.segment_bytes))
        _walk(segments, condition, settings, found, lambda done: tell(min(done, total), total))
        if found.cut is not None:
            found.looks_torn = looks_torn(segments, found.cut)
            behind = records_behind(segments, found.cut, found.last_store_timestamp)
            found.records_behind, found.first_behind = behind
    finally:
        files.close()
    return found


def _next_epoch(root: Path, epochs: list[EpochLine]) -> int:
    """One above the highest epoch in our files: progress files may outlive `epochs`."""
    known = [line.epoch for line in epochs]
    known += [progress.epoch for progress in list_progress(root).values()]
    return max(known, default=0) + 1


def _refused(
    root: Path, path: Path, offset: int, why: str, floor: int | None = None
) -> StoreDamaged:
    if floor is not None:
        why += f"; everything below {floor} was durable, so this is damage and no torn tail"
    return StoreDamaged(str(path), offset, why, f"keelog store repair {root}")


def _check_tails(tails: Tails, segments: SegmentList, found: Recovery, files: OpenFiles) -> None:
    """Raises StoreDamaged for a snapshot of another log: with it, offsets would be given twice."""
    why = disagreement(found.root, tails, found.epochs, segments, files, found.removed)
    if why is not None:
        where = str(own_dir(found.root) / TAILS_FILE)
        raise StoreDamaged(where, tails.last_record, f"is of another log: {why}", PUT_BACK)


def _walk(
    segments: SegmentList,
    condition: Condition,
    settings: Settings,
    found: Recovery,
    tell: Callable[[int], None],
) -> None:
    """Fills in the end and the queues' next offsets. Raises StoreDamaged."""
    tails = condition.tails
    if tails is None or tails.at < found.min_offset or _is_far(segments, condition, tails, found):
        stopped = _walk_of_broker(settings, found, tails, tell)
    else:
        found.tails, found.tails_at = tails.next_offset, tails.at
        _check_last_record(segments, tails, found)
        reader = LogReader(segments, Bounds(segments.start, segments.end))
        walk = TailWalk(reader, tails.at, condition)
        notes = TailNotes(found.tails, found.removed)
        for columns in walk:
            _note(found, notes, columns)
            tell(walk.end)
        notes.settle()
        found.end, stopped = walk.end, walk.stop
    if stopped is None:
        found.end += _filler_bytes(found)
    if found.end < found.floor:
        path = found.log_end.path(found.end - found.end % found.segment_bytes)
        why = stopped.why if stopped is not None else "the log ends here"
        raise _refused(found.root, path, found.end, why, found.floor)
    if (stopped is not None and stopped.kind != "end") or has_bytes_behind(found.log_end):
        found.cut = stopped or Torn(found.end, "cut", "what stands here is no whole record")


def _is_far(segments: SegmentList, condition: Condition, tails: Tails, found: Recovery) -> bool:
    """Whether a broker has appended more than WALK_BYTES_MAX after our snapshot."""
    if condition.was_ours or ends_at(
        LogReader(segments, Bounds(segments.start, segments.end)), tails.at
    ):
        return False
    return (
        written_end(LogEnd(found.root, tails.at, found.segment_bytes)) - tails.at > WALK_BYTES_MAX
    )


def _check_last_record(segments: SegmentList, tails: Tails, found: Recovery) -> None:
    """Looks at the one record before the walk: even files marked clean may have been changed by
    hand. Raises StoreDamaged."""
    found.last_store_timestamp = tails.store_timestamp
    found.last_record_offset = offset = tails.last_record
    if not found.min_offset <= offset < tails.at or tails.at > segments.end:
        return
    reader = LogReader(segments, Bounds(segments.start, tails.at))
    stands = reader.peek(offset)
    if isinstance(stands, Torn) or (offset and isinstance(stands, Filler)):
        why = stands.why if isinstance(stands, Torn) else "a blank where a record was"
        path = found.log_end.path(offset - offset % found.segment_bytes)
        raise _refused(found.root, path, offset, why, found.floor)


def _walk_of_broker(
    settings: Settings, found: Recovery, known: Tails | None, tell: Callable[[int], None]
) -> Torn | None:
    """Recovers as a broker does: the end from the last segments, the queues' ends from their files
    and from the log above them. `known`: a snapshot of ours that is too old to walk from.

    Returns why the walk stopped at the end.
    """
    with StoppedStore(found.root, settings, on_window=lambda done, _total: tell(done)) as store:
        if known is not None:
            found.tails = dict(known.next_offset)
            found.last_store_timestamp = known.store_timestamp
        for queue in store.queues():
            reader = store.queue(queue.topic, queue.queue_id)
            if reader is not None:
                found.tails[queue] = max(found.tails.get(queue, 0), reader.max_offset)
        found.end = store.tail.end
        last_segment = (found.end - 1) // found.segment_bytes * found.segment_bytes
        start = max(last_segment - found.segment_bytes, found.min_offset)
        if known is not None and known.at < found.min_offset:
            # Retention went past the snapshot: a queue's last records may lie anywhere.
            start = found.min_offset
        notes, noted = TailNotes(found.tails, found.removed), start
        for item in columns_past_damage(store.log, start):
            if isinstance(item, RecordColumns):
                _note(found, notes, item)
                noted = item.end
                tell(noted)
            elif item.torn.position < found.floor:
                # A broker's part above the floor may not have been durable: readers meet damage.
                raise _refused(
                    found.root, Path(item.where), item.torn.position, item.torn.why, found.floor
                )
        notes.settle()
        if noted < min(found.floor, found.end):
            _check_below_floor(store.log, noted, found)
        return store.tail.stop


def _check_below_floor(reader: LogReader, offset: int, found: Recovery) -> None:
    """Checks that only a filler is between the last whole record, which ends at `offset`, and the
    floor.

    The walk to the end begins at the floor. It would not see a part that was lost before it, by a
    disk that lied about a flush. Raises StoreDamaged.
    """
    stands = reader.peek(offset)
    if not isinstance(stands, Filler) or offset + stands.size < found.floor:
        why = stands.why if isinstance(stands, Torn) else "no whole record is here"
        path = found.log_end.path(offset - offset % found.segment_bytes)
        raise _refused(found.root, path, offset, why, found.floor)


def _note(found: Recovery, notes: TailNotes, columns: RecordColumns) -> None:
    notes.add(columns)
    last = int(columns.store_timestamp.max())
    found.last_store_timestamp = max(found.last_store_timestamp, last)
    found.last_record_offset = int(columns.physical_offset[-1])


def _filler_bytes(found: Recovery) -> int:
    """A filler without a segment after it counts: the log goes on in the next segment."""
    base = found.end - found.end % found.segment_bytes
    path = found.log_end.path(base)
    if base == found.end or not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(found.end - base)
        stands = decode(file.read(FILLER_BYTES), 0)
    left = base + found.segment_bytes - found.end
    return left if isinstance(stands, Filler) and stands.size == left else 0


def carry_out(found: Recovery, crc: bool = True) -> int:
    """Cuts the torn end (a copy goes to quarantine), flushes the tail, begins a new epoch.

    `crc`: whether records of this epoch carry the whole-record checksum. Returns the epoch. When
    it returns, everything below `found.end` is durable.
    """
    end = found.log_end
    if found.cut is not None:
        quarantine(end, _report(found, found.cut))
        zero_behind(end)
    drop_segments_behind(end)
    # All below the start of the last epoch was made durable before that epoch was noted.
    durable = found.epochs[-1].start if found.epochs else found.end
    rewrite_from = max(found.floor, durable, found.min_offset)
    make_tail_durable(end, rewrite_from, found.floor)
    line = EpochLine(found.epoch, found.end, crc, found.was_clean)
    lines = [*found.epochs, line]
    kept = [line for line, following in pairwise(lines) if following.start >= found.min_offset]
    save_epochs(found.root, [*kept, line])
    if found.tails_at is None or found.end - found.tails_at >= TAILS_AGE_BYTES_MAX:
        times = (found.last_record_offset, found.last_store_timestamp)
        with disk.if_room():
            save_tails(found.root, Tails(found.end, dict(found.tails), *times))
    return found.epoch


def _report(found: Recovery, cut: Torn) -> dict[str, Any]:
    return {
        "cut_at": found.end,
        "file": str(found.log_end.path(found.end - found.end % found.segment_bytes)),
        "kind": cut.kind,
        "why": cut.why,
        "looks_like": "torn write" if found.looks_torn else "corruption",
        "records_behind": found.records_behind,
        "first_record_behind": found.first_behind,
        "floor": found.floor,
        "epoch": found.epoch,
    }
