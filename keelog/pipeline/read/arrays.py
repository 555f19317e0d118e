"""Arrow arrays from numpy columns: texts, bytes and times, checked as Spark wants them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from keelog.pipeline.tables import Column
from protocol.kernel import loader
from protocol.record.columns import Bools, Bytes, Ints

TEXTS = pa.list_(pa.field("element", pa.string()))
PAIRS = pa.map_(pa.string(), pa.string())
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TYPES = {
    "STRING": pa.string(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "BINARY": pa.binary(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<STRING>": TEXTS,
    "MAP<STRING, STRING>": PAIRS,
    "ARRAY<STRUCT<key: STRING, value: BINARY>>": HEADERS,
}
"""What Spark wants on the first batch of each type of our tables, and refuses otherwise."""

_MS_MAX = (2**63 - 1) // 1000


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema of these columns; every field may be NULL."""
    return pa.schema([(column.name, TYPES[column.ddl]) for column in columns])


def numbers(values: Any, width: str) -> pa.Array:
    """Numbers as `int32` or `int64`, whatever byte order they are in."""
    return pa.array(np.ascontiguousarray(values, np.dtype(width)))


def times(ms: Ints) -> pa.Array:
    """Milliseconds as TIMESTAMP; NULL for what it cannot hold, 292,000 years from now."""
    far = (ms > _MS_MAX) | (ms < -_MS_MAX)
    micros = np.where(far, 0, ms) * 1000
    return pa.array(micros, pa.int64(), mask=far if far.any() else None).view(TYPES["TIMESTAMP"])


def pieces(data: Bytes, start: Ints, length: Ints) -> pa.BinaryArray:
    """`data[start:start+length]` of each row; pieces must rise and not overlap.

    Without the compiled kernel it is one Arrow array over values and the gaps between them, of
    which every other item is taken: a copy in C++. `data` must be below 2 GiB.
    """
    count = len(start)
    if not count:
        return pa.array([], pa.binary())
    compiled = loader.kernel
    if compiled is not None:
        flat, offsets = compiled.join_arrow(data, start, length)
        return pa.BinaryArray.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
        )
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = start
    offsets[1::2] = start + length
    both = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    return both.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def flat_and_bounds(items: pa.BinaryArray) -> tuple[Bytes, Ints]:
    """The bytes of the items, which may have others around them, and the bounds of each in them."""
    _, bounds, data = items.buffers()
    flat = np.frombuffer(data if data is not None and data.size else b"", np.uint8)
    if not len(items):
        return flat, np.zeros(1, np.int64)
    bounds = np.frombuffer(bounds, np.int32)[items.offset : items.offset + len(items) + 1]
    return flat, bounds.astype(np.int64)


def flat_and_ends(joined: pa.BinaryArray) -> tuple[Bytes, Ints]:
    """The bytes of an array that was just taken, joined, and where each item ends in them."""
    flat, bounds = flat_and_bounds(joined)
    return flat[: bounds[-1]], bounds[1:]


def texts(raw: pa.BinaryArray, decode: Callable[[bytes], str]) -> pa.StringArray:
    """Bytes as text; where some are not UTF-8, all through `decode`."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decode(item) for item in raw.to_pylist()], pa.string())


def spread(values: pa.Array, there: Bools) -> pa.Array:
    """The values, in order, at the rows where `there` is true; NULL at the others."""
    if there.all():
        return values
    place = np.cumsum(there) - 1
    return values.take(pa.array(np.where(there, place, 0), mask=~there))


def offsets_of(row: Ints, rows: int) -> pa.Array:
    """Where each row's items begin, for lists and maps; `row` rises."""
    counts = np.bincount(row, minlength=rows) if len(row) else np.zeros(rows, np.int64)
    return offsets_of_counts(counts)


def offsets_of_counts(counts: Any) -> pa.Array:
    """Where each row's items begin, when `counts` says how many it has."""
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.array(offsets)
