"""Finds the end of a stopped store's log, by a short walk from an offset that can be trusted.

After a clean stop the walk begins near the end. After a crash it begins at our floor, or where a
broker's recovery would (CommitLog#recoverAbnormally), and the log ends at the first bad record, as
it will after recovery.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from node.store.condition import Condition
from node.store.log.reader import LogReader, next_record, wrong_blank
from node.store.log.segments import Segment, SegmentList
from protocol.record.codec import Record, Torn, decode
from protocol.record.columns import RecordColumns, end_in_crc

RECOVER_FILES_MAX = 10
"""commitLogRecoverMaxNum: the number of files that a broker's recovery goes back."""

_HEAD_BYTES = 4096


class WalkedEnd(NamedTuple):
    """The log's end, where the walk to it began, and what is at the end (None: the last segment
    is full)."""

    walked_from: int
    end: int
    stop: Torn | None


class TailWalk:
    """One walk to the log's end. Iterate over it once; `end` and `stop` then have the result.

    Above the floor each record, and each blank that closes a segment, must be as the writer left
    it. A power loss may keep a part of a record, which does not count even if the checksum of its
    body agrees.
    """

    def __init__(self, reader: LogReader, start: int, condition: Condition) -> None:
        self.end = self.start = start
        self.stop: Torn | None = None
        self._reader = reader
        self._floor = condition.floor
        self._was_ours = condition.was_ours
        self._is_sealed = condition.is_sealed

    def __iter__(self) -> Iterator[RecordColumns]:
        position = self.start
        while self.stop is None and position < self._reader.end:
            segment = self._reader.segment_at(position)
            yield from self._segment(position, segment)
            position = segment.end

    def _segment(self, position: int, segment: Segment) -> Iterator[RecordColumns]:
        for columns in self._reader.columns(position, segment.end):
            row, why = self._first_torn(columns)
            whole = columns.take(slice(0, row))
            if len(whole):
                position = whole.end
                self.end = position
                yield whole
            if why:
                self._stop(Torn(int(columns.physical_offset[row]), "bad_crc", why))
                return
        if self._reader.stopped is not None:
            self._stop(self._reader.stopped)
        elif position < segment.end and position >= self._floor:
            torn = wrong_blank(self._reader, position)
            if torn is not None:
                self._stop(torn)

    def _stop(self, stop: Torn) -> None:
        self.stop, self.end = stop, stop.position

    def _first_torn(self, columns: RecordColumns) -> tuple[int, str]:
        """The row of the first record that our writer cannot have written, and why; or (all, "").

        Bytes that never reached the disk are zero, and the properties that we write do not end in
        a zero byte.
        """
        offsets = columns.physical_offset
        if not self._was_ours or int(offsets[-1]) < self._floor:
            return len(columns), ""
        last = columns.data[columns.start + columns.size - 1]
        torn, why = (columns.properties_length > 0) & (last == 0), "the properties end in a zero"
        if self._is_sealed:
            torn, why = ~end_in_crc(columns), "the checksum of the whole record is missing"
        torn &= offsets >= self._floor
        return (int(np.argmax(torn)), why) if torn.any() else (len(columns), "")


def find_tail(
    segments: SegmentList,
    condition: Condition,
    hints: Iterable[int] = (),
    on_window: Callable[[int, int], None] | None = None,
    past_damage: bool = False,
) -> WalkedEnd:
    """Walks to the log's end.

    `hints`: offsets near the end where a record may start. `on_window` gets (done, total) bytes of
    the log. `past_damage`: after a clean stop the log goes on past a bad record if newer records
    follow. Raises StoreDamaged, StorePermission.
    """
    if not segments.segments:
        return WalkedEnd(0, 0, None)
    reader = LogReader(segments)
    start = _start(reader, condition, hints)
    walk = TailWalk(reader, start, condition)
    last_time = 0
    for columns in walk:
        last_time = int(columns.store_timestamp[-1])
        if on_window is not None:
            on_window(walk.end - start, segments.end - start)
    while past_damage and condition.is_clean and walk.stop is not None:
        resumed = None
        if walk.stop.kind != "end":
            resumed = next_record(reader, walk.stop.position + 1, last_time)
        if resumed is None:
            break
        walk = TailWalk(reader, resumed, condition)
        for columns in walk:
            last_time = int(columns.store_timestamp[-1])
    # Without a stop the last segment is full: the end is at its blank, which a broker overwrites.
    return WalkedEnd(start, walk.end, walk.stop)


def _start(reader: LogReader, condition: Condition, hints: Iterable[int]) -> int:
    """Where the walk begins: never below our floor, below which no owner cuts."""
    floor = min(max(condition.floor, reader.segments.start), reader.segments.end)
    if condition.was_ours:
        return floor
    if not condition.is_clean:
        return max(floor, _start_of_broker(reader, condition))
    if condition.floor and ends_at(reader, floor):
        return floor
    return max(floor, _start_after_clean_stop(reader, hints))


def ends_at(reader: LogReader, offset: int) -> bool:
    """True if nothing was appended at `offset`, so that the log still ends there."""
    if offset >= reader.segments.end:
        return True
    found = reader.peek(offset)
    return isinstance(found, Torn) and found.kind == "end"


def _start_after_clean_stop(reader: LogReader, hints: Iterable[int]) -> int:
    segments = reader.segments
    for segment in reversed(segments.segments):
        if first_record(segment) is not None:
            for hint in sorted(hints, reverse=True):
                if hint < segment.start:
                    break
                if hint < segment.end and isinstance(reader.peek(hint), Record):
                    return hint
            return segment.start
    return segments.start


def _start_of_broker(reader: LogReader, condition: Condition) -> int:
    checkpoint = condition.checkpoint
    segments = reader.segments.segments
    for segment in reversed(segments[-RECOVER_FILES_MAX:]):
        record = first_record(segment)
        if record is None or record.head.store_timestamp == 0:
            continue
        if checkpoint.logics_physical_offset > 0:
            if record.physical_offset <= checkpoint.logics_physical_offset:
                return segment.start
        elif record.head.store_timestamp <= checkpoint.logics_msg_timestamp:
            return segment.start
    return segments[-RECOVER_FILES_MAX:][0].start


def first_record(segment: Segment) -> Record | None:
    """The first record of a segment; None without one."""
    head = segment.read(0, min(_HEAD_BYTES, segment.size))
    size = int.from_bytes(head[:4], "big", signed=True)
    if len(head) < size <= segment.size:
        head = segment.read(0, size)
    found = decode(head, 0, segment.start)
    return found if isinstance(found, Record) else None
