"""The compiled kernel's part in handing out messages, `kernel_read.c`.

Every pull calls it, so addresses are taken here and not by `Kernel.call`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.derived.queue_unit import UNIT_BYTES
from protocol.ids import Queue
from protocol.kernel.loader import Bytes, Ints, Kernel, address, int_column


class PullBound(NamedTuple):
    """How many records and bytes one pull takes."""

    records: int
    bytes: int


class FitLimits(NamedTuple):
    """What `fitting_units` holds units against.

    `hot_bytes`: up to this far below the log's end a record is hot, -1 for all of them.
    """

    log_begin: int
    log_end: int
    segment_bytes: int
    hot_bytes: int
    hot: PullBound
    cold: PullBound


class MessageColumns(NamedTuple):
    """Messages of one queue: log offset, size and number (QUEUEOFFSET) of each."""

    queue: Queue
    place: Ints
    size: Ints
    number: Ints

    def part(self, rows: slice) -> "MessageColumns":
        """Some of them."""
        return MessageColumns(self.queue, self.place[rows], self.size[rows], self.number[rows])


def fitting_units(kernel: Kernel, units: NDArray[Any], limits: FitLimits) -> int:
    """How many units, from the first one on, a pull without a filter takes.

    -1 when one of those that it looked at names no place of the log.
    """
    assert units.dtype.itemsize == UNIT_BYTES
    *bounds, hot, cold = limits
    wanted = np.array([*bounds, *hot, *cold], np.int64)
    return int(kernel.function("fitting_units")(address(units), len(units), address(wanted)))


def copy_messages(
    kernel: Kernel, data: Bytes, base: int, messages: MessageColumns, out: Bytes
) -> int:
    """Copies messages from a segment at log offset `base`, back to back, to `out`; how many.

    It ends at the first that is not whole, not in its place or not of that queue and number, does
    not lie in the segment, or has no room.
    """
    rows = len(messages.size)
    topic = np.frombuffer(messages.queue.topic.encode(), np.uint8)
    columns = [int_column(column, rows) for column in messages[1:]]
    asked = *map(address, columns), messages.queue.queue_id, address(topic), len(topic)
    copy = kernel.function("copy_messages")
    return int(copy(address(data), len(data), base, rows, *asked, address(out), len(out)))


def whole_records(kernel: Kernel, data: Bytes, sizes: NDArray[np.uint32]) -> int:
    """How many of the records, back to back in `data`, are whole before one is not."""
    sizes = np.ascontiguousarray(sizes, np.uint32)
    whole = kernel.function("whole_records")
    return int(whole(address(data), len(data), len(sizes), address(sizes)))
