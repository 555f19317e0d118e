"""The ConsumeQueue unit: 20 bytes a message; the n-th unit of a queue is at byte n * 20."""

from typing import Annotated, NamedTuple

from protocol import sizes
from protocol.layout import StructLayout, Wire


class QueueUnit(NamedTuple):
    """Where one message of a queue is in the log (RocketMQ: ConsumeQueue)."""

    physical_offset: Annotated[int, Wire(">i8", "log offset of the record")]
    size: Annotated[int, Wire(">i4", "bytes of the whole record")]
    tags_code: Annotated[
        int, Wire(">i8", "hash of TAGS, or the delivery time of a delayed message")
    ]


QUEUE_UNIT = StructLayout(QueueUnit)
UNIT_BYTES = sizes.UNIT_BYTES
assert QUEUE_UNIT.size == UNIT_BYTES

FILLER_SIZE = 0x7FFFFFFF
FILLER_UNIT = QUEUE_UNIT.pack(QueueUnit(0, FILLER_SIZE, 0))
"""Stands before the first unit of a queue whose first offset is not 0 (fillPreBlank)."""
