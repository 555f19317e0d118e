"""The bytes of RocketMQ's files beside the log: queues, index, checkpoint, timers.

A ConsumeQueue has a unit of 20 bytes for each message; the n-th unit of a queue is at byte n * 20.
An IndexFile is header, hash slots, entries (RocketMQ: IndexFile, IndexHeader). `checkpoint` has
4096 bytes, six numbers (RocketMQ: StoreCheckpoint).

Timer messages have units of a log, slots of a wheel, and a check point. The log has one unit of 52
bytes for each message that waits, in the order of their queue. The wheel has one slot for each
second: the first and the last unit that is due in it. Each unit names the one before it in its slot
(RocketMQ: TimerLog, TimerWheel, TimerCheckpoint).
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from protocol import names
from protocol.layout import StructLayout, Wire
from protocol.names import CHECKPOINT_FILE_BYTES, DEFAULT_INDEX_NUM, DEFAULT_SLOT_COUNT
from protocol.record.java_hash import java_hash


class QueueUnit(NamedTuple):
    """Where one message of a queue is in the log (RocketMQ: ConsumeQueue)."""

    physical_offset: Annotated[int, Wire(">i8", "log offset of the record")]
    size: Annotated[int, Wire(">i4", "bytes of the whole record")]
    tags_code: Annotated[
        int, Wire(">i8", "hash of TAGS, or the delivery time of a delayed message")
    ]


QUEUE_UNIT = StructLayout(QueueUnit)
UNIT_BYTES = names.UNIT_BYTES
assert QUEUE_UNIT.size == UNIT_BYTES

FILLER_SIZE = 0x7FFFFFFF
FILLER_UNIT = QUEUE_UNIT.pack(QueueUnit(0, FILLER_SIZE, 0))
"""Stands before the first unit of a queue whose first offset is not 0 (fillPreBlank)."""


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_timestamp: Annotated[int, Wire(">i8", "store time of the first entry's record, ms")]
    end_timestamp: Annotated[int, Wire(">i8", "store time of the last entry's record, ms")]
    begin_physical_offset: Annotated[int, Wire(">i8", "log offset of the first entry's record")]
    end_physical_offset: Annotated[int, Wire(">i8", "log offset of the last entry's record")]
    slot_count: Annotated[int, Wire(">i4", "slots in use")]
    index_count: Annotated[int, Wire(">i4", "number of the next free entry; 0 counts as 1")]


class IndexSlot(NamedTuple):
    """One hash bucket."""

    newest_entry: Annotated[int, Wire(">i4", "number of the bucket's newest entry, 0 when empty")]


class IndexEntry(NamedTuple):
    """One key of one record."""

    key_hash: Annotated[int, Wire(">i4", "|Java hash of topic#key|, 0 for -2^31")]
    physical_offset: Annotated[int, Wire(">i8", "log offset of the record")]
    time_diff_s: Annotated[int, Wire(">i4", "seconds after the header's begin time")]
    prev: Annotated[int, Wire(">i4", "number of the bucket's previous entry, 0 at the end")]


INDEX_HEADER = StructLayout(IndexHeader)
INDEX_SLOT = StructLayout(IndexSlot)
INDEX_ENTRY = StructLayout(IndexEntry)

TAGS_KEY_PREFIX = "T#"
"""From 5.4 on a record's TAGS is indexed as the key `T#<tags>`."""


class IndexGeometry(NamedTuple):
    """The sizes an index file is made with; `index_num` - 1 entries fit (entry 0 is unused)."""

    slot_count: int = DEFAULT_SLOT_COUNT
    index_num: int = DEFAULT_INDEX_NUM

    @property
    def file_bytes(self) -> int:
        return self.entry_position(self.index_num)

    def slot_position(self, slot: int) -> int:
        return INDEX_HEADER.size + INDEX_SLOT.size * slot

    def entry_position(self, number: int) -> int:
        return INDEX_HEADER.size + INDEX_SLOT.size * self.slot_count + INDEX_ENTRY.size * number


