"""Columns of `schema=kafka` that are no column of ours under another name."""

import numpy as np
import pyarrow as pa

from pipeline.read.arrays import HEADERS

LOG_APPEND_TIME = 1
"""Kafka's number for a timestamp that the broker gave."""


def headers(pairs: pa.MapArray) -> pa.ListArray:
    """All properties; NULL for a message without any, as Kafka's source has it."""
    offsets = pairs.offsets.to_numpy()
    struct = pa.StructArray.from_arrays(
        [pairs.keys, pairs.items.cast(pa.binary())], fields=list(HEADERS.value_type)
    )
    none = np.diff(offsets) == 0
    return pa.ListArray.from_arrays(pairs.offsets, struct, type=HEADERS, mask=pa.array(none))


def timestamp_types(count: int) -> pa.Int32Array:
    """The same number for each of `count` rows."""
    return pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count)
