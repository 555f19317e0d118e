"""Many records at once, as numpy columns. `protocol.record.codec.decode` is the oracle.

`scan` walks a buffer of back-to-back records and returns every fixed field as an array, together
with what ended the walk. Nothing is copied out of the buffer.

Where the installation has the compiled kernel (`protocol.kernel`) it walks and checks; without it
`decode` does, record by record.
"""

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.kernel import loader
from protocol.layout import Readable
from protocol.record.bodies import COMPRESSED
from protocol.record.codec import Filler, Record, Torn, decode, whole_record
from protocol.record.properties import CRC_PREFIX, CRC_PROPERTY_BYTES, PAIR_END

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_CRC_PREFIX = np.frombuffer(CRC_PREFIX, np.uint8)


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


_NUMBERS = len(RecordColumns.__slots__) - 1


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
    compiled = loader.kernel
    numbers = array("q")
    if compiled is not None:
        flags = loader.VERIFY * verify | loader.SEALED * sealed
        flags |= loader.CHECK_PLACE * (base is not None)
        block, position = compiled.scan(buffer, position, base or 0, flags)
    stop: Filler | Torn | None = None
    while position < len(buffer):
        place = None if base is None else base + position
        found = decode(buffer.data, position, place, sealed, verify)
        if not isinstance(found, Record):
            # Where a checksum does not agree, that says more than what it led to.
            verified = found if verify else decode(buffer.data, position, place, sealed)
            stop = found if isinstance(verified, Record) else verified
            break
        assert compiled is None, f"columns refuse what decode takes, at {position}"
        numbers.extend(_row(found, position))
        position += found.size
    columns = _columns(buffer, numbers) if compiled is None else RecordColumns(buffer, *block)
    return Scan(columns, position, stop)


def _row(record: Record, start: int) -> tuple[int, ...]:
    """The numbers of a record that starts at `start`, in the order of the columns."""
    head = record.head
    topic_bytes, end = len(record.topic.encode()), start + record.size
    properties_start = end - len(record.properties_raw)
    topic_start = properties_start - 2 - topic_bytes
    body_start = topic_start - record.version - head.body_length
    return (
        start, *head[:9], head.store_timestamp, *head[14:16], body_start, head.body_length,
        topic_start, topic_bytes, properties_start, end - properties_start,
    )  # fmt: skip


def _columns(buffer: Bytes, numbers: "array[int]") -> RecordColumns:
    """`numbers`: those of each record, one after the other."""
    return RecordColumns(buffer, *np.array(numbers, np.int64).reshape(-1, _NUMBERS).T.copy())


def group_topics(columns: RecordColumns) -> tuple[list[str], Ints]:
    """The topics in order of appearance, and each record's place among them."""
    compiled = loader.kernel
    if compiled is not None:
        ids, first = compiled.group(columns.data, columns.topic_start, columns.topic_length)
        topics = [columns.piece(columns.topic_start, columns.topic_length, row) for row in first]
        return [topic.decode() for topic in topics], ids.astype(np.int64)
    seen: dict[bytes, int] = {}
    data = columns.data.data
    begin = columns.topic_start.tolist()
    end = (columns.topic_start + columns.topic_length).tolist()
    each = [seen.setdefault(bytes(data[a:b]), len(seen)) for a, b in zip(begin, end, strict=True)]
    return [topic.decode() for topic in seen], np.array(each, np.int64)


def end_in_crc(columns: RecordColumns) -> Bools:
    """Which records end in `__CRC32#`, as `protocol.record.codec.has_crc_property` has it."""
    found: Bools = columns.properties_length >= CRC_PROPERTY_BYTES
    tail = np.where(found, columns.start + columns.size - CRC_PROPERTY_BYTES, columns.start)
    prefix = columns.data[tail[:, None] + np.arange(len(_CRC_PREFIX))]
    found &= (prefix == _CRC_PREFIX).all(axis=1)
    found &= columns.data[tail + CRC_PROPERTY_BYTES - 1] == PAIR_END
    return found


def gather_verified(
    buffer: Bytes, start: Ints, size: Ints, place: Ints
) -> tuple[RecordColumns, Bools]:
    """All columns of the records that start at `start`, and which of them are whole.

    Whole: of that size in bytes and at that log offset, with lengths that agree with each other
    and the right checksum. The columns of the others mean nothing. A `start` may lie anywhere.
    """
    compiled = loader.kernel
    if compiled is not None:
        block, good = compiled.gather(buffer, start, size, place)
        return RecordColumns(buffer, *block), good
    numbers, good = array("q"), np.zeros(len(start), np.bool_)
    wanted = zip(start.tolist(), size.tolist(), place.tolist(), strict=True)
    for row, (at, length, offset) in enumerate(wanted):
        found = None
        if 0 <= at <= len(buffer) - length and length >= 0:
            found = decode(buffer.data[: at + length], at, offset)
        good[row] = isinstance(found, Record) and found.size == length
        numbers.extend(_row(found, at) if isinstance(found, Record) else (0,) * _NUMBERS)
    return _columns(buffer, numbers), good


def numbers_at(buffer: Bytes, positions: Ints, kind: str) -> Ints:
    """The big-endian numbers of numpy format `kind` at `positions`, which must lie inside."""
    width = np.dtype(kind).itemsize
    if not len(positions):
        return np.empty(0, np.int64)
    every = np.ndarray((len(buffer) - width + 1,), np.dtype(kind), buffer, strides=(1,))
    return every[positions].astype(np.int64)
