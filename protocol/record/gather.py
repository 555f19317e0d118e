"""Records at known places, many at once: read as columns and verified in one go.

`gather_verified` is for who has queue units: each names a place and a size.
"""

import numpy as np

from protocol.kernel import loader
from protocol.record.codec import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from protocol.record.columns import Bools, Bytes, Ints, RecordColumns, first_bad_crc, gather_records


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
