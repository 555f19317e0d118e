"""What the node says about a batch, as columns, of which a message's own receipt is made when
somebody asks for it."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, repeat
from typing import Any, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from client.results import Receipt
from client.send.record_batch import OFFSET_HEX_CHARS, UNREADABLE, id_start, stored_unread
from client.transport.request import NodeAnswer
from protocol.errors import BadRequest, MqError
from protocol.record.encode_batch import unique_key_at


class Sent(Protocol):
    """A batch that was sent: one topic, the bytes of each record, and how the unique keys begin
    and go on."""

    @property
    def topic(self) -> str: ...
    @property
    def sizes(self) -> NDArray[np.uint32]: ...
    @property
    def stem(self) -> str: ...
    @property
    def counter(self) -> int: ...


class BatchReceipt(Sequence[Receipt]):
    """What the node says about a batch: its fields, and as a sequence each message's `Receipt`.

    All messages lie in one queue from `queue_offset` on, and in the log from `physical_offset` on.
    """

    def __init__(self, batch: Sent, answer: Mapping[str, Any]) -> None:
        """Raises BadRequest when the answer is not about this batch."""
        ((self.topic, self.queue_id, self.queue_offset, rows),) = answer["queues"]
        if rows != len(batch.sizes) or self.topic != batch.topic:
            raise BadRequest("the answer to append counts other records than were sent")
        self.status: str = answer["status"]
        self.flushed: bool = answer["flushed"]
        self.physical_offset: int = answer["physical_offset"]
        self.store_timestamp: int = answer["store_timestamp"]
        self._sizes = batch.sizes
        self._stem, self._counter = batch.stem, batch.counter
        self._host: str = answer["store_host"]

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        rows = range(len(self))[index]
        return (
            [self._receipt(row) for row in rows] if isinstance(rows, range) else self._receipt(rows)
        )

    def __iter__(self) -> Iterator[Receipt]:
        """As by index, but for all of them at a quarter of the cost: column by column."""
        rows, first, counter = len(self), self.queue_offset, self._counter
        places = list(accumulate(self._sizes[:-1].tolist(), initial=self.physical_offset))
        numbers = [number & 0xFFFF for number in range(counter, counter + rows)]
        return map(
            _receipt_of,
            zip(
                repeat(self.status), repeat(self.topic), repeat(self.queue_id),
                range(first, first + rows), places, _numbered(self._host_hex, ">%dQ", places),
                _numbered(self._stem, ">%dH", numbers), repeat(self.flushed),
                repeat(self.store_timestamp),
            ),
        )  # fmt: skip

    @cached_property
    def physical_offsets(self) -> NDArray[np.int64]:
        """Where each message begins in the log."""
        sizes = self._sizes.astype(np.int64)
        return self.physical_offset + np.cumsum(sizes) - sizes

    @property
    def _host_hex(self) -> str:
        return id_start(self._host)

    def unique_key(self, index: int) -> str:
        """The unique key of one message."""
        return unique_key_at(self._stem, self._counter + range(len(self))[index])

    def _receipt(self, row: int) -> Receipt:
        physical = int(self.physical_offsets[row])
        return Receipt(
            self.status, self.topic, self.queue_id, self.queue_offset + row, physical,
            f"{self._host_hex}{physical:0{OFFSET_HEX_CHARS}X}", self.unique_key(row),
            self.flushed, self.store_timestamp,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<{len(self)} messages in {self.topic}, queue {self.queue_id}, "
            f"from offset {self.queue_offset}: {self.status}>"
        )


_receipt_of = cast(Callable[[tuple[Any, ...]], Receipt], partial(tuple.__new__, Receipt))
"""`Receipt._make` without its detour by Python."""


def _numbered(start: str, form: str, numbers: Sequence[int]) -> Iterator[str]:
    """Each number in hex, as wide as its form is, after `start`."""
    packed = struct.pack(form % len(numbers), *numbers)
    width = len(packed) // len(numbers)
    return map(start.__add__, packed.hex(" ", width).upper().split(" "))


def read_receipt(batch: Sent, answer: NodeAnswer) -> BatchReceipt | MqError:
    """The receipt; an answer that cannot be read is an unknown outcome."""
    try:
        return BatchReceipt(batch, answer.header)
    except UNREADABLE as error:
        return stored_unread(error)
