"""An append request: records of one client, its claims about them, and where they were stored."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from protocol.errors import BadRequest, MqError
from protocol.ids import Queue
from protocol.record.codec import BORN_HOST_V6
from protocol.record.encode import NewMessage, pack_record
from protocol.record.kernel_put import Put
from protocol.record.patch import PlainRow
from protocol.record.properties import EMPTY_CRC_PROPERTY

FEW_QUEUES_MAX = 4
"""Where a group has records of more queues, most likely every queue worker has some."""


class RepeatedMessage(NamedTuple):
    """Where the first message with the unique key of a repeated one is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int


@dataclass(slots=True)
class AppendRequest:
    """Records of one client, back to back, and the outcome of their append.

    `count`, `sizes` (u32 little-endian each, or empty) and `crc` (of all records; None: not
    checked) are the client's claims, which the appender checks. `any_queue` lets the node choose
    one queue for all. `Appender.append` sets either `error` or the fields after it.
    """

    records: bytes | memoryview
    count: int
    sizes: bytes = b""
    any_queue: bool = False
    crc: int | None = None
    checked_rows: list[PlainRow] | None = None
    """Set when the node encoded the records itself, so that they need no check."""
    is_inner: bool = False
    """Whether the node's own processes sent it: they write to the system's topics, too."""
    draft: Put | None = None
    """A message that the node still has to encode: `records` is empty until then."""
    draft_bytes: int = 0
    """The size of the record that a draft becomes."""
    repeats: dict[int, RepeatedMessage] | None = None
    """Of a request that asks for each unique key to be stored once: its messages, by their place
    in it, that were stored before. None for one that does not ask."""
    error: MqError | None = None
    physical_offset: int = -1
    store_timestamp: int = 0
    queues: Sequence[tuple[str, int, int, int]] = ()
    """For each queue: topic, queue id, first queue offset, count."""

    @property
    def size(self) -> int:
        """The bytes of its records, also while they are a draft."""
        return len(self.records) if self.draft is None else self.draft_bytes

    @property
    def end(self) -> int:
        """The log offset after its last record."""
        return self.physical_offset + self.size

    def encode(self, crc: bool) -> None:
        """Encodes a draft. `crc`: the record gets room for the checksum of the whole."""
        put = self.draft
        if put is None:
            return
        message = NewMessage(
            topic=put.topic,
            body=put.body,
            queue_id=put.queue_id,
            flag=put.flag,
            sys_flag=put.sys_flag,
            born_timestamp=put.born_timestamp,
            born_host=put.born_host,
            reconsume_times=put.reconsume_times,
        )
        properties = put.properties + (EMPTY_CRC_PROPERTY if crc else b"")
        self.records = pack_record(message, properties)
        host_bits = BORN_HOST_V6 if put.born_host.is_v6 else 0
        row = PlainRow(0, len(self.records), put.topic, put.queue_id, host_bits)
        self.checked_rows, self.draft = [row], None


def queues_of(requests: list[AppendRequest]) -> set[Queue] | None:
    """The queues that appended requests went to; None for more than FEW_QUEUES_MAX of them."""
    if len(requests) > FEW_QUEUES_MAX:
        return None
    queues = {Queue(topic, queue_id) for one in requests for topic, queue_id, *_ in one.queues}
    return queues if len(queues) <= FEW_QUEUES_MAX else None


def check_crc(request: AppendRequest) -> None:
    """Raises BadRequest unless the records' CRC-32 is the one that the request names."""
    if request.crc is not None and (found := zlib.crc32(request.records)) != request.crc:
        raise BadRequest(f"the frame's CRC-32 is {found}, the header says {request.crc}")


def check_sizes(request: AppendRequest, sizes: list[int]) -> None:
    """Raises BadRequest unless the records are as many and as long as the request says."""
    if request.count != len(sizes) or sum(sizes) != len(request.records):
        raise BadRequest(
            f"the header says {request.count} records in {len(request.records)} bytes, "
            f"the frame holds {len(sizes)} in {sum(sizes)}",
            "count and sizes must agree with the records",
        )
    if request.sizes and request.sizes != np.array(sizes, "<u4").tobytes():
        raise BadRequest("the sizes in the header are not those of the records")
