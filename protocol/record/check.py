"""Whether bytes that are about to be handed out are the records that were asked for.

Place and lengths first, then the checksum, then whose they are: a queue unit that was damaged may
name a record that is whole, but another queue's. `unfit_plain` takes the records one by one,
`unfit_columns` all at once; what the plain one cannot accept at a glance `decode` decides. The
compiled kernel does the same while it copies (`protocol.derived.kernel_calls.copy_messages`).
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Queue, queue_of
from protocol.layout import Readable
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.codec import (
    BORN_HOST_V6,
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SHORT_HEAD,
    STORE_HOST_V6,
    Record,
    decode,
    record_head,
)
from protocol.record.columns import Bools, Bytes, Ints, are_heads, first_bad_crc, gather_records
from protocol.record.properties import (
    CRC_DIGITS,
    CRC_PREFIX,
    CRC_PROPERTY_BYTES,
    EMPTY_CRC_PROPERTY,
    crc_property,
)

PLAIN_MAX = 50
"""So few records go faster one by one than as columns."""
ODD_MAX = 20
"""So many records that are not sealed, or unfit, are decoded; with more all are, as columns."""

_HEAD = struct.Struct(">iI4xi4xqqi").unpack_from
"""TOTALSIZE, MAGICCODE, QUEUEID, QUEUEOFFSET, PHYSICALOFFSET, SYSFLAG."""
_INT = struct.Struct(">i").unpack_from
_HEAD_BYTES = {
    flag: record_head(flag).size
    for flag in (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6)
}
_HEADS = np.dtype(
    {
        "names": ["total_size", "magic", "queue_id", "queue_offset", "place", "sys_flag"],
        "formats": [">i4", ">u4", ">i4", ">i8", ">i8", ">i4"],
        "offsets": [0, 4, 12, 20, 28, 36],
        "itemsize": 40,
    }
)
"""What `_HEAD` reads, of many."""
_DIGITS = 10 ** np.arange(CRC_DIGITS, dtype=np.int64)
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6


@dataclass(frozen=True, slots=True)
class WantedRecords:
    """Records of one queue: number (QUEUEOFFSET), log offset and size of each, in bytes."""

    queue: Queue
    numbers: Sequence[int]
    offsets: Sequence[int]
    sizes: Sequence[int]

    def first(self, count: int) -> "WantedRecords":
        """The first `count` of them."""
        rows = (self.numbers[:count], self.offsets[:count], self.sizes[:count])
        return WantedRecords(self.queue, *rows)

    def is_this(self, row: int, record: Record) -> bool:
        """Whether a verified record is the one of a row."""
        head = record.head
        return (record.topic, head.queue_id, head.queue_offset, head.total_size) == (
            *self.queue,
            self.numbers[row],
            self.sizes[row],
        )


class SealedRecord(NamedTuple):
    """A verified record: which message of which queue it is, and where in the log."""

    queue: Queue
    number: int
    offset: int
    sys_flag: int
    raw: bytes

    @classmethod
    def of(cls, record: Record) -> "SealedRecord":
        """Of one that was decoded."""
        head = record.head
        queue = Queue(record.topic, head.queue_id)
        return cls(queue, head.queue_offset, head.physical_offset, head.sys_flag, record.raw)


def at_a_glance(data: bytes, start: int, offset: int) -> SealedRecord | None:
    """The record at `start` of `data` that names the log offset `offset`, verified.

    None for all that is not plain: another version, long hosts, no checksum of the whole, damage.
    `decode` finds out what that is.
    """
    if len(data) - start < RECORD_BYTES_MIN:
        return None
    size, magic, queue_id, number, place, sys_flag = _HEAD(data, start)
    end = start + size
    if magic != MAGIC_V1 or place != offset or sys_flag & _HOSTS_V6 or end > len(data):
        return None
    (body_bytes,) = _INT(data, start + SHORT_HEAD.size - 4)
    topic_at = start + SHORT_HEAD.size + body_bytes + 1
    sealed_to = end - CRC_PROPERTY_BYTES
    if body_bytes < 0 or topic_at > sealed_to:
        return None
    properties_at = topic_at + data[topic_at - 1] + 2
    if properties_at > sealed_to or data[topic_at - 1] > SHORT_TOPIC_CHARS_MAX:
        return None
    if properties_at + int.from_bytes(data[properties_at - 2 : properties_at], "big") != end:
        return None
    raw = data[start:end]
    if raw[-CRC_PROPERTY_BYTES:] != crc_property(zlib.crc32(raw[:-CRC_PROPERTY_BYTES])):
        return None
    try:
        topic = data[topic_at : properties_at - 2].decode()
    except UnicodeDecodeError:
        return None
    return SealedRecord(queue_of(topic, queue_id), number, offset, sys_flag, raw)


def first_unfit(data: bytes, wanted: WantedRecords) -> int:
    """The first of the records, back to back in `data`, that is not the one wanted.

    All of them when each is: whole, sealed as its writer left it, in its place, of its queue.
    `data` has exactly as many bytes as the sizes add up to.
    """
    assert sum(wanted.sizes) == len(data)
    check = unfit_plain if len(wanted.sizes) <= PLAIN_MAX else unfit_many
    return check(data, wanted)


def unfit_many(data: bytes, wanted: WantedRecords) -> int:
    """As `first_unfit`: at a glance where a record is sealed, else as `unfit_columns`."""
    size = np.array(wanted.sizes, np.int64)
    if not len(size) or int(size.min()) < RECORD_BYTES_MIN:
        return unfit_columns(data, wanted)
    start = np.cumsum(size) - size
    odd = np.flatnonzero(~_fit_at_a_glance(data, wanted, start, size))
    if len(odd) > ODD_MAX:
        return unfit_columns(data, wanted)
    for row in odd.tolist():
        at = int(start[row])
        found = decode(data[at : at + wanted.sizes[row]], 0, wanted.offsets[row])
        if not isinstance(found, Record) or not wanted.is_this(row, found):
            return int(row)
    return len(size)


def _fit_at_a_glance(data: bytes, wanted: WantedRecords, start: Ints, size: Ints) -> Bools:
    """`_Glance` for all records at once: each at least `RECORD_BYTES_MIN` long."""
    buffer = np.frombuffer(data, np.uint8)
    head = _pieces(buffer, start, _HEADS.itemsize).view(_HEADS)
    tail_at = start + size - CRC_PROPERTY_BYTES
    tail = _pieces(buffer, tail_at, CRC_PROPERTY_BYTES).view(np.uint8)
    tail = tail.reshape(len(start), CRC_PROPERTY_BYTES)
    fits: Bools = (head["total_size"] == size) & (
        head["place"] == np.array(wanted.offsets, np.int64)
    )
    fits &= (head["magic"] == MAGIC_V1) | (head["magic"] == MAGIC_V2)
    fits &= head["queue_id"] == wanted.queue.queue_id
    fits &= head["queue_offset"] == np.array(wanted.numbers, np.int64)
    is_v2 = (head["magic"] == MAGIC_V2).astype(np.int64)
    flag = head["sys_flag"]
    body_at = start + SHORT_HEAD.size
    body_at += 12 * ((flag & BORN_HOST_V6 != 0).astype(np.int64) + (flag & STORE_HOST_V6 != 0))
    fits &= body_at <= tail_at
    body_at[~fits] = start[~fits] + SHORT_HEAD.size
    topic = wanted.queue.topic.encode()
    topic_at = body_at + _pieces(buffer, body_at - 4, 4).view(">i4") + 1 + is_v2
    fits &= (topic_at > body_at) & (topic_at + len(topic) <= tail_at)
    topic_at[~fits] = start[~fits] + 2
    length = np.array([len(topic)], ">u2").view(np.uint8)
    fits &= buffer[topic_at - 1] == length[1]
    fits &= (is_v2 == 0) | (buffer[topic_at - 2] == length[0])
    fits &= (len(topic) < 128) | (is_v2 == 1)
    rows = np.flatnonzero(fits)
    if topic:
        names = _pieces(buffer, topic_at[rows], len(topic)).view(np.uint8)
        same = names.reshape(len(rows), len(topic)) == np.frombuffer(topic, np.uint8)
        fits[rows] = same.all(axis=1)
    crc32, view = zlib.crc32, memoryview(data)
    pairs = zip(start.tolist(), tail_at.tolist(), strict=True)
    found = np.array([crc32(view[a:b]) for a, b in pairs], np.int64) & CRC_MASK
    digits = found[:, None] // _DIGITS % 10 + ord("0")
    fixed = np.frombuffer(EMPTY_CRC_PROPERTY, np.uint8)
    first = len(CRC_PREFIX)
    fits &= (tail[:, :first] == fixed[:first]).all(axis=1) & (tail[:, -1] == fixed[-1])
    fits &= (tail[:, first:-1] == digits).all(axis=1)
    return fits


def _pieces(buffer: Bytes, at: Ints, width: int) -> NDArray[Any]:
    """`width` bytes from each position on, which must all lie inside the buffer."""
    kind = np.dtype((np.void, width))
    every = np.ndarray((len(buffer) - width + 1,), kind, buffer, strides=(1,))
    return every[at]


def unfit_plain(data: bytes, wanted: WantedRecords) -> int:
    """As `first_unfit`, one by one."""
    view = memoryview(data)
    fits = _Glance(data, view, wanted.queue)
    start = 0
    rows = zip(wanted.numbers, wanted.offsets, wanted.sizes, strict=True)
    for row, (number, offset, size) in enumerate(rows):
        if size < RECORD_BYTES_MIN:
            return row
        if not fits(start, number, offset, size):
            found = decode(view[start : start + size], 0, offset)
            if not isinstance(found, Record) or not wanted.is_this(row, found):
                return row
        start += size
    return len(wanted.sizes)


class _Glance:
    """Accepts a record of the right queue, place and size whose whole-record checksum agrees."""

    def __init__(self, data: bytes, view: memoryview, queue: Queue) -> None:
        topic = queue.topic.encode()
        self._data = data
        self._view = view
        self._queue_id = queue.queue_id
        self._topic_v1 = bytes([min(len(topic), 255)]) + topic
        self._topic_v2 = len(topic).to_bytes(2, "big") + topic

    def __call__(self, start: int, number: int, offset: int, size: int) -> bool:
        data = self._data
        total, magic, queue_id, queue_offset, place, sys_flag = _HEAD(data, start)
        if total != size or place != offset or magic not in (MAGIC_V1, MAGIC_V2):
            return False
        end = start + size
        tail = end - CRC_PROPERTY_BYTES
        if data[tail:end] != crc_property(zlib.crc32(self._view[start:tail])):
            return False
        body_at = start + _HEAD_BYTES[sys_flag & _HOSTS_V6]
        if body_at > tail:
            return False
        topic = self._topic_v1 if magic == MAGIC_V1 else self._topic_v2
        topic_at = body_at + _INT(data, body_at - 4)[0]
        return bool(
            queue_id == self._queue_id
            and queue_offset == number
            and data[topic_at : topic_at + len(topic)] == topic
        )


def unfit_columns(data: Readable, wanted: WantedRecords) -> int:
    """As `first_unfit`, by columns."""
    buffer = np.frombuffer(data, np.uint8)
    size = np.array(wanted.sizes, np.int64)
    start = np.cumsum(size) - size
    count = _first_false(size >= RECORD_BYTES_MIN)
    count = _first_false(are_heads(buffer, start[:count], size[:count]))
    columns, good = gather_records(buffer, start[:count])
    good &= columns.physical_offset == np.array(wanted.offsets, np.int64)[:count]
    count = _first_false(good)
    count = first_bad_crc(columns.take(slice(0, count)), count)
    columns = columns.take(slice(0, count))
    fits = columns.queue_id == wanted.queue.queue_id
    fits &= columns.queue_offset == np.array(wanted.numbers, np.int64)[:count]
    topic = np.frombuffer(wanted.queue.topic.encode(), np.uint8)
    fits &= columns.topic_length == len(topic)
    count = _first_false(fits)
    found = buffer[columns.topic_start[:count, None] + np.arange(len(topic))]
    return _first_false((found == topic).all(axis=1))


def _first_false(fits: Bools) -> int:
    return int(np.argmin(fits)) if len(fits) and not fits.all() else len(fits)
