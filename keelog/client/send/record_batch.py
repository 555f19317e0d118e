"""Batches of encoded records: which queue each goes to, their requests, and what becomes of them.

Values in, values out; `client.send.sender` sends them. Receipts are made on demand from the node's
answer to `append`.
"""

import random
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import accumulate, repeat
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from keelog.client.messages import ordered_queue
from keelog.client.results import Receipt, TopicInfo
from keelog.client.transport.exchange import Call, NodeAnswer, NodeRole, Outcome
from protocol.errors import BadRequest, IllegalMessage, MqError, OutcomeUnknownError, SendTimeout
from protocol.ids import offset_message_id, parse_host
from protocol.kernel import loader
from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import ANY_QUEUE, EncodedBatch

T = TypeVar("T")
Results = Sequence[Receipt] | MqError
OFFSET_HEX_CHARS = 16
UNREADABLE = (MqError, LookupError, ValueError, TypeError)
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
            self.queue_id, self.queue_offset, self.physical_offset, self.store_timestamp = first
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
                repeat(self.flushed), repeat(self.store_timestamp), repeat(0),
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
        kernel = loader.kernel
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
            place = self._repeats.get(row)
            if place is None:
                place = Place(self.queue_id, queue_offset, places[row], self.store_timestamp)
                queue_offset += 1
            yield place.receipt(self.topic, key, self._answer)

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


class Place(NamedTuple):
    """Where a message is stored: of a repeated one, the first message with its unique key."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int

    def receipt(self, topic: str, unique_key: str, answer: Mapping[str, Any]) -> Receipt:
        start, physical = id_start(answer["store_host"]), self.physical_offset
        return Receipt(
            answer["status"], topic, self.queue_id, self.queue_offset, physical,
            f"{start}{physical:0{OFFSET_HEX_CHARS}X}", unique_key,
            answer["flushed"], self.store_timestamp,
        )  # fmt: skip


def repeats_of(answer: Mapping[str, Any]) -> dict[int, Place]:
    """By row, the messages that were stored before; see docs/protocol.md, 'Stored once'."""
    return {row: Place(*place) for row, *place in answer.get("repeated", ())}


@lru_cache(maxsize=64)
def id_start(store_host: str) -> str:
    """The common beginning of all message ids of a node."""
    return offset_message_id(parse_host(store_host), 0)[:-OFFSET_HEX_CHARS]


def hex_after(start: str, form: str, numbers: Sequence[int]) -> Iterator[str]:
    """Each number in upper-case hex after `start`; `form` packs all of them with struct."""
    packed = struct.pack(form % len(numbers), *numbers)
    width = len(packed) // len(numbers)
    return map(start.__add__, packed.hex(" ", width).upper().split(" "))


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
    if rows != 1:
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
    except UNREADABLE as error:
        return unreadable(error)


def unreadable(error: Exception) -> SendTimeout:
    """The error of messages whose answer cannot be read."""
    return SendTimeout(
        f"append: the answer cannot be read ({error!r}), but the messages are stored"
    )


TOPICS_S_MAX = 30.0
"""The client asks for the queues of topics again after this time, as RocketMQ's clients do."""
DEFAULT_WRITE_QUEUES = 8
"""The queues of a topic that a send creates."""
_QUEUE_ID = struct.Struct(">i")
_QUEUE_ID_AT = SHORT_HEAD.offsets["queue_id"]


class EncodedMessage(NamedTuple):
    """One encoded message. `slot` is for the caller: where its outcome goes."""

    record: bytes
    topic: str
    queue_id: int
    order_by: str | None
    unique_key: str
    slot: Any
    later: Later | None = None


Deliver = Callable[[Sequence[EncodedMessage], Results], None]


