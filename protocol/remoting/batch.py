"""A batch of RocketMQ's client (code 320, or any send with `batch`): its messages, or its records.

Its messages share a send's header. `encode_items` makes records of them in one pass of the compiled
kernel. It returns None where the kernel is missing, or a message is not plain: the plain way makes
the same records of plain messages, and says what is wrong with others.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from protocol.ids import Host
from protocol.kernel import loader
from protocol.kernel.loader import address
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.encode import EncodedBatch, pack_fields
from protocol.record.properties import CRC_PROPERTY_BYTES
from protocol.remoting.codes import BadCommand

BATCH_ITEMS_MAX = 65_535

_HEAD = struct.Struct(">12xii")
"""Item size, magic and checksum, which Java ignores; then the flag, and the body's length."""
_PROPERTIES_LENGTH = struct.Struct(">h")
_DRAFT = struct.Struct("=8q")


class BatchItem(NamedTuple):
    """One message. Its parts are views of the batch's bytes."""

    flag: int
    body: memoryview
    properties: memoryview


def batch_items(batch: memoryview) -> list[BatchItem]:
    """Returns the messages of a batch. Raises BadCommand for bytes that are not one."""
    items: list[BatchItem] = []
    at, end = 0, len(batch)
    if not end:
        raise BadCommand("the body is missing, a batch was expected")
    while at < end:
        if len(items) == BATCH_ITEMS_MAX:
            raise BadCommand(
                f"a batch of more than {BATCH_ITEMS_MAX} messages", "send smaller ones"
            )
        try:
            flag, body_bytes = _HEAD.unpack_from(batch, at)
            body_at = at + _HEAD.size
            properties_at = body_at + body_bytes + _PROPERTIES_LENGTH.size
            (properties_bytes,) = _PROPERTIES_LENGTH.unpack_from(batch, body_at + body_bytes)
        except struct.error:
            raise _broken(len(items)) from None
        at = properties_at + properties_bytes
        if body_bytes < 0 or properties_bytes < 0 or at > end:
            raise _broken(len(items))
        items.append(
            BatchItem(flag, batch[body_at : body_at + body_bytes], batch[properties_at:at])
        )
    return items


def _broken(number: int) -> BadCommand:
    return BadCommand(f"message {number} of the batch does not end within it")


class ItemTemplate(NamedTuple):
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


def packed_names(names: Iterable[str]) -> bytes:
    """Names of properties as `encode_items` takes them: those that no plain message has."""
    return b"".join(bytes([len(name)]) + name.encode() for name in names)


def encode_items(
    items: memoryview, template: ItemTemplate, names: bytes, body_bytes_max: int, crc: bool
) -> tuple[EncodedBatch, Sequence[str]] | None:
    """The records of the messages in `items`, and the unique key of each; with `crc` they have room
    for the checksum."""
    kernel = loader.kernel
    if kernel is None:
        return None
    data = np.frombuffer(items, np.uint8)
    place = address(data)
    rows = kernel.functions["count_items"](place, len(data))
    if not 0 < rows <= BATCH_ITEMS_MAX:
        return None
    empty = pack_fields(
        template.topic, b"", template.queue_id, b"", template.born_timestamp, template.born_host,
        0, template.sys_flag, template.reconsume_times,
    )[:-_PROPERTIES_LENGTH.size]  # fmt: skip
    topic_bytes = len(template.topic.encode())
    topic_bytes += 2 if topic_bytes > SHORT_TOPIC_CHARS_MAX else 1
    room = len(data) + rows * (len(empty) + 1 + CRC_PROPERTY_BYTES)
    numbers = _DRAFT.pack(
        rows, len(data), len(empty) - topic_bytes, topic_bytes, len(names),
        body_bytes_max, crc, room,
    )  # fmt: skip
    head = 4 * (1 + 3 * rows)
    out = np.empty(head + room, np.uint8)
    shared = empty + names
    size = kernel.functions["encode_items"](numbers, shared, place, address(out))
    if size < 0:
        return None
    found, records = out[:head].view(np.uint32), out[head : head + size]
    encoded = EncodedBatch(records, found[1 : 1 + rows], int(found[0]))
    return encoded, ItemKeys(records, found[1 + rows :])
