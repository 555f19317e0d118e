"""The fields of `append`, and the receipts that are made of its answer, on demand."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import accumulate, repeat
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from keelog.client.results import Receipt
from keelog.client.send.unique_key import hex_after
from keelog.client.transport.exchange import NodeAnswer
from protocol.errors import BadRequest, MqError, OutcomeUnknownError, SendTimeout
from protocol.ids import offset_message_id, parse_host
from protocol.kernel import loader
from protocol.record.encode import ANY_QUEUE

T = TypeVar("T")
Results = Sequence[Receipt] | MqError
OFFSET_HEX_CHARS = 16
_UNREADABLE = (MqError, LookupError, ValueError, TypeError)
"""Raised by reading an answer of another shape than expected."""
_receipt_of = cast(Callable[[tuple[Any, ...]], Receipt], partial(tuple.__new__, Receipt))
"""`Receipt._make` without its detour by Python."""


class Later(NamedTuple):
    """The field of an append by which a message comes later, and its value."""

    field: str
    value: int


def append_fields(
    records: bytes | memoryview,
    count: int,
    crc: int,
    any_queue: bool,
    wait: str | None,
    once: bool,
    later: Later | None,
    right: str | None = None,
) -> dict[str, Any]:
    """The fields of `append`, as `protocol.requests` declares them."""
    fields: dict[str, Any] = {"count": count, "bytes": len(records), "crc": crc}
    if any_queue:
        fields["queue"] = ANY_QUEUE
    if wait is not None:
        fields["wait"] = wait
    if right is not None:
        fields["right"] = right
    if later is not None:
        fields[later.field] = later.value
    if once and (later is None or later.field == "delay_level"):
        # A timer's answer names its time, which is another one with each attempt.
        fields["once"] = True
    return fields


class BatchReceipt(Sequence[Receipt]):
    """The receipt of a batch: its fields, and as a sequence each message's `Receipt`.

    All messages lie in one queue from `queue_offset` on, and in the log from `physical_offset` on;
    but a repeated one, which was not stored again, lies where the first one is.
    """

    def __init__(
        self,
        topic: str,
        sizes: Sequence[int] | NDArray[np.uint32],
        unique_keys: Sequence[str],
        answer: Mapping[str, Any],
    ) -> None:
        """`sizes`: the bytes of each record. Raises BadRequest when the answer is not about this
        batch, and whatever reading a field raises that is missing."""
        ((self.topic, self.queue_id, self.queue_offset, rows),) = answer["queues"]
        self._repeats = repeats_of(answer)
        new = len(sizes) - len(self._repeats)
        check_count(rows, new or 1)  # of a first message, where none is new
        if self.topic != topic:
            raise BadRequest(f"the answer to append is about {self.topic}, not {topic}")
        self.status: str = answer["status"]
        self.flushed: bool = answer["flushed"]
        self.physical_offset: int = answer["physical_offset"]
        self.store_timestamp: int = answer["store_timestamp"]
        if self._repeats and not new:
            first = self._repeats[0]
            self.queue_id, self.queue_offset = first.queue_id, first.queue_offset
            self.physical_offset, self.store_timestamp = (
                first.physical_offset,
                first.store_timestamp,
            )
        self._sizes = sizes
        self._unique_keys = unique_keys
        self._id_start = id_start(answer["store_host"])
        self._answer = answer if self._repeats else {}

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if self._repeats:
            return list(self)[index]
        rows = range(len(self))[index]
        return (
            [self._receipt(row) for row in rows] if isinstance(rows, range) else self._receipt(rows)
        )

    def __iter__(self) -> Iterator[Receipt]:
        """As by index, but for all of them at a quarter of the cost: column by column."""
        if self._repeats:
            return self._mixed()
        # Of the few records that most batches have, this is faster than numpy.
        sizes = np.asarray(self._sizes).tolist()[:-1]
        first, places = self.queue_offset, list(accumulate(sizes, initial=self.physical_offset))
        return map(
            _receipt_of,
            zip(
                repeat(self.status), repeat(self.topic), repeat(self.queue_id),
                range(first, first + len(places)), places,
                hex_after(self._id_start, ">%dQ", places), self._unique_keys,
                repeat(self.flushed), repeat(self.store_timestamp),
            ),
        )  # fmt: skip

    @cached_property
    def physical_offsets(self) -> NDArray[np.int64]:
        """Where each message begins in the log."""
        sizes = np.asarray(self._sizes, np.uint32)
        if self._repeats:
            sizes = sizes.copy()
            sizes[list(self._repeats)] = 0
        places: NDArray[np.int64] = np.add.accumulate(sizes, dtype=np.int64)
        places += self.physical_offset
        places -= sizes
        for row, first in self._repeats.items():
            places[row] = first.physical_offset
        return places

    def joined_ids(self) -> str:
        """The message ids with commas between them, as RocketMQ's clients get them."""
        kernel = loader.active()
        if kernel is not None and not self._repeats:
            return kernel.join_ids(self._id_start, self.physical_offset, self._sizes)
        places = self.physical_offsets.astype(">i8").tobytes().hex(",", 8).upper()
        return self._id_start + places.replace(",", f",{self._id_start}")

    def unique_key(self, index: int) -> str:
        """The unique key of one message."""
        return self._unique_keys[index]

    def _mixed(self) -> Iterator[Receipt]:
        """Message by message, of a batch with repeated ones."""
        queue_offset, places = self.queue_offset, self.physical_offsets.tolist()
        for row, key in enumerate(self._unique_keys):
            if (first := self._repeats.get(row)) is not None:
                yield first.receipt(self.topic, key, self._answer)
                continue
            new = FirstMessage(self.queue_id, queue_offset, places[row], self.store_timestamp)
            yield new.receipt(self.topic, key, self._answer)
            queue_offset += 1

    def _receipt(self, row: int) -> Receipt:
        physical = int(self.physical_offsets[row]) if row else self.physical_offset
        return Receipt(
            self.status, self.topic, self.queue_id, self.queue_offset + row, physical,
            f"{self._id_start}{physical:0{OFFSET_HEX_CHARS}X}", self._unique_keys[row],
            self.flushed, self.store_timestamp,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<{len(self)} messages in {self.topic}, queue {self.queue_id}, "
            f"from offset {self.queue_offset}: {self.status}>"
        )


