"""Recovery: finds the log's end and every queue's next offset from the files of a store.

There is one walk, for clean and unclean stops: a clean stop only changes where it starts. `examine`
reads and decides, and changes nothing, so that a refused store stays as it is. `carry_out` then
writes the decision: the bytes after the end go to quarantine and are zeroed, the tail before it is
written once more. After a kill at any point, both are done again.

How far it is goes to people and to the supervisor now and then, not for each window. A warning says
which files a start finds missing, or which stop was none: the store goes on with less, and nobody
else would say so.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from node.runtime import disk
from node.runtime.event_log import fields, stderr
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from node.runtime.state_page import read_log
from node.runtime.store_paths import held_open
from node.store import checkpoints
from node.store.condition import Condition, read_condition
from node.store.config.topics_file import TopicsFile
from node.store.file_cache import OpenFiles, data_extents, nonzero_pieces
from node.store.identity.store_id import PUT_BACK
from node.store.log.end import TailWalk, ends_at
from node.store.log.reader import Bounds, LogReader, columns_past_damage, next_record
from node.store.log.segments import SegmentList, list_folder
from node.store.opening import StoppedStore
from node.store.quarantine import keep_bytes
from node.store.queues import refuse_batch_queues
from node.store.verify.own_files import disagreement
from protocol import names
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.record.codec import FILLER_BYTES, RECORD_BYTES_MIN, Filler, Torn, decode
from protocol.record.columns import Ints, RecordColumns

log = logging.getLogger("keelog.writer")
log_of_cuts = logging.getLogger("keelog.recovery")

SETTLE_RECORDS = 200_000
"""So many records are held back, so that a queue is looked up once for all of them."""

LINE_EVERY_S = 1.0
REPORT_EVERY_S = 0.2
_MIB = 1024 * 1024

TAILS_AGE_BYTES_MAX = 8 * 1024 * 1024
"""An older snapshot is replaced at once, so that the start after the next kill is short."""
WALK_BYTES_MAX = 256 * 1024 * 1024
"""Up to this size, records that a broker appended after us are walked; beyond it the queues' ends
come from the queues' files."""

SECTOR_BYTES = 512
"""A disk writes a sector whole or not at all."""
FOLLOWING_BYTES_MAX = 64 * 1024 * 1024
"""How far after the end whole records are looked for, for the report."""
_COPY_BYTES = 1024 * 1024
_ZEROS_MIN = 8
"""Fewer zero bytes in a row than this say nothing: a record's numbers have them too."""

Progress = Callable[[int, int], None]
"""Called with (done, total) log bytes, window by window."""


class LogEnd(NamedTuple):
    """The end of a log in its folder, and the length of its segments."""

    root: Path
    offset: int
    segment_bytes: int

    @property
    def folder(self) -> Path:
        return self.root / names.COMMIT_LOG_DIR

    def path(self, base: int) -> Path:
        return self.folder / names.offset_file_name(base)

    def path_at(self, offset: int) -> Path:
        return self.path(offset - offset % self.segment_bytes)


@dataclass(slots=True)
class Recovery:
    """The findings. `cut` says why bytes from `end` on must go; None if there are none."""

    root: Path
    segment_bytes: int
    min_offset: int
    end: int
    floor: int
    tails: dict[Queue, int]
    epochs: list[checkpoints.EpochLine]
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
        return LogEnd(self.root, self.end, self.segment_bytes)


def ignore_progress(_done: int, _total: int) -> None:
    """Of a recovery that nobody follows."""