def key_hash(topic: str, key: str) -> int:
    """The 31-bit hash under which `key` of `topic` is indexed (IndexFile#indexKeyHashMethod)."""
    return fold_hash(java_hash(f"{topic}#{key}"))


class KeyBatch(NamedTuple):
    """Keys to enter, in order: one item a key."""

    key_hash: NDArray[Any]
    physical_offset: NDArray[Any]
    store_timestamp: NDArray[Any]

    def rows(self, start: int, stop: int) -> "KeyBatch":
        """The keys from `start` up to `stop`."""
        return KeyBatch(*(column[start:stop] for column in self))

    @classmethod
    def join(cls, batches: Sequence["KeyBatch"]) -> "KeyBatch":
        return cls(*(np.concatenate(columns) for columns in zip(*batches, strict=True)))


def fold_hash(value: int) -> int:
    """|value|, and 0 for -2^31, whose absolute value Java cannot express."""
    return 0 if value == -(2**31) else abs(value)


class StoreCheckpoint(NamedTuple):
    """What a broker believes to be flushed; mostly times, so our own recovery never trusts it."""

    physic_msg_timestamp: Annotated[int, Wire(">i8", "store time up to which the log is flushed")]
    logics_msg_timestamp: Annotated[
        int, Wire(">i8", "store time up to which the queues are flushed")
    ]
    index_msg_timestamp: Annotated[int, Wire(">i8", "end time of the last full index file")]
    master_flushed_offset: Annotated[int, Wire(">i8", "a replica's view of its master")]
    confirm_physical_offset: Annotated[int, Wire(">i8", "confirmed log offset, 0 when not known")]
    logics_physical_offset: Annotated[
        int, Wire(">i8", "since 5.5: start of a record that the flushed queues hold, or 0")
    ]


CHECKPOINT = StructLayout(StoreCheckpoint)


def encode_checkpoint(checkpoint: StoreCheckpoint) -> bytes:
    """The whole file."""
    return CHECKPOINT.pack(checkpoint).ljust(CHECKPOINT_FILE_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> StoreCheckpoint:
    """Reads a file of any length; what is missing counts as zero, as a broker extends it."""
    return CHECKPOINT.read(data[: CHECKPOINT.size].ljust(CHECKPOINT.size, b"\0"))


TIMER_UNIT = np.dtype(
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
TIMER_UNIT_BYTES = TIMER_UNIT.itemsize
TIMER_UNIT_HEAD = struct.Struct(">iqi")
"""Size, previous, magic."""
WHEEL_SLOT = np.dtype(
    [("second", ">i8"), ("first", ">i8"), ("last", ">i8"), ("count", ">i4"), ("magic", ">i4")]
)
WHEEL_SLOT_BYTES = WHEEL_SLOT.itemsize
WHEEL_SLOTS = 2 * 7 * 86_400
WHEEL_BYTES = WHEEL_SLOTS * WHEEL_SLOT_BYTES
TIMER_LOG_FILE_BYTES = 104_857_600
TIMER_BLANK_BYTES = 16
TIMER_BLANK_MAGIC = -875_286_124
NO_TIMER_UNIT = -1
TIMER_ROLL = 2
"""Magic of a unit whose message is stored anew, and waits on: it is due too far away."""
TIMER_DELETE = 4
"""Magic of a unit whose message takes another one back."""
TIMER_CHECK_FILE_BYTES = 4096
TIMER_CHECK_BYTES = 56
"""What a slave gets of it, as RocketMQ has it: three i64 of the wheel, one of the master, three of
a DataVersion (TimerCheckpoint#encode)."""
_TIMER_CHECK = struct.Struct(">8q")


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
        return cls(*_TIMER_CHECK.unpack(data[: _TIMER_CHECK.size].ljust(_TIMER_CHECK.size, b"\0")))

    def file(self) -> bytes:
        return _TIMER_CHECK.pack(*self).ljust(TIMER_CHECK_FILE_BYTES, b"\0")


def timer_units_of_file(file_bytes: int) -> int:
    """How many units a file of the timer log holds before its closing blank."""
    return (file_bytes - TIMER_BLANK_BYTES) // TIMER_UNIT_BYTES
