"""Reads the CommitLog between two bounds: single records, raw bytes, or columns of many.

The owner of a reader sets the bounds: for a stopped store from the walk to the log's end, for a
running one from the writer's page. Nothing outside them is read. Large replies go into memory that
is used again: fresh pages cost more than the copy into them.

After damage a read goes on where the next record proves itself: by its magic, the log offset that
it contains, its lengths and its checksum. After the log's real end there may be old records, which
a broker cut off without wiping them: their store times are before that of the last good record.
"""

import re
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from node.store.file_cache import see_all_damage
from node.store.log.segments import Segment, SegmentList
from protocol.errors import NotFound, StoreDamaged
from protocol.kernel.loader import Bytes
from protocol.record import codec
from protocol.record.check import SealedRecord
from protocol.record.columns import RecordColumns, scan

WINDOW_BYTES = 1 << 20
FIRST_WINDOW_BYTES = 16 * 1024
"""Usually the next record is near; each further window is four times as large."""
BUFFERS_BYTES_MAX = 16 << 20
"""Memory that stays allocated; further blocks are allocated and freed each time."""
BUFFER_BYTES_MIN = 1 << 16
"""A smaller block is not worth keeping."""

Few = TypeVar("Few", codec.Record, SealedRecord)

_ID_HINT = "look for the message by one of its keys: keelog msg find --topic T --key K"
_PEEK_BYTES, _PAGE_BYTES = 1024, 4096
_HEAD = struct.Struct(">iI20xq").unpack_from
"""TOTALSIZE, MAGICCODE and PHYSICALOFFSET."""
_MAGIC = re.compile(
    b"|".join(re.escape(one.to_bytes(4, "big")) for one in (codec.MAGIC_V1, codec.MAGIC_V2))
)
_MAGIC_AT, _MAGIC_END = 4, 8


@dataclass(slots=True)
class Bounds:
    """The readable part of the log: [`start`, `end`)."""

    start: int
    end: int