def examine(root: Path, settings: Settings, notify: Progress = ignore_progress) -> Recovery:
    """Walks the log from the snapshot of the queues' ends on. Changes nothing.

    Raises StoreDamaged for damage below the durable floor, and for files that cannot be a log;
    StoreError for queues that a node does not have.
    """
    refuse_batch_queues(root)
    condition = read_condition(root)
    listing = list_folder(root / names.COMMIT_LOG_DIR)
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
            raise _refused(
                root, root / names.COMMIT_LOG_DIR, 0, "there is no segment", condition.floor
            )
        return found
    with closing(OpenFiles()) as files:
        segments = SegmentList(root / names.COMMIT_LOG_DIR, listing, files)
        found.end = segments.end
        if segments.end < condition.floor:
            path, why = listing.files[-1][1], "the log ends with this file"
            raise _refused(root, path, segments.end, why, condition.floor)
        if condition.tails is not None:
            _check_tails(condition.tails, segments, found, files)
        total = written_end(LogEnd(root, 0, found.segment_bytes))
        _walk(segments, condition, settings, found, lambda done: notify(min(done, total), total))
        if found.cut is not None:
            found.looks_torn = looks_torn(segments, found.cut)
            found.records_behind, found.first_behind = records_behind(
                segments, found.cut, found.last_store_timestamp
            )
    return found


def _next_epoch(root: Path, epochs: list[checkpoints.EpochLine]) -> int:
    """One above the highest epoch in our files: progress files may outlive `epochs`."""
    known = [line.epoch for line in epochs]
    known += [progress.epoch for progress in checkpoints.list_progress(root).values()]
    return max(known, default=0) + 1


def _refused(
    root: Path, path: Path, offset: int, why: str, floor: int | None = None
) -> StoreDamaged:
    if floor is not None:
        why += f"; everything below {floor} was durable, so this is damage and no torn tail"
    return StoreDamaged(str(path), offset, why, f"keelog store repair {root}")


def _check_tails(
    tails: checkpoints.Tails, segments: SegmentList, found: Recovery, files: OpenFiles
) -> None:
    """Raises StoreDamaged for a snapshot of another log: with it, offsets would be given twice."""
    why = disagreement(found.root, tails, found.epochs, segments, files, found.removed)
    if why is not None:
        where = str(checkpoints.own_dir(found.root) / checkpoints.TAILS_FILE)
        raise StoreDamaged(where, tails.last_record, f"is of another log: {why}", PUT_BACK)


def _walk(
    segments: SegmentList,
    condition: Condition,
    settings: Settings,
    found: Recovery,
    notify: Callable[[int], None],
) -> None:
    """Fills in the end and the queues' next offsets. Raises StoreDamaged."""
    tails = condition.tails
    if tails is None or tails.at < found.min_offset or _is_far(segments, condition, tails, found):
        stopped = _walk_of_broker(settings, found, tails, notify)
    else:
        found.tails, found.tails_at = tails.next_offset, tails.at
        _check_last_record(segments, tails, found)
        reader = LogReader(segments, Bounds(segments.start, segments.end))
        walk = TailWalk(reader, tails.at, condition)
        notes = TailNotes(found.tails, found.removed)
        for columns in walk:
            _note(found, notes, columns)
            notify(walk.end)
        notes.settle()
        found.end, stopped = walk.end, walk.stop
    if stopped is None:
        found.end += _filler_bytes(found)
    if found.end < found.floor:
        path = found.log_end.path_at(found.end)
        why = stopped.why if stopped is not None else "the log ends here"
        raise _refused(found.root, path, found.end, why, found.floor)
    if (stopped is not None and stopped.kind != "end") or has_bytes_behind(found.log_end):
        found.cut = stopped or Torn(found.end, "cut", "what stands here is no whole record")


def _is_far(
    segments: SegmentList, condition: Condition, tails: checkpoints.Tails, found: Recovery
) -> bool:
    """Whether a broker has appended more than WALK_BYTES_MAX after our snapshot."""
    reader = LogReader(segments, Bounds(segments.start, segments.end))
    if condition.was_ours or ends_at(reader, tails.at):
        return False
    end = written_end(LogEnd(found.root, tails.at, found.segment_bytes))
    return end - tails.at > WALK_BYTES_MAX