class WriteQueues:
    """How many queues each topic is written to, as far as the client knows, and which is next."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._learned_at = -TOPICS_S_MAX
        self._next: dict[str, int] = {}

    def know(self, topics: AbstractSet[str]) -> bool:
        """Whether it has learned of all these topics of late."""
        if not topics:
            return True
        return monotonic() < self._learned_at + TOPICS_S_MAX and topics <= self._counts.keys()

    def queue_for(self, topic: str, order_by: str | None) -> int:
        """The queue of an ordering key, or else the next in turn, from a random start."""
        queues = self._counts.get(topic) or DEFAULT_WRITE_QUEUES
        if order_by is not None:
            return ordered_queue(order_by, queues)
        turn = self._next.get(topic)
        if turn is None:
            turn = random.randrange(queues)
        self._next[topic] = turn + 1
        return turn % queues

    def learn(self, topics: Iterable[Mapping[str, Any]]) -> None:
        """Takes what the writer says of all topics."""
        found = map(TopicInfo.of, topics)
        self._counts = {topic.topic: topic.write_queues for topic in found}
        self._learned_at = monotonic()

    def expire(self) -> None:
        """Has the node asked anew, as it has refused what these counts led to."""
        self._learned_at = monotonic() - TOPICS_S_MAX


class BatchRequest(NamedTuple):
    """The content of one request. `any_queue`: the node chooses one queue for all of it. `entries`
    and `queue_ids` are empty where a batch of one queue is sent as a whole."""

    records: bytes | memoryview
    sizes: Sequence[int]
    crc: int
    any_queue: bool
    entries: Sequence[EncodedMessage] = ()
    queue_ids: Sequence[int] = ()
    later: Later | None = None

    def call(self, batch: "RecordBatch", done: Callable[[Outcome], None]) -> Call:
        fields = append_fields(
            self.records, len(self.sizes), self.crc, self.any_queue,
            batch.wait, batch.once, self.later, batch.right,
        )  # fmt: skip
        return Call(
            NodeRole.WRITER, "append", fields, batch.deadline,
            payload=self.records, repeatable=False, done=done,
        )  # fmt: skip

    def receipts(self, header: Mapping[str, Any]) -> Sequence[Receipt]:
        """Makes a receipt for each entry from the answer, in their order.

        Raises BadRequest when the answer counts other records, and what a header without the right
        fields raises.
        """
        entries = self.entries
        if len(entries) == 1:
            entry = entries[0]
            return (lone_receipt(entry.topic, entry.queue_id, entry.unique_key, header),)
        if self.any_queue:
            # Not the entries: these hold the records.
            keys = [entry.unique_key for entry in entries]
            return BatchReceipt(entries[0].topic, self.sizes, keys, header)
        repeated = repeats_of(header)
        next_offset: dict[tuple[str, int], int] = {}
        count = len(repeated)
        for topic, queue_id, queue_offset, rows in header["queues"]:
            next_offset[topic, queue_id] = queue_offset
            count += rows
        if len(repeated) == len(entries):
            count = len(repeated)  # the queue is that of a first message
        check_count(count, len(entries))
        start, status, flushed = id_start(header["store_host"]), header["status"], header["flushed"]
        time, physical = header["store_timestamp"], header["physical_offset"]
        found: list[Receipt] = []
        for entry, size, queue_id in zip(entries, self.sizes, self.queue_ids, strict=True):
            if (first := repeated.get(len(found))) is not None:
                found.append(first.receipt(entry.topic, entry.unique_key, header))
                continue
            queue = entry.topic, queue_id
            msg_id = f"{start}{physical:0{OFFSET_HEX_CHARS}X}"
            row = status, entry.topic, queue_id, next_offset[queue], physical, msg_id
            found.append(Receipt(*row, entry.unique_key, flushed, time))
            next_offset[queue] += 1
            physical += size
        return found


def in_queue(entry: EncodedMessage, queue_id: int) -> EncodedMessage:
    """The message for a queue that the client has chosen."""
    record = bytearray(entry.record)
    _QUEUE_ID.pack_into(record, _QUEUE_ID_AT, queue_id)
    return entry._replace(record=bytes(record), queue_id=queue_id)


@dataclass(slots=True, eq=False)
class RecordBatch(ABC):
    """Records that are sent together. `wait` is the field of that name; `deadline` is in seconds of
    the monotonic clock. `has_relearned`: its queues were asked for again after a refusal. `right`:
    of a process of the node, which may append to the system's topics. `once`: the node stores each
    unique key once."""

    wait: str | None
    deadline: float
    has_relearned: bool = field(default=False, kw_only=True)
    right: str | None = field(default=None, kw_only=True)
    once: bool = field(default=False, kw_only=True)

    @abstractmethod
    def open_topics(self) -> AbstractSet[str]:
        """The topics of which the client has to choose a queue."""

    @abstractmethod
    def requests(self, queues: WriteQueues) -> list[BatchRequest]:
        """Gives each record its queue, and returns what to send."""

    @abstractmethod
    def end(self, request: BatchRequest, outcome: Outcome) -> None:
        """Hands out the receipts of a request, or its error."""

    @abstractmethod
    def fail(self, error: MqError) -> None:
        """Ends all of it without receipts."""

    @abstractmethod
    def relearned(self, request: BatchRequest) -> "RecordBatch":
        """The records of a request, to be sent again with newly learned queues."""

    @abstractmethod
    def smaller(self, request: BatchRequest, error: MqError) -> "Sequence[RecordBatch]":
        """The records of a refused request in smaller batches, so that good ones are stored without
        a bad one; empty where splitting gains nothing. A refusal has stored nothing."""


@dataclass(slots=True, eq=False)
class EntryBatch(RecordBatch):
    """Messages of any topics and queues. `deliver` is called for each part of them that has its
    answer.

    `one_queue`: the node chooses one queue for all entries of a topic of which none names a queue,
    otherwise the client takes the queues in turn.
    """

    deliver: Deliver
    one_queue: bool
    entries: Sequence[EncodedMessage]

    @property
    def _is_lone(self) -> bool:
        """Whether it is one message which the client has no queue to choose for: many batches are,
        and get to the network without the rest."""
        return len(self.entries) == 1 and self.one_queue and self.entries[0].order_by is None

    def _split(self) -> tuple[list[EncodedMessage], dict[str, list[EncodedMessage]]]:
        """The entries that the client has a queue for, or chooses one; by topic, those whose queue
        the node chooses.

        Not where one of the topic has a queue already: it could be the same one, and what the node
        chooses for is a request of its own, so the order of the entries would be lost.
        """
        placed: list[EncodedMessage] = []
        left: dict[str, list[EncodedMessage]] = {}
        mixed = {
            entry.topic
            for entry in self.entries
            if entry.queue_id != ANY_QUEUE or entry.order_by is not None
        }
        for entry in self.entries:
            is_left = self.one_queue and entry.topic not in mixed
            (left.setdefault(entry.topic, []) if is_left else placed).append(entry)
        return placed, left

    def open_topics(self) -> AbstractSet[str]:
        if self._is_lone:
            return frozenset()
        return {entry.topic for entry in self._split()[0] if entry.queue_id == ANY_QUEUE}

    def requests(self, queues: WriteQueues) -> list[BatchRequest]:
        """One for all that have a queue, and one for each topic that is left to the node. An
        unknown one, which the node creates, is taken to have the usual queues: the node refuses a
        wrong guess, and the batch is sent again."""
        if self._is_lone:
            entry = self.entries[0]
            return [request_of(self.entries, entry.record, (entry.queue_id,))]
        late = [one for one in self.entries if one.later]
        if late and len(self.entries) > 1:
            # Each delayed message is a request of its own.
            now = [one for one in self.entries if not one.later]
            parts = [*([now] if now else []), *([one] for one in late)]
            batches = (replace(self, entries=part) for part in parts)
            return [request for batch in batches for request in batch.requests(queues)]
        placed, left = self._split()
        found = [_placed_request(placed, queues)] if placed else []
        for entries in left.values():
            records = b"".join(entry.record for entry in entries)
            found.append(request_of(entries, records, (ANY_QUEUE,)))
        return found

    def end(self, request: BatchRequest, outcome: Outcome) -> None:
        results: Results
        if isinstance(outcome, MqError):
            results = outcome
        else:
            results = read_receipts(request.receipts, outcome)
        self.deliver(request.entries, results)

    def fail(self, error: MqError) -> None:
        self.deliver(self.entries, error)

    def relearned(self, request: BatchRequest) -> "EntryBatch":
        return replace(self, entries=request.entries, has_relearned=True)

    def smaller(self, request: BatchRequest, error: MqError) -> "list[EntryBatch]":
        """First topic by topic; then queue by queue, where a queue may be at fault, or in halves,
        where a record may be, or the whole be too large for a segment."""
        groups = _grouped(request.entries, lambda entry: entry.topic)
        if len(groups) == 1 and isinstance(error, BadRequest):
            groups = _grouped(request.entries, lambda entry: (entry.queue_id, entry.order_by))
        if len(groups) == 1 and isinstance(error, IllegalMessage):
            middle = len(request.entries) // 2
            groups = [request.entries[:middle], request.entries[middle:]] if middle else groups
        return [replace(self, entries=group) for group in groups] if len(groups) > 1 else []


def _grouped(
    entries: Sequence[EncodedMessage], key: Callable[[EncodedMessage], object]
) -> list[Sequence[EncodedMessage]]:
    groups: dict[object, list[EncodedMessage]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return list(groups.values())


def _placed_request(entries: Sequence[EncodedMessage], queues: WriteQueues) -> BatchRequest:
    """The client chooses the queues that are open still."""
    queue_ids = [entry.queue_id for entry in entries]
    if ANY_QUEUE not in queue_ids:
        return request_of(entries, b"".join(entry.record for entry in entries), queue_ids)
    records = bytearray().join(entry.record for entry in entries)
    start = _QUEUE_ID_AT
    for row, entry in enumerate(entries):
        if entry.queue_id == ANY_QUEUE:
            queue_ids[row] = queues.queue_for(entry.topic, entry.order_by)
            _QUEUE_ID.pack_into(records, start, queue_ids[row])
        start += len(entry.record)
    return request_of(entries, bytes(records), queue_ids)


def request_of(
    entries: Sequence[EncodedMessage], records: bytes, queue_ids: Sequence[int]
) -> BatchRequest:
    """Of entries that all have a queue, or all have none."""
    sizes = [len(entry.record) for entry in entries]
    any_queue = queue_ids[0] == ANY_QUEUE
    return BatchRequest(
        records, sizes, zlib.crc32(records), any_queue, entries, queue_ids,
        entries[0].later,
    )  # fmt: skip


class EncodedColumns(NamedTuple):
    """Encoded messages of one topic and queue."""

    topic: str
    queue_id: int
    encoded: EncodedBatch
    unique_keys: Sequence[str]

    def entries(self, slots: Iterable[Any]) -> list[EncodedMessage]:
        """The messages one by one, each with its slot."""
        records, sizes = self.encoded.records.tobytes(), self.encoded.sizes.tolist()
        rows = zip(sizes, accumulate(sizes), self.unique_keys, slots, strict=True)
        return [
            EncodedMessage(records[end - size : end], self.topic, self.queue_id, None, key, slot)
            for size, end, key, slot in rows
        ]

    def placed(self, queue_id: int) -> "EncodedColumns":
        if queue_id == self.queue_id:
            return self
        sizes = self.encoded.sizes.astype(np.int64)
        records = self.encoded.records.copy()
        places = (np.cumsum(sizes) - sizes + _QUEUE_ID_AT)[:, None] + np.arange(4)
        records[places] = np.frombuffer(_QUEUE_ID.pack(queue_id), np.uint8)
        encoded = EncodedBatch(records, self.encoded.sizes, zlib.crc32(records.data))
        return self._replace(queue_id=queue_id, encoded=encoded)


@dataclass(slots=True, eq=False)
class ColumnBatch(RecordBatch):
    """Messages of one topic and queue. `done` is called once, with the outcome of all of them.

    With `deliver` and `slots` the good messages are stored without a bad one, and each learns its
    own outcome, as in an EntryBatch; a batch of the user's is stored as a whole, or not at all.
    """

    columns: EncodedColumns
    done: Callable[[BatchReceipt | MqError], None]
    order_by: str | None = None
    deliver: Deliver | None = None
    slots: Iterable[Any] = ()

    def open_topics(self) -> AbstractSet[str]:
        return frozenset() if self.order_by is None else {self.columns.topic}

    def requests(self, queues: WriteQueues) -> list[BatchRequest]:
        """One, for the queue of `order_by` where there is one."""
        if self.order_by is not None:
            queue_id = queues.queue_for(self.columns.topic, self.order_by)
            self.columns = self.columns.placed(queue_id)
        encoded, any_queue = self.columns.encoded, self.columns.queue_id == ANY_QUEUE
        return [BatchRequest(encoded.records.data, encoded.sizes, encoded.crc, any_queue)]  # type: ignore[arg-type]

    def end(self, request: BatchRequest, outcome: Outcome) -> None:
        found = outcome if isinstance(outcome, MqError) else read_receipts(self._receipt, outcome)
        if isinstance(found, OutcomeUnknownError):
            found = found.about(self.columns.topic, self.columns.unique_keys)
        self.done(found)

    def _receipt(self, header: Mapping[str, Any]) -> BatchReceipt:
        columns = self.columns
        return BatchReceipt(columns.topic, columns.encoded.sizes, columns.unique_keys, header)

    def fail(self, error: MqError) -> None:
        self.done(error)

    def relearned(self, request: BatchRequest) -> "ColumnBatch":
        self.has_relearned = True
        return self

    def smaller(self, request: BatchRequest, error: MqError) -> Sequence[RecordBatch]:
        """Its messages one by one, in halves, where one of them may be at fault."""
        if self.deliver is None or not isinstance(error, IllegalMessage):
            return ()
        entries = self.columns.entries(self.slots)
        whole = EntryBatch(self.wait, self.deadline, self.deliver, True, entries)
        return whole.smaller(request._replace(entries=entries), error)