class LogReader:
    """The log of one store.

    After `columns` has ended, `stopped` is the fault that ended it; None if it reached its end.
    `bounds`: None for all of the files.
    """

    def __init__(self, segments: SegmentList, bounds: Bounds | None = None) -> None:
        self.segments = segments
        self.bounds = bounds or Bounds(segments.start, segments.end)
        self.buffers = Buffers()
        self.stopped: codec.Torn | None = None

    @property
    def min_offset(self) -> int:
        """The log's begin."""
        return self.bounds.start

    @property
    def end(self) -> int:
        """The log's end, exclusive."""
        return self.bounds.end

    @property
    def segment_bytes(self) -> int:
        """Length of each segment; 0 when there is none."""
        return self.segments.segment_bytes

    def holds(self, offset: int, size: int) -> bool:
        """True if these bytes lie within the bounds and within one segment."""
        if offset < self.bounds.start or size < 0 or offset + size > self.bounds.end:
            return False
        step = self.segments.segment_bytes
        return step > 0 and offset % step + size <= step

    def segment_at(self, offset: int) -> Segment:
        """The segment of an offset within the bounds. Raises NotFound, StoreDamaged."""
        if not self.bounds.start <= offset < self.bounds.end:
            raise NotFound(
                f"offset {offset} is outside the log, which is [{self.min_offset}, {self.end})",
                "see the bounds with: keelog status, or keelog store info DIR",
            )
        segment = self.segments.find(offset)
        if segment is None:
            folder, found = self.segments.folder, "no segment holds this offset"
            raise StoreDamaged(str(folder), offset, found, see_all_damage(folder))
        return segment

    def raw(self, offset: int, size: int) -> memoryview:
        """The bytes of one record; size, magic and place are checked, checksums are not.

        Raises NotFound outside the log, StoreDamaged without a record of `size` bytes there.
        """
        if not self.holds(offset, size):
            raise NotFound(f"no record of {size} bytes at offset {offset}: not within the log")
        segment = self.segment_at(offset)
        view = segment.view()
        position = offset - segment.start
        found = f"{size} bytes are no record" if size < codec.SHORT_HEAD.size else ""
        if not found:
            total, magic, place = _HEAD(view, position)
            if (total, place) != (size, offset) or magic not in (codec.MAGIC_V1, codec.MAGIC_V2):
                found = (
                    f"size {total}, magic {magic:08x}, place {place} where {size} bytes should be"
                )
        if found:
            raise StoreDamaged(str(segment.path), offset, found, see_all_damage(segment.path))
        return view[position : position + size]

    def payload(self, offsets: Sequence[int], sizes: Sequence[int]) -> tuple[bytes, int]:
        """The bytes at these places, back to back, and the number of places; verifies nothing.

        All places must be within the log. Ends before a segment that cannot be opened; raises
        StoreDamaged if that is the first one.
        """
        pieces: list[memoryview] = []
        start = end = run_start = run_end = -1
        view = memoryview(b"")
        count = 0
        for offset, size in zip(offsets, sizes, strict=True):
            if not start <= offset < end:
                if run_end > run_start:
                    pieces.append(view[run_start - start : run_end - start])
                run_start = run_end = -1
                try:
                    segment = self.segments.find(offset) or self.segment_at(offset)
                    start, end, view = segment.start, segment.end, segment.view()
                except StoreDamaged:
                    if not count:
                        raise
                    break
                run_start = offset
            elif offset != run_end:
                pieces.append(view[run_start - start : run_end - start])
                run_start = offset
            run_end = offset + size
            count += 1
        if run_end > run_start:
            pieces.append(view[run_start - start : run_end - start])
        return b"".join(pieces), count

    def peek(self, offset: int) -> codec.Record | codec.Filler | codec.Torn:
        """Decodes what is at an offset of the log. Raises NotFound outside it."""
        segment = self.segment_at(offset)
        position = offset - segment.start
        left = min(segment.end, self.end) - offset
        # Most records are short: one read gets all of such a record, and touches no page after it.
        ahead = max(codec.SHORT_HEAD.size, min(_PEEK_BYTES, _PAGE_BYTES - position % _PAGE_BYTES))
        window = segment.read(position, min(ahead, left))
        if len(window) >= codec.SHORT_HEAD.size:
            size, magic, place = _HEAD(window)
            if magic in (codec.MAGIC_V1, codec.MAGIC_V2) and size >= codec.RECORD_BYTES_MIN:
                # A client may name any offset: check the head before a read of the stated size.
                if size > left:
                    return codec.Torn(offset, "cut", f"a record of {size} bytes, {left} are left")
                if place != offset:
                    why = f"says that it stands at {place}, not {offset}"
                    return codec.Torn(offset, "wrong_place", why)
                if size > len(window):
                    window = segment.read(position, size)
        found = codec.decode(window, 0, offset)
        if isinstance(found, codec.Torn):
            return codec.Torn(offset, found.kind, found.why)
        return found

    def record_at(self, offset: int) -> codec.Record:
        """The record at `offset`, verified.

        Raises NotFound outside the log and at a segment's closing blank, StoreDamaged otherwise.
        """
        found = self.peek(offset)
        if isinstance(found, codec.Record):
            return found
        if isinstance(found, codec.Filler):
            raise NotFound(f"no record at offset {offset}: the segment ends here")
        path = self.segment_at(offset).path
        raise StoreDamaged(str(path), offset, found.why, see_all_damage(path))

    def look_up(self, offset: int) -> codec.Record:
        """As `record_at`, for an offset from outside: raises NotFound where no record starts."""
        found = self.peek(offset)
        if isinstance(found, codec.Torn) and found.kind != "bad_crc":
            raise NotFound(f"no record starts at offset {offset}: {found.why}", _ID_HINT)
        return found if isinstance(found, codec.Record) else self.record_at(offset)

    def few(
        self, start: int, stop: int, count_max: int, read: Callable[[bytes, int, int], Few | None]
    ) -> list[Few] | None:
        """The records of [start, stop), verified by `read`: faster than columns for a few.

        A record must start at `start`, and one must end at `stop`. None for more than `count_max`
        records, or anything else: then the caller reads columns, which report what is there.
        """
        segment = self.segment_at(start)
        if stop > min(segment.end, self.bounds.end):
            return None
        data = segment.read(start - segment.start, stop - start)
        records: list[Few] = []
        position = 0
        while position < len(data):
            found = read(data, position, start + position)
            if len(records) >= count_max or found is None:
                return None
            records.append(found)
            position += len(found.raw)
        return records

    def columns(
        self,
        start: int,
        stop: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        verify: bool = True,
    ) -> Iterator[RecordColumns]:
        """Records that start in [start, stop), window by window, across segments.

        A record must start at `start`. Sets `stopped`. Each item keeps its window in memory.
        """
        self.stopped = None
        end = self.end
        stop = end if stop is None else min(stop, end)
        position, wanted = start, window_bytes
        while position < stop:
            segment = self.segment_at(position)
            left = min(segment.end, end) - position
            data = segment.read(position - segment.start, min(wanted, left))
            found = scan(data, position, verify=verify)
            if len(found.columns):
                yield _below(found.columns, stop)
            wanted = window_bytes
            match found.stop:
                case None:
                    position += found.end
                case codec.Filler():
                    position = segment.end
                case codec.Torn(kind="cut") if found.end:
                    position += found.end
                case codec.Torn(kind="cut") if (
                    len(data)
                    < (
                        size := max(
                            int.from_bytes(data[:4], "big", signed=True), codec.FILLER_BYTES
                        )
                    )
                    <= left
                ):
                    wanted = size
                case codec.Torn(kind=kind, why=why):
                    self.stopped = codec.Torn(position + found.end, kind, why)
                    return