def _check_last_record(segments: SegmentList, tails: checkpoints.Tails, found: Recovery) -> None:
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
        path = found.log_end.path_at(offset)
        raise _refused(found.root, path, offset, why, found.floor)


def _walk_of_broker(
    settings: Settings,
    found: Recovery,
    known: checkpoints.Tails | None,
    notify: Callable[[int], None],
) -> Torn | None:
    """Recovers as a broker does: the end from the last segments, the queues' ends from their files
    and from the log above them. `known`: a snapshot of ours that is too old to walk from.

    Returns why the walk stopped at the end.
    """
    with StoppedStore(found.root, settings, on_window=lambda done, _total: notify(done)) as store:
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
                notify(noted)
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
        path = found.log_end.path_at(offset)
        raise _refused(found.root, path, offset, why, found.floor)


class TailNotes:
    """Moves each queue's next offset after its last record. `settle` brings `tails` up to date."""

    def __init__(self, tails: dict[Queue, int], removed: Removed = NOTHING_REMOVED) -> None:
        self._tails = tails
        self._removed = removed
        self._topics: dict[str, int] = {}
        self._keys: list[Ints] = []
        self._offsets: list[Ints] = []
        self._count = 0

    def add(self, columns: RecordColumns) -> None:
        """Takes records in log order; those without a queue unit do not count."""
        requests = DispatchRequests(self._removed.dispatched(columns))
        columns, topics = requests.columns, self._topics
        if not len(columns):
            return
        rows = np.flatnonzero(requests.is_queued)
        ids = np.array([topics.setdefault(name, len(topics)) for name in requests.topics])
        self._keys.append((ids[requests.topic_id[rows]] << 32) + columns.queue_id[rows])
        self._offsets.append(columns.queue_offset[rows])
        self._count += len(rows)
        if self._count >= SETTLE_RECORDS:
            self.settle()

    def settle(self) -> None:
        """The last record of a queue counts, also where its offsets once fell back."""
        if not self._count:
            return
        key, offset = np.concatenate(self._keys), np.concatenate(self._offsets)
        last, at = np.unique(key[::-1], return_index=True)
        topics = list(self._topics)
        following = (offset[::-1][at] + 1).tolist()
        for topic, queue_id, number in zip(
            (last >> 32).tolist(), (last & 0xFFFFFFFF).tolist(), following, strict=True
        ):
            self._tails[Queue(topics[topic], queue_id)] = number
        self._keys, self._offsets, self._count = [], [], 0


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
    line = checkpoints.EpochLine(found.epoch, found.end, crc, found.was_clean)
    lines = [*found.epochs, line]
    kept = [line for line, following in pairwise(lines) if following.start >= found.min_offset]
    checkpoints.save_epochs(found.root, [*kept, line])
    if found.tails_at is None or found.end - found.tails_at >= TAILS_AGE_BYTES_MAX:
        times = (found.last_record_offset, found.last_store_timestamp)
        with disk.if_room():
            checkpoints.save_tails(
                found.root, checkpoints.Tails(found.end, dict(found.tails), *times)
            )
    return found.epoch


def _report(found: Recovery, cut: Torn) -> dict[str, Any]:
    return {
        "cut_at": found.end,
        "file": str(found.log_end.path_at(found.end)),
        "kind": cut.kind,
        "why": cut.why,
        "looks_like": "torn write" if found.looks_torn else "corruption",
        "records_behind": found.records_behind,
        "first_record_behind": found.first_behind,
        "floor": found.floor,
        "epoch": found.epoch,
    }


def warn_of_lost(found: Recovery) -> None:
    """Call it after `examine`, before anything is written."""
    for event, details in _losses(found):
        log.warning(event, extra=fields(**details))


def replace_lost_table(found: Recovery) -> None:
    """Writes a table of topics where it is lost, so that no later start warns of it again.

    Its topics come back as they are used. It is later than each removal of a topic: else a start
    would take the topic of now for the removed one.
    """
    if _lacks_table(found):
        removals = [topic.table_version for topic in found.removed.topics.values()]
        with disk.if_room():
            TopicsFile(found.root).begin(max(removals, default=0), now_ms())


