"""RocketMQ's files of timer messages: units of the timer log, slots of the wheel, the check point.

The log has one unit of 52 bytes for each message that waits, in the order of their queue. The
wheel has one slot for each second: the first and the last unit that is due in it. Each unit names
the one before it in its slot (RocketMQ: TimerLog, TimerWheel, TimerCheckpoint).
"""

import struct
from typing import NamedTuple, Self

import numpy as np

UNIT = np.dtype(
    [
        ("size", ">i4"),
        ("previous", ">i8"),
        ("magic", ">i4"),
        ("written_ms", ">i8"),
        ("delay_ms", ">i4"),
        ("physical_offset", ">i8"),
        ("record_bytes", ">i4"),
        ("topic_hash", ">i4"),
        ("due_ms", ">i8"),
    ]
)
"""`written_ms` + `delay_ms` is in the second of the slot. `due_ms`: RocketMQ reserves the field,
and writes 0."""
UNIT_BYTES = UNIT.itemsize
UNIT_HEAD = struct.Struct(">iqi")
"""Size, previous, magic."""
SLOT = np.dtype(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
)
SLOT_BYTES = SLOT.itemsize
SLOTS = 2 * 7 * 86_400
WHEEL_BYTES = SLOTS * SLOT_BYTES
LOG_FILE_BYTES = 104_857_600
BLANK_BYTES = 16
BLANK_MAGIC = -875_286_124
NO_UNIT = -1
ROLL = 2
"""Magic of a unit whose message is stored anew, and waits on: it is due too far away."""
DELETE = 4
"""Magic of a unit whose message takes another one back."""
CHECK_FILE_BYTES = 4096
TIMER_CHECK_BYTES = 56
"""What a slave gets of it, as RocketMQ has it: three i64 of the wheel, one of the master, three of
a DataVersion (TimerCheckpoint#encode)."""
_CHECK = struct.Struct(">8q")


class TimerCheck(NamedTuple):
    """`config/timercheck`: every message before `queue_offset` of the timer queue has a unit or is
    delivered, and all that was due before `read_ms` is delivered.

    `flushed`: the position in the timer log below which it is synced. `delivered_ms` is ours, a
    broker ignores it: of the units below `flushed`, all that were due by then are delivered.
    """

    read_ms: int = 0
    flushed: int = 0
    queue_offset: int = 0
    master_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0
    delivered_ms: int = 0

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """From the file's content; zeros for a shorter one."""
        return cls(*_CHECK.unpack(data[: _CHECK.size].ljust(_CHECK.size, b"\0")))

    def file(self) -> bytes:
        """The content of the file."""
        return _CHECK.pack(*self).ljust(CHECK_FILE_BYTES, b"\0")


def units_of_file(file_bytes: int) -> int:
    """How many units a file of the timer log holds before its closing blank."""
    return (file_bytes - BLANK_BYTES) // UNIT_BYTES
