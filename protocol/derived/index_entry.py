"""The IndexFile: header, hash slots, entries (RocketMQ: IndexFile, IndexHeader)."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.layout import StructLayout, Wire
from protocol.record.java_hash import java_hash
from protocol.sizes import DEFAULT_INDEX_NUM, DEFAULT_SLOT_COUNT


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
        """Length of the file."""
        return self.entry_position(self.index_num)

    def slot_position(self, slot: int) -> int:
        """Byte position of a slot."""
        return INDEX_HEADER.size + INDEX_SLOT.size * slot

    def entry_position(self, number: int) -> int:
        """Byte position of an entry."""
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
        """The keys of several batches, in order."""
        return cls(*(np.concatenate(columns) for columns in zip(*batches, strict=True)))


def fold_hash(value: int) -> int:
    """|value|, and 0 for -2^31, whose absolute value Java cannot express."""
    return 0 if value == -(2**31) else abs(value)
