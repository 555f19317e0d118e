"""Where the log of a store that nobody runs ends: a short walk from a place that can be trusted.

After a clean stop the walk begins near the end. After any other it begins at our floor, or where
a broker's recovery would (CommitLog#recoverAbnormally), and the log ends at the first bad record,
as it will after recovery.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from node.store.log.damage import next_record
from node.store.log.reader import Bounds, LogReader
from node.store.log.segment import Segment
from node.store.log.segment_list import SegmentList
from node.store.shutdown_state import Condition
from protocol.errors import StoreDamaged
from protocol.record.codec import FILLER_BYTES, Filler, Record, Torn, decode
from protocol.record.columns import RecordColumns, crc_property_rows

RECOVER_FILES_MAX = 10
"""commitLogRecoverMaxNum: how many files a broker's recovery goes back."""

_HEAD_BYTES = 4096


class WalkedEnd(NamedTuple):
    """Where the walk began; the log's end, and what stands there (None: a blank closes the last
    segment)."""

    walked_from: int
    end: int
    stop: Torn | None


class TailWalk:
    """One walk to the log's end. Iterate over it once; then `end` and `stop` tell what was found.

    Above the floor a record must be as its writer left it, and so must the blank that closes a
    segment: what a power loss kept of a page that never reached the disk is no record, even
    where its body's checksum agrees.
    """

    def __init__(self, reader: LogReader, start: int, condition: Condition) -> None:
        self.end = self.start = start
        self.stop: Torn | None = None
        self._reader = reader
        self._floor = condition.floor
        self._was_ours = condition.was_ours
        self._is_sealed = condition.is_sealed

    def __iter__(self) -> Iterator[RecordColumns]:
        segments, position = self._reader.segments, self.start
        while self.stop is None and position < segments.end:
            segment = segments.find(position)
            if segment is None:
                where, found = str(segments.folder), "no segment holds this offset"
                raise StoreDamaged(where, position, found, "keelog store verify")
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
            self._check_blank(position, segment)

    def _stop(self, stop: Torn) -> None:
        self.stop, self.end = stop, stop.position

    def _first_torn(self, columns: RecordColumns) -> tuple[int, str]:
        """The first record that our writer cannot have left so, and why; or all, and nothing.

        What never reached the disk is zero, and properties end in no zero byte when we wrote them.
        """
        offsets = columns.physical_offset
        if not self._was_ours or int(offsets[-1]) < self._floor:
            return len(columns), ""
        last = columns.data[columns.start + columns.size - 1]
        torn, why = (columns.properties_length > 0) & (last == 0), "the properties end in a zero"
        if self._is_sealed:
            torn, why = (
                ~crc_property_rows(columns)[0],
                "the checksum of the whole record is missing",
            )
        torn &= offsets >= self._floor
        return (int(np.argmax(torn)), why) if torn.any() else (len(columns), "")

    def _check_blank(self, position: int, segment: Segment) -> None:
        """Of the eight bytes that close a segment only some may have reached the disk."""
        stands = decode(segment.read(position - segment.start, FILLER_BYTES), 0)
        left = segment.end - position
        if isinstance(stands, Filler) and stands.size != left:
            why = f"a blank of {stands.size} bytes, {left} are left in the segment"
            self._stop(Torn(position, "bad_size", why))


def find_tail(
    segments: SegmentList,
    condition: Condition,
    hints: Iterable[int] = (),
    on_window: Callable[[int, int], None] | None = None,
    past_damage: bool = False,
) -> WalkedEnd:
    """Walks to the end. `hints` are offsets where a record may start, near the end; `on_window` is
    told (done, total) log bytes.

    `past_damage`: after a stop in order a bad record is no end when records follow it; they are
    told from old bytes by their store time. Raises StoreDamaged, StorePermission.
    """
    if not segments.segments:
        return WalkedEnd(0, 0, None)
    reader = LogReader(segments, Bounds(segments.start, segments.end))
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
    # No stop: the last segment is closed and there is no next one: a broker writes over the blank.
    return WalkedEnd(start, walk.end, walk.stop)


def _start(reader: LogReader, condition: Condition, hints: Iterable[int]) -> int:
    """Where the walk begins: never below our floor, which every owner has kept."""
    floor = min(max(condition.floor, reader.segments.start), reader.segments.end)
    if condition.was_ours:
        return floor
    if not condition.is_clean:
        return max(floor, _start_of_broker(reader, condition))
    if condition.floor and ends_at(reader, floor):
        return floor
    return max(floor, _start_after_clean_stop(reader, hints))


def ends_at(reader: LogReader, offset: int) -> bool:
    """Whether nothing was appended at an offset: then it is still the log's end."""
    if offset >= reader.segments.end:
        return True
    stands = reader.peek(offset)
    return isinstance(stands, Torn) and stands.kind == "end"


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
    """The record that a segment begins with; None when it holds none."""
    head = segment.read(0, min(_HEAD_BYTES, segment.size))
    size = int.from_bytes(head[:4], "big", signed=True)
    if len(head) < size <= segment.size:
        head = segment.read(0, size)
    found = decode(head, 0, segment.start)
    return found if isinstance(found, Record) else None