def _lacks_table(found: Recovery) -> bool:
    topics = found.root / names.TOPICS_FILE
    return bool(found.tails) and not (topics.exists() or disk.backup_of(topics).exists())


def _losses(found: Recovery) -> Iterator[tuple[str, Mapping[str, Any]]]:
    root = found.root
    if not found.epochs:
        if found.end:
            what = "the store was another owner's, or they are lost"
            yield (
                "the notes about this log are missing",
                {"folder": checkpoints.own_dir(root), "why": what},
            )
    elif not found.was_clean:
        where = {"mark": root / names.ABORT_FILE, "walked_from": found.tails_at, "end": found.end}
        yield "the node did not stop in order: the end of the log was looked for", where
    if found.epochs and not (checkpoints.own_dir(root) / checkpoints.FLOOR_FILE).exists():
        path = checkpoints.own_dir(root) / checkpoints.FLOOR_FILE
        yield "the note of what is durable is lost", {"file": path, "known": found.floor}
    if _lacks_table(found):
        count, path = len({queue.topic for queue in found.tails}), root / names.TOPICS_FILE
        what = "topics without messages are gone, all others have the default settings"
        yield "the table of topics is lost", {"file": path, "topics": count, "why": what}
    at_stop = read_log(root)  # None after a start of the machine
    if at_stop is not None and at_stop.min_offset < found.min_offset:
        before, what = at_stop.min_offset, "segments were removed while no node ran"
        yield "the log begins later", {"before": before, "now": found.min_offset, "why": what}


