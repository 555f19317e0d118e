"""RocketMQ's `checkpoint` file: 4096 bytes, six numbers (RocketMQ: StoreCheckpoint)."""

from typing import Annotated, NamedTuple

from protocol.layout import StructLayout, Wire
from protocol.names import CHECKPOINT_FILE_BYTES


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