def whole_record(data: bytes, position: int, offset: int) -> codec.Record | None:
    """For `LogReader.few`; `sealed_at` is faster, as it decodes only queue and number."""
    found = codec.decode(data, position, offset)
    return found if isinstance(found, codec.Record) else None


def _below(columns: RecordColumns, stop: int) -> RecordColumns:
    if int(columns.physical_offset[-1]) < stop:
        return columns
    return columns.take(columns.physical_offset < stop)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes within the log that are not a record; the next record starts at `resumed_at`."""

    where: str
    torn: codec.Torn
    resumed_at: int


def columns_past_damage(
    log: LogReader,
    start: int,
    stop: int | None = None,
    verify: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[RecordColumns | Damage]:
    """As `LogReader.columns`, but yields a Damage for damaged bytes and goes on after them.

    Ends if no record can be proved after the damage, which is then in `log.stopped`.
    """
    last_time = 0
    stop = log.end if stop is None else min(stop, log.end)
    while start < stop:
        for columns in log.columns(start, stop, window_bytes, verify):
            last_time = int(columns.store_timestamp[-1])
            yield columns
        torn = log.stopped
        if torn is None:
            return
        resumed = next_record(log, torn.position + 1, last_time)
        if resumed is None:
            log.stopped = torn
            return
        log.stopped = None  # also where `stop` is not above the next record
        yield Damage(str(log.segment_at(torn.position).path), torn, resumed)
        start = resumed


def next_record(
    log: LogReader, position: int, not_before: int = 0, stop: int | None = None
) -> int | None:
    """The first offset from `position` on of a record with a store time from `not_before` on.

    The record starts below `stop`, and may end above it. None without such a record.
    """
    limit = log.end if stop is None else min(stop, log.end)
    while position < limit:
        segment = log.segment_at(position)
        for place in _magic_places(log, position, min(segment.end, limit + _MAGIC_END, log.end)):
            if place >= limit:
                return None
            found = log.peek(place)
            if isinstance(found, codec.Record) and found.head.store_timestamp >= not_before:
                return place
        position = segment.end
    return None


def wrong_blank(log: LogReader, position: int) -> codec.Torn | None:
    """The fault of a blank at `position` whose size is not what is left of its segment; else None.

    Readers skip the rest of the segment all the same, as a broker does.
    """
    segment = log.segments.find(position)
    if segment is None or position >= log.end or position + codec.FILLER_BYTES > segment.end:
        return None
    found = codec.decode(segment.read(position - segment.start, codec.FILLER_BYTES), 0)
    left = segment.end - position
    if not isinstance(found, codec.Filler) or found.size == left:
        return None
    why = f"a blank of {found.size} bytes, {left} are left in the segment"
    return codec.Torn(position, "bad_size", why)


def _magic_places(log: LogReader, position: int, stop: int) -> Iterator[int]:
    """Yields the offsets in one segment where a record's magic code is in its place, in order."""
    segment = log.segment_at(position)
    window = FIRST_WINDOW_BYTES
    while position < stop:
        count = min(window, stop - position)
        data = segment.read(position - segment.start, count)
        for found in _MAGIC.finditer(data, _MAGIC_AT):
            yield position + found.start() - _MAGIC_AT
        if count < window:
            return
        position += count - (_MAGIC_END - 1)  # a code may lie across two windows
        window = min(4 * window, WINDOW_BYTES)


class Buffers:
    """Blocks of memory. A block is in use while an array from `take`, or a view of it, exists.

    One thread takes blocks; any thread may drop them.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[Bytes, weakref.ref[Bytes]]] = deque()
        self.bytes = 0

    def take(self, size: int) -> Bytes:
        """An array of `size` bytes with arbitrary content."""
        if size < BUFFER_BYTES_MIN:
            return np.empty(size, np.uint8)
        for _ in range(len(self._blocks)):
            block, lent = self._blocks.popleft()
            if lent() is not None:
                self._blocks.append((block, lent))
            elif len(block) >= size:
                return self._lend(block, size)
            else:
                self.bytes -= len(block)  # too small for the replies of today
        room = 1 << (size - 1).bit_length()
        if self.bytes + room > BUFFERS_BYTES_MAX:
            return np.empty(size, np.uint8)
        self.bytes += room
        return self._lend(np.empty(room, np.uint8), size)

    def _lend(self, block: Bytes, size: int) -> Bytes:
        part = block[:size]
        self._blocks.append((block, weakref.ref(part)))
        return part