class RecoveryProgress:
    """Called with (done, total) log bytes; says a line on stderr each second, reports more often.

    A recovery that is over within a second says nothing.
    """

    def __init__(
        self,
        report: Callable[[int, int], None],
        say: Callable[[str], object] = stderr.write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report = report
        self._say = say
        self._clock = clock
        self._begun: tuple[float, int] | None = None
        self._said_at = self._reported_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if self._begun is None:
            self._begun = now, done
            self._said_at = now
        if now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            self._report(done - self._begun[1], total - self._begun[1])
        if now - self._said_at >= LINE_EVERY_S:
            self._said_at = now
            began_at, base = self._begun
            self._say(progress_line(done - base, total - base, now - began_at) + "\n")


def progress_line(done: int, total: int, elapsed_s: float) -> str:
    """`recovering: 34 % of 1200 MiB of the log, about 7 s left`; bytes since the walk began."""
    total = max(total, done, 1)
    left_s = elapsed_s * (total - done) / done if done else None
    eta = "" if left_s is None else f", about {left_s:.0f} s left"
    return f"recovering: {done / total:.0%} of {total / _MIB:.0f} MiB of the log{eta}"


def segment_bases(root: Path) -> list[int]:
    """The first offsets of the segments that are there."""
    directory = root / names.COMMIT_LOG_DIR
    found = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    bases = map(names.parse_offset_file_name, found)
    return sorted(base for base in bases if base is not None)


def has_bytes_behind(end: LogEnd) -> bool:
    """Whether there are bytes other than zeros at or after the end."""
    return any(True for _ in _bytes_behind(end))


def written_end(end: LogEnd) -> int:
    """Where data ends on the disk, at or after `end`: what was never written is a hole."""
    written = end.offset
    for base in segment_bases(end.root):
        if base + end.segment_bytes > end.offset:
            with held_open(os.open(end.path(base), os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
                for _, stop in data_extents(descriptor, 0, end.segment_bytes):
                    written = max(written, base + stop)
    return written


def _bytes_behind(end: LogEnd) -> Iterator[tuple[int, int, bytes]]:
    """(segment base, position, bytes) of what is not zero at or after the end, by MiB at most."""
    for base in segment_bases(end.root):
        if base + end.segment_bytes <= end.offset:
            continue
        with held_open(os.open(end.path(base), os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            start = max(end.offset - base, 0)
            for position, piece in nonzero_pieces(descriptor, start, end.segment_bytes):
                yield base, position, piece.rstrip(b"\0")


def looks_torn(segments: SegmentList, torn: Torn) -> bool:
    """Whether the bad record looks as a power loss leaves one: a sector of it is wholly zero.

    Else something changed bytes that were written: a failing disk, a program, a hand.
    """
    segment = segments.find(torn.position)
    if segment is None:
        return True
    position = torn.position - segment.start
    size = int.from_bytes(segment.read(position, 4), "big", signed=True)
    if not RECORD_BYTES_MIN <= size <= segment.size - position:
        # Its length cannot be believed, so the sector in which it begins decides.
        size = SECTOR_BYTES - position % SECTOR_BYTES
    data = segment.read(position, size)
    cuts = range(SECTOR_BYTES - position % SECTOR_BYTES, size, SECTOR_BYTES)
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    ends_in_zero = data[-1:] == b"\0" and data[:_ZEROS_MIN].strip(b"\0") != b""
    return ends_in_zero or any(len(part) >= _ZEROS_MIN and not any(part) for part in parts)


def records_behind(segments: SegmentList, torn: Torn, not_before_ms: int) -> tuple[int, int | None]:
    """How many whole records of at least that store time follow a bad one, and where the first
    of them stands."""
    if segments.find(torn.position) is None:
        return 0, None
    stop = min(segments.end, torn.position + FOLLOWING_BYTES_MAX)
    reader = LogReader(segments, Bounds(torn.position, stop))
    first = next_record(reader, torn.position + 1, not_before_ms)
    if first is None:
        return 0, None
    items = columns_past_damage(reader, first)
    return sum(len(item) for item in items if isinstance(item, RecordColumns)), first


def quarantine(end: LogEnd, report: dict[str, Any]) -> Path:
    """Copies the bytes after the end to a folder of their own, with a report; returns it."""
    pieces = ((base + position, chunk) for base, position, chunk in _bytes_behind(end))
    folder = keep_bytes(end.root, end.offset, pieces, report)
    details = fields(offset=end.offset, why=report["why"], kept_in=folder)
    log_of_cuts.warning("log cut", extra=details)
    return folder


def zero_behind(end: LogEnd) -> None:
    """So that no stale record revives when the log grows up to it."""
    for base, position, chunk in _bytes_behind(end):
        with held_open(disk.open_file(end.path(base))) as descriptor:
            disk.write_all(descriptor, bytes(len(chunk)), position)
            disk.sync(descriptor)


def drop_segments_behind(end: LogEnd) -> None:
    """Segments wholly after the end: prepared ones that were never used, or cut ones."""
    later = [base for base in segment_bases(end.root) if base >= end.offset and base > 0]
    # From the last one on, and each durably: a gap would be damage to a start after a kill or a
    # power loss in the middle.
    for base in reversed(later):
        disk.unlink(end.path(base))
        disk.sync_dir(end.folder)


def make_tail_durable(end: LogEnd, rewrite_from: int, sync_from: int) -> None:
    """Rewrites [rewrite_from, end) and syncs every segment that reaches above `sync_from`.

    After a failed flush the page cache may hold clean pages that the disk never got, and a second
    sync alone would lie.
    """
    for base in segment_bases(end.root):
        if base + end.segment_bytes <= sync_from:
            continue
        with held_open(disk.open_file(end.path(base))) as descriptor:
            position = max(rewrite_from - base, 0)
            stop = min(end.offset - base, end.segment_bytes)
            while position < stop:
                chunk = os.pread(descriptor, min(_COPY_BYTES, stop - position), position)
                disk.write_all(descriptor, chunk, position)
                position += len(chunk)
            disk.sync(descriptor)
    if end.folder.is_dir():
        disk.sync_dir(end.folder)
