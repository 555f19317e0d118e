"""Where the log of a dead store ends: a short walk from a place that can be trusted.

After a clean stop the walk begins near the end. After any other it begins where a broker's
recovery would (CommitLog#recoverAbnormally), or at our floor, and the log ends at the first bad
record, as it will after recovery.
"""

from collections.abc import Iterable
from typing import NamedTuple

from node.store.condition import Condition
from node.store.log_reader import Bounds, LogReader
from node.store.segment import Segment
from node.store.segment_list import SegmentList
from protocol.record import Record, Torn, decode

RECOVER_FILES_MAX = 10
"""commitLogRecoverMaxNum: how many files a broker's recovery goes back."""

_HEAD_BYTES = 4096


class Tail(NamedTuple):
    """Where the walk began; the log's end, and what stands there (None: a blank closes the last
    segment)."""

    walked_from: int
    end: int
    stop: Torn | None


def find_tail(segments: SegmentList, condition: Condition, hints: Iterable[int] = ()) -> Tail:
    """Walks to the end. `hints` are offsets where a record may start, near the end.

    Raises StoreDamaged, StorePermission.
    """
    if not segments.segments:
        return Tail(0, 0, None)
    reader = LogReader(segments, Bounds(segments.start, segments.end))
    end = start = _start(reader, condition, hints)
    for columns in reader.columns(start):
        end = int(columns.physical_offset[-1] + columns.size[-1])
    if reader.stopped is not None:
        return Tail(start, reader.stopped.position, reader.stopped)
    # The last segment is closed and there is no next one: a broker writes over the blank.
    return Tail(start, end, None)


def _start(reader: LogReader, condition: Condition, hints: Iterable[int]) -> int:
    if condition.is_clean:
        return _start_after_clean_stop(reader, hints)
    if condition.is_ours and condition.floor:
        return _known_start(reader, condition.floor)
    return _start_of_broker(reader, condition)


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


def _known_start(reader: LogReader, floor: int) -> int:
    """Our floor is where a record ends; at a segment's end the next one is the place."""
    segments = reader.segments
    if floor <= segments.start:
        return segments.start
    return min(floor, segments.end)


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
