"""Resumes reading after damage, where the next record proves itself.

A record proves itself by its magic, the log offset that it contains, its lengths and its checksum.
After the log's real end there may be old records, which a broker cut off without wiping them: their
store times are before that of the last good record.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from node.store.log.reader import WINDOW_BYTES, LogReader
from protocol.record.codec import FILLER_BYTES, MAGIC_V1, MAGIC_V2, Filler, Record, Torn, decode
from protocol.record.columns import RecordColumns

FIRST_WINDOW_BYTES = 16 * 1024
"""Usually the next record is near; each further window is four times as large."""
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = 4
_MAGIC_END = _MAGIC_AT + len(_MAGICS[0])


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes within the log that are not a record; the next record starts at `resumed_at`."""

    where: str
    torn: Torn
    resumed_at: int


def next_record(
    log: LogReader, position: int, not_before: int = 0, stop: int | None = None
) -> int | None:
    """The first offset from `position` on of a record with a store time from `not_before` on.

    The record starts below `stop`, and may end above it. None without such a record.
    """
    limit = log.end if stop is None else min(stop, log.end)
    while position < limit:
        segment = log.segment_at(position)
        for place in _places(log, position, min(segment.end, limit + _MAGIC_END, log.end)):
            if place >= limit:
                return None
            found = log.peek(place)
            if isinstance(found, Record) and found.head.store_timestamp >= not_before:
                return place
        position = segment.end
    return None


def wrong_blank(log: LogReader, position: int) -> Torn | None:
    """The fault of a blank at `position` whose size is not what is left of its segment; else None.

    Readers skip the rest of the segment all the same, as a broker does.
    """
    segment = log.segments.find(position)
    if segment is None or position >= log.end or position + FILLER_BYTES > segment.end:
        return None
    found = decode(segment.read(position - segment.start, FILLER_BYTES), 0)
    left = segment.end - position
    if not isinstance(found, Filler) or found.size == left:
        return None
    why = f"a blank of {found.size} bytes, {left} are left in the segment"
    return Torn(position, "bad_size", why)


def _places(log: LogReader, position: int, stop: int) -> Iterator[int]:
    """Yields the offsets in one segment where a record's magic code is in its place, in order."""
    segment = log.segment_at(position)
    overlap = _MAGIC_AT + len(_MAGICS[0]) - 1
    window = FIRST_WINDOW_BYTES
    while position < stop:
        count = min(window, stop - position)
        data = segment.read(position - segment.start, count)
        found = {at for magic in _MAGICS for at in _find_all(data, magic)}
        for at in sorted(found):
            if at >= _MAGIC_AT:
                yield position + at - _MAGIC_AT
        if count < window:
            return
        position += count - overlap
        window = min(4 * window, WINDOW_BYTES)


def _find_all(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


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
