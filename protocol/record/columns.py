"""Many records at once, as numpy columns. `protocol.record.codec.decode` is the oracle.

`scan` walks a buffer of back-to-back records and returns every fixed field as an array, together
with what ended the walk. Nothing is copied out of the buffer.

Where the installation has the compiled kernel (`protocol.kernel`) it walks and checks; the numpy
functions here, `…_numpy`, do the same without it, and are what the kernel is held against.
"""

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.kernel import loader
from protocol.layout import Readable
from protocol.record.bodies import COMPRESSED
from protocol.record.codec import (
    BORN_HOST_V6,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SHORT_HEAD,
    STORE_HOST_V6,
    TAIL_BYTES_V1,
    Filler,
    Record,
    Torn,
    decode,
    states_crc,
    whole_record,
)
from protocol.record.properties import (
    CRC_DIGITS,
    CRC_PREFIX,
    CRC_PROPERTY_BYTES,
    NAME_END,
    PAIR_END,
)

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SIZE_AND_MAGIC = struct.Struct(">II").unpack_from
_V6_EXTRA_BYTES = 12
_CRC_PREFIX_WORD = int.from_bytes(CRC_PREFIX[:8], "big")
_DIGIT_WEIGHTS = 10 ** np.arange(CRC_DIGITS, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Whole, verified records; each array has one item a record, in log order.

    `start`, `body_start`, `topic_start` and `properties_start` are positions in `data`.
    """

    data: Bytes
    start: Ints
    size: Ints
    magic: Ints
    body_crc: Ints
    queue_id: Ints
    flag: Ints
    queue_offset: Ints
    physical_offset: Ints
    sys_flag: Ints
    born_timestamp: Ints
    store_timestamp: Ints
    reconsume_times: Ints
    prepared_transaction_offset: Ints
    body_start: Ints
    body_length: Ints
    topic_start: Ints
    topic_length: Ints
    properties_start: Ints
    properties_length: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> int:
        """The log offset after the last record, of which there must be one."""
        return int(self.physical_offset[-1] + self.size[-1])

    def record(self, row: int) -> Record:
        """One of them as a plain record."""
        return whole_record(self.piece(self.start, self.size, row))

    def body(self, row: int) -> bytes:
        """One body without its producer's compression. Raises BodyUnreadable, CodecMissing."""
        if self.sys_flag[row] & COMPRESSED:
            return self.record(row).body
        return self.piece(self.body_start, self.body_length, row)

    def piece(self, start: Ints, length: Ints, row: int) -> bytes:
        """The bytes of one record's topic, body or properties, as stored."""
        return self.data[int(start[row]) : int(start[row] + length[row])].tobytes()

    def take(self, rows: Any) -> "RecordColumns":
        """Some of the records: a mask, an index array or a slice."""
        return RecordColumns(
            self.data,
            *(getattr(self, name)[rows] for name in RecordColumns.__slots__ if name != "data"),
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """The records found, the position after the last one, and what is there.

    `stop` is None when the buffer ended exactly with a record.
    """

    columns: RecordColumns
    end: int
    stop: Filler | Torn | None


def scan(
    data: Readable | Bytes,
    base: int | None,
    position: int = 0,
    verify: bool = True,
    sealed: bool = True,
) -> Scan:
    """Reads the records that lie back to back from `position` of `data`.

    `base` is the log offset of `data[0]`, to hold PHYSICALOFFSET against; None skips that check.
    `verify=False` leaves the checksums out, never the lengths; `sealed=False` is for records that
    the writer has not filled in yet, of which only the body's checksum counts.
    """
    buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    compiled = loader.active()
    if compiled is None:
        columns, end = scan_numpy(buffer, base, position, verify, sealed)
    else:
        flags = loader.VERIFY * verify | loader.SEALED * sealed
        flags |= loader.CHECK_PLACE * (base is not None)
        block, end = compiled.scan(buffer, position, base or 0, flags)
        columns = RecordColumns(buffer, *block)
    return Scan(columns, end, _what_stands(buffer, end, base, sealed))


def scan_numpy(
    buffer: Bytes, base: int | None, position: int, verify: bool, sealed: bool
) -> tuple[RecordColumns, int]:
    """The whole records, and the position after the last one; see `scan`."""
    starts, end = _walk(buffer, position)
    columns, good = gather_records(buffer, starts)
    if base is not None:
        good &= columns.physical_offset == columns.start + base
    bad_at = int(np.argmin(good)) if len(good) and not good.all() else len(good)
    if verify:
        bad_at = first_bad_crc(columns, bad_at, sealed)
    if bad_at < len(good):
        end = int(columns.start[bad_at])
        columns = columns.take(slice(0, bad_at))
    return columns, end


def _what_stands(
    buffer: Bytes, position: int, base: int | None, sealed: bool
) -> Filler | Torn | None:
    if position == len(buffer):
        return None
    found = decode(buffer.data, position, None if base is None else base + position, sealed)
    assert not isinstance(found, Record), f"columns refuse what decode takes, at {position}"
    return found


def _walk(buffer: Bytes, position: int) -> tuple[Ints, int]:
    starts: list[int] = []
    add = starts.append
    end = len(buffer)
    view = buffer.data
    while end - position >= RECORD_BYTES_MIN:
        size, magic = _SIZE_AND_MAGIC(view, position)
        if (
            magic != MAGIC_V1 and magic != MAGIC_V2
        ) or not RECORD_BYTES_MIN <= size <= end - position:
            break
        add(position)
        position += size
    return np.array(starts, np.int64), position


class Gather:
    """Reads big-endian numbers at arbitrary positions of a buffer, a column at a time."""

    def __init__(self, buffer: Bytes) -> None:
        self.buffer = buffer

    def __call__(self, positions: Ints, kind: str) -> Ints:
        """The numbers of numpy format `kind` at `positions`, which must lie inside the buffer."""
        width = np.dtype(kind).itemsize
        if not len(positions):
            return np.empty(0, np.int64)
        every = np.ndarray(
            (len(self.buffer) - width + 1,), np.dtype(kind), self.buffer, strides=(1,)
        )
        return every[positions].astype(np.int64)


def gather_records(buffer: Bytes, start: Ints) -> tuple[RecordColumns, Bools]:
    """All columns, and which records have lengths that agree with each other.

    Every record must have its magic, and end by its own TOTALSIZE within the buffer.
    """
    at = Gather(buffer)
    head = {
        name: at(start + SHORT_HEAD.offsets[name], SHORT_HEAD.wires[name].format)
        for name in (
            *("total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset"),
            *("physical_offset", "sys_flag", "born_timestamp"),
        )
    }
    size = head["total_size"]
    born_extra = np.where(head["sys_flag"] & BORN_HOST_V6, _V6_EXTRA_BYTES, 0)
    both_extra = born_extra + np.where(head["sys_flag"] & STORE_HOST_V6, _V6_EXTRA_BYTES, 0)
    version_bytes = (head["magic"] == MAGIC_V2).astype(np.int64)
    fixed = SHORT_HEAD.size + TAIL_BYTES_V1 + both_extra + version_bytes
    good = size >= fixed
    offsets = SHORT_HEAD.offsets
    # A record whose lengths lie is read at its own start instead, which is inside the buffer.
    tail = start + np.where(good, both_extra, 0)
    body_length = at(tail + offsets["body_length"], ">i4")
    good &= (body_length >= 0) & (body_length <= size - fixed)
    body_start = tail + SHORT_HEAD.size
    topic_at = np.where(good, body_start + body_length, start)
    topic_length = np.where(version_bytes, at(topic_at, ">i2"), at(topic_at, ">i1"))
    good &= (topic_length >= 0) & (topic_length <= size - fixed - body_length)
    topic_start = topic_at + 1 + version_bytes
    properties_start = np.where(good, topic_start + topic_length, start) + 2
    properties_length = at(properties_start - 2, ">i2")
    good &= (properties_length >= 0) & (
        fixed + body_length + topic_length + properties_length == size
    )
    columns = RecordColumns(
        data=buffer,
        start=start,
        size=size,
        **{name: values for name, values in head.items() if name != "total_size"},
        store_timestamp=at(
            start + np.where(good, born_extra, 0) + offsets["store_timestamp"], ">i8"
        ),
        reconsume_times=at(tail + offsets["reconsume_times"], ">i4"),
        prepared_transaction_offset=at(tail + offsets["prepared_transaction_offset"], ">i8"),
        body_start=body_start,
        body_length=body_length,
        topic_start=topic_start,
        topic_length=topic_length,
        properties_start=properties_start,
        properties_length=properties_length,
    )
    return columns, good & _topics_are_utf8(columns, good)


def _topics_are_utf8(columns: RecordColumns, good: Bools) -> Bools:
    answer = np.ones(len(good), np.bool_)
    rows = np.flatnonzero(good)
    flat, ends = gather_ragged(columns.data, columns.topic_start[rows], columns.topic_length[rows])
    if not (flat >= 0x80).any():
        return answer
    wide = np.zeros(len(flat) + 1, np.int64)
    np.cumsum(flat >= 0x80, out=wide[1:])
    for i in np.flatnonzero(wide[ends] - wide[ends - columns.topic_length[rows]]):
        topic = columns.piece(columns.topic_start, columns.topic_length, rows[i])
        answer[rows[i]] = _is_utf8(topic)
    return answer


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def group_topics(columns: RecordColumns) -> tuple[list[str], Ints]:
    """The topics in order of appearance, and each record's place among them."""
    compiled = loader.active()
    if compiled is not None:
        ids, first = compiled.group(columns.data, columns.topic_start, columns.topic_length)
        rows = first.tolist()
        topics = [columns.piece(columns.topic_start, columns.topic_length, row) for row in rows]
        return [topic.decode() for topic in topics], ids
    return group_topics_plain(columns)


def group_topics_plain(columns: RecordColumns) -> tuple[list[str], Ints]:
    """As `group_topics`."""
    seen: dict[bytes, int] = {}
    data = columns.data.data
    begin = columns.topic_start.tolist()
    end = (columns.topic_start + columns.topic_length).tolist()
    ids = [seen.setdefault(bytes(data[a:b]), len(seen)) for a, b in zip(begin, end, strict=True)]
    return [topic.decode() for topic in seen], np.array(ids, np.int64)


def gather_ragged(data: Bytes, start: Ints, length: Ints) -> tuple[Bytes, Ints]:
    """The pieces `data[start:start+length]` joined, and where each ends in the result."""
    compiled = loader.active()
    if compiled is not None:
        return compiled.join(data, start, length)
    return gather_ragged_numpy(data, start, length)


def gather_ragged_numpy(data: Bytes, start: Ints, length: Ints) -> tuple[Bytes, Ints]:
    """As `gather_ragged`."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    index = np.arange(total) + np.repeat(start - (ends - length), length)
    return data[index], ends


def crc_property_rows(columns: RecordColumns, damaged: bool = False) -> tuple[Bools, Ints]:
    """Which records end in `__CRC32#`, and the checksum that it states, -1 for no number.

    `damaged`: also those with one of the property's ten fixed bytes wrong, whose checksum is -1
    (protocol.record.states_crc says why).
    """
    at = Gather(columns.data)
    long_enough = columns.properties_length >= CRC_PROPERTY_BYTES
    tail = np.where(long_enough, columns.start + columns.size - CRC_PROPERTY_BYTES, columns.start)
    name = at(tail, ">u8") == np.int64(_CRC_PREFIX_WORD)
    separators = (columns.data[tail + 8] == NAME_END).astype(np.int8)
    separators += columns.data[tail + CRC_PROPERTY_BYTES - 1] == PAIR_END
    marked = long_enough & name & (separators == 2)
    stated = np.full(len(tail), -1, np.int64)
    rows = np.flatnonzero(marked)
    digits = columns.data[tail[rows, None] + np.arange(len(CRC_PREFIX), CRC_PROPERTY_BYTES - 1)]
    plain = ((digits >= 0x30) & (digits <= 0x39)).all(axis=1)
    stated[rows] = np.where(plain, (digits.astype(np.int64) - 0x30) @ _DIGIT_WEIGHTS, -1)
    if damaged:
        suspect = long_enough & ~marked & (name & (separators == 1) | ~name & (separators == 2))
        for row in np.flatnonzero(suspect):
            marked[row] = states_crc(columns.data[tail[row] :][:CRC_PROPERTY_BYTES].tobytes())
    return marked, stated


def first_bad_crc(columns: RecordColumns, limit: int, sealed: bool = True) -> int:
    """The first record below `limit` whose checksum does not agree, or `limit`."""
    marked, stated = crc_property_rows(columns, damaged=True)
    marked &= sealed
    view = columns.data.data
    crc32 = zlib.crc32
    whole = marked.tolist()
    begin = np.where(marked, columns.start, columns.body_start).tolist()
    end = np.where(
        marked,
        columns.start + columns.size - CRC_PROPERTY_BYTES,
        columns.body_start + columns.body_length,
    ).tolist()
    expected = np.where(marked, stated, columns.body_crc).tolist()
    for row in range(limit):
        if begin[row] == end[row] and not whole[row]:
            continue
        if crc32(view[begin[row] : end[row]]) & CRC_MASK != expected[row]:
            return row
    return limit


# -- records at known places ----------------------------------------------------------------------


def gather_verified(
    buffer: Bytes, start: Ints, size: Ints, place: Ints
) -> tuple[RecordColumns, Bools]:
    """All columns of the records that start at `start`, and which of them are whole.

    Whole: of that size in bytes and at that log offset, with lengths that agree with each other
    and the right checksum. The columns of the others mean nothing. A `start` may lie anywhere.
    """
    compiled = loader.active()
    if compiled is None:
        return gather_verified_numpy(buffer, start, size, place)
    block, good = compiled.gather(buffer, start, size, place, loader.VERIFY | loader.SEALED)
    return RecordColumns(buffer, *block), good


def gather_verified_numpy(
    buffer: Bytes, start: Ints, size: Ints, place: Ints
) -> tuple[RecordColumns, Bools]:
    """As `gather_verified`."""
    inside = (start >= 0) & (size >= RECORD_BYTES_MIN) & (start <= len(buffer) - size)
    good = inside.copy()
    good[inside] = are_heads(buffer, start[inside], size[inside])
    rows = np.flatnonzero(good)
    found, fits = gather_records(buffer, start[rows])
    fits &= found.physical_offset == place[rows]
    good[rows] = fits & _crc_agrees(found, fits)
    spread = np.zeros(len(start), np.int64)
    spread[rows] = np.arange(len(rows))
    columns = found.take(spread) if len(rows) else _no_columns(buffer, len(start))
    return columns, good


def _no_columns(buffer: Bytes, rows: int) -> RecordColumns:
    return RecordColumns(buffer, *np.zeros((len(RecordColumns.__slots__) - 1, rows), np.int64))


def _crc_agrees(columns: RecordColumns, good: Bools) -> Bools:
    """Which of the good records have the checksum that they state."""
    answer = np.ones(len(good), np.bool_)
    rows = np.flatnonzero(good)
    while True:
        bad = first_bad_crc(columns.take(rows), len(rows))
        if bad == len(rows):
            return answer
        answer[rows[bad]] = False
        rows = rows[bad + 1 :]


def are_heads(buffer: Bytes, start: Ints, size: Ints) -> Bools:
    """Which records say that they have that size, after it a record's magic.

    Each must have eight bytes in the buffer.
    """
    head = buffer[start[:, None] + np.arange(8)]
    total = head[:, :4].copy().view(">i4")[:, 0]
    magic = head[:, 4:].copy().view(">u4")[:, 0]
    fits: Bools = (total == size) & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
    return fits
