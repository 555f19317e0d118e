"""Reads on after damage: where the next record can be proved, and nowhere else.

A record proves itself by its magic, its own log offset at that place, its lengths and checksum.
After the log's real end old bytes may stand that a broker cut off without wiping them; they are
told by their store time, which is before that of the last good record.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from node.store.log.reader import WINDOW_BYTES, LogReader
from protocol.record.codec import FILLER_BYTES, MAGIC_V1, MAGIC_V2, Filler, Record, Torn, decode
from protocol.record.columns import RecordColumns

FIRST_WINDOW_BYTES = 16 * 1024
"""Mostly a record stands near; each window after it is four times as large."""
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = 4
_MAGIC_END = _MAGIC_AT + len(_MAGICS[0])


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes within the log that are no record; it goes on at `resumed_at`."""

    where: str
    torn: Torn
    resumed_at: int


def next_record(
    log: LogReader, position: int, not_before: int = 0, stop: int | None = None
) -> int | None:
    """The next place at or above `position` where a record of at least that store time stands.

    `stop`: it starts below it, wherever it ends.
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
    """What is wrong with a blank there: it says how many bytes are left in its segment. Readers go
    on after it whatever it says, as a broker does."""
    segment = log.segments.find(position)
    if segment is None or position >= log.end or position + FILLER_BYTES > segment.end:
        return None
    stands = decode(segment.read(position - segment.start, FILLER_BYTES), 0)
    left = segment.end - position
    if not isinstance(stands, Filler) or stands.size == left:
        return None
    why = f"a blank of {stands.size} bytes, {left} are left in the segment"
    return Torn(position, "bad_size", why)


def _places(log: LogReader, position: int, stop: int) -> Iterator[int]:
    """Where a magic code stands as a record would have it, within one segment, in order."""
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
    """As `LogReader.columns`, but damage is an item of its own, and the records go on after it.

    When nothing can be proved after it, the records end, and `log.stopped` tells why.
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
        yield Damage(str(log.segment_at(torn.position).path), torn, resumed)
        start = resumed
