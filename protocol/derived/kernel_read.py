"""The compiled kernel's part in handing out messages, `kernel_read.c`.

Every pull calls it, so addresses are taken here and not by `Kernel.call`.
"""

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.derived.queue_unit import UNIT_BYTES
from protocol.ids import Queue
from protocol.kernel.loader import Bytes, Ints, Kernel, address, int_column

_LIMITS = struct.Struct("=8q")


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


class MessageUnits(NamedTuple):
    """Messages of one queue: the unit and the number (QUEUEOFFSET) of each."""

    queue: Queue
    units: NDArray[Any]
    number: Ints

    def before(self, row: int) -> "MessageUnits":
        """The first `row` of them."""
        return MessageUnits(self.queue, self.units[:row], self.number[:row])

    def after(self, rows: int) -> "MessageUnits":
        """Those after the first `rows`."""
        return MessageUnits(self.queue, self.units[rows:], self.number[rows:])


def fitting_units(kernel: Kernel, units: NDArray[Any], limits: FitLimits) -> int:
    """How many units, from the first one on, a pull without a filter takes.

    -1 when one of those that it looked at names no place of the log.
    """
    *bounds, hot, cold = limits
    wanted = _LIMITS.pack(*bounds, *hot, *cold)
    return int(kernel.function("fitting_units")(_unit_address(units), len(units), wanted))


def unit_bytes(kernel: Kernel, units: NDArray[Any]) -> int:
    """The bytes of all records that units name."""
    return int(kernel.function("unit_bytes")(_unit_address(units), len(units)))


def copy_messages(
    kernel: Kernel, data: Bytes, base: int, messages: MessageUnits, out: Bytes
) -> int:
    """Copies messages from a segment at log offset `base`, back to back, to `out`; how many.

    It ends at the first that is not whole, not in its place or not of that queue and number, does
    not lie in the segment, or has no room.
    """
    queue, units, number = messages
    rows, topic = len(units), queue.topic.encode()
    asked = _unit_address(units), address(int_column(number, rows)), queue.queue_id
    copy = kernel.function("copy_messages")
    return int(
        copy(
            address(data), len(data), base, rows, *asked, topic, len(topic), address(out), len(out)
        )
    )


def _unit_address(units: NDArray[Any]) -> int:
    """As `address`, which takes long for an array of structures."""
    assert units.dtype.itemsize == UNIT_BYTES
    return address(units.view(np.uint8))


def whole_records(kernel: Kernel, data: Bytes, sizes: NDArray[np.uint32]) -> int:
    """How many of the records, back to back in `data`, are whole before one is not."""
    sizes = np.ascontiguousarray(sizes, np.uint32)
    whole = kernel.function("whole_records")
    return int(whole(address(data), len(data), len(sizes), address(sizes)))