class FirstMessage(NamedTuple):
    """Where the first message with the unique key of a repeated one is stored."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int

    def receipt(self, topic: str, unique_key: str, answer: Mapping[str, Any]) -> Receipt:
        """The receipt of the repeated one."""
        start, physical = id_start(answer["store_host"]), self.physical_offset
        return Receipt(
            answer["status"], topic, self.queue_id, self.queue_offset, physical,
            f"{start}{physical:0{OFFSET_HEX_CHARS}X}", unique_key,
            answer["flushed"], self.store_timestamp,
        )  # fmt: skip


def repeats_of(answer: Mapping[str, Any]) -> dict[int, FirstMessage]:
    """By row, the messages that were stored before; see docs/protocol.md, 'Stored once'."""
    return {row: FirstMessage(*place) for row, *place in answer.get("repeated", ())}


@lru_cache(maxsize=64)
def id_start(store_host: str) -> str:
    """The common beginning of all message ids of a node."""
    return offset_message_id(parse_host(store_host), 0)[:-OFFSET_HEX_CHARS]


def check_count(found: int, sent: int) -> None:
    """Raises BadRequest for an answer about other records."""
    if found != sent:
        raise BadRequest(f"the answer to append counts {found} records, {sent} were sent")


def lone_receipt(topic: str, queue_id: int, unique_key: str, header: Mapping[str, Any]) -> Receipt:
    """The receipt of one message that was sent by itself.

    Raises BadRequest when the answer is about another one, and what a header without the right
    fields raises.
    """
    ((found, number, queue_offset, rows),) = header["queues"]
    check_count(rows, 1)
    if found != topic or not (queue_id in (ANY_QUEUE, number) or "repeated" in header):
        raise BadRequest(f"the answer to append is about {found}, not {topic}")
    physical = header["physical_offset"]
    return Receipt(
        header["status"], topic, number, queue_offset, physical,
        f"{id_start(header['store_host'])}{physical:0{OFFSET_HEX_CHARS}X}",
        unique_key, header["flushed"], header["store_timestamp"],
        header.get("deliver_ms", 0),
    )  # fmt: skip


def error_of(error: MqError, topic: str, unique_key: str) -> MqError:
    """The error of one message of a request: one of unknown outcome names the message."""
    if isinstance(error, OutcomeUnknownError):
        return error.about(topic, (unique_key,))
    return error


def read_receipts(read: Callable[[Mapping[str, Any]], T], answer: NodeAnswer) -> T | SendTimeout:
    """Applies `read` to the header. An unreadable answer leaves the outcome unknown."""
    try:
        return read(answer.header)
    except _UNREADABLE as error:
        return SendTimeout(
            f"append: the answer cannot be read ({error!r}), but the messages are stored"
        )
