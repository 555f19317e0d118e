"""A batch of RocketMQ's client as records, in one pass of the compiled kernel.

None where the kernel is missing, or a message is not plain: the plain way makes the same records
of plain messages, and says what is wrong with others.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from protocol.kernel import loader
from protocol.kernel.loader import address
from protocol.message_id import Host
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.encode import pack_fields
from protocol.record.encode_batch import EncodedBatch
from protocol.record.properties import CRC_PROPERTY_BYTES
from protocol.remoting.batch import BATCH_ITEMS_MAX

_DRAFT = struct.Struct("=8q")
_PROPERTIES_LENGTH_BYTES = 2


class RecordMould(NamedTuple):
    """What the records of a batch share."""

    topic: str
    queue_id: int
    born_timestamp: int
    born_host: Host
    sys_flag: int
    reconsume_times: int


class ItemKeys(Sequence[str]):
    """The unique key of each record: made when somebody asks, as few do."""

    __slots__ = ("_at", "_records", "_rows")

    def __init__(self, records: NDArray[np.uint8], at: NDArray[np.uint32]) -> None:
        """`at`: where each key begins, then how long each is."""
        self._records, self._at, self._rows = records, at, len(at) // 2

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[row] for row in range(self._rows)[index]]
        row = range(self._rows)[index]
        at, size = int(self._at[row]), int(self._at[self._rows + row])
        return self._records[at : at + size].tobytes().decode()


class EncodedItems(NamedTuple):
    """The records of a batch, and the unique key of each."""

    encoded: EncodedBatch
    unique_keys: Sequence[str]


def packed_names(names: Iterable[str]) -> bytes:
    """Names of properties as `encode_items` takes them: those that no plain message has."""
    return b"".join(bytes([len(name)]) + name.encode() for name in names)


def encode_items(
    items: memoryview, mould: RecordMould, names: bytes, body_bytes_max: int, crc: bool
) -> EncodedItems | None:
    """The records of the messages in `items`; with `crc` they have room for the checksum."""
    kernel = loader.active()
    if kernel is None:
        return None
    data = np.frombuffer(items, np.uint8)
    place = address(data)
    rows = kernel.function("count_items")(place, len(data))
    if not 0 < rows <= BATCH_ITEMS_MAX:
        return None
    empty = pack_fields(
        mould.topic, b"", mould.queue_id, b"", mould.born_timestamp, mould.born_host,
        0, mould.sys_flag, mould.reconsume_times,
    )[:-_PROPERTIES_LENGTH_BYTES]  # fmt: skip
    topic_bytes = len(mould.topic.encode())
    topic_bytes += 2 if topic_bytes > SHORT_TOPIC_CHARS_MAX else 1
    room = len(data) + rows * (len(empty) + 1 + CRC_PROPERTY_BYTES)
    numbers = _DRAFT.pack(
        rows, len(data), len(empty) - topic_bytes, topic_bytes, len(names),
        body_bytes_max, crc, room,
    )  # fmt: skip
    head = 4 * (1 + 3 * rows)
    out = np.empty(head + room, np.uint8)
    shared = empty + names
    size = kernel.function("encode_items")(numbers, shared, place, address(out))
    if size < 0:
        return None
    found, records = out[:head].view(np.uint32), out[head : head + size]
    encoded = EncodedBatch(records, found[1 : 1 + rows], int(found[0]))
    return EncodedItems(encoded, ItemKeys(records, found[1 + rows :]))
