"""Batches of encoded records: which queue each goes to, the request, and the receipts.

Values in, values out; `client.send.batch_sender` sends them.
"""

import random
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from client.messages import ordered_queue
from client.results import Receipt
from client.transport.request import NodeAnswer
from protocol.errors import BadRequest, IllegalMessage, MqError, RefusedError, SendTimeout
from protocol.message_id import offset_message_id, parse_host
from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import ANY_QUEUE
from protocol.record.encode_batch import EncodedBatch, unique_key_at

_QUEUE_ID = struct.Struct(">i")
_QUEUE_ID_AT = SHORT_HEAD.offsets["queue_id"]
OFFSET_HEX_CHARS = 16
UNREADABLE = (MqError, LookupError, ValueError, TypeError)
"""What reading an answer raises that nobody expected like this."""


class EncodedMessage(NamedTuple):
    """One encoded message. `slot` is whatever the one who waits needs to find it again."""

    record: bytes
    topic: str
    queue_id: int
    order_by: str | None
    unique_key: str
    slot: Any


def entries_of(
    encoded: EncodedBatch,
    topic: str,
    queue_id: int,
    first_key: tuple[str, int],
    slots: Iterable[Any],
) -> list[EncodedMessage]:
    """The messages of an encoded batch one by one, each with its slot."""
    stem, counter = first_key
    records, sizes = encoded.records.tobytes(), encoded.sizes.tolist()
    return [
        EncodedMessage(
            records[end - size : end], topic, queue_id, None,
            unique_key_at(stem, counter + row), slot,
        )
        for row, (size, end, slot) in enumerate(zip(sizes, accumulate(sizes), slots, strict=True))
    ]  # fmt: skip


Results = Sequence[Receipt] | MqError
Deliver = Callable[[Sequence[EncodedMessage], Results], None]


@dataclass(slots=True, eq=False)
class EntryBatch:
    """Entries that go together. `deliver` is called for each part of them that has its answer.

    `one_queue`: the node chooses one queue for all entries of a topic of which none names a queue,
    otherwise the client takes the queues in turn.
    """

    deliver: Deliver
    wait: str | None
    one_queue: bool = False
    entries: list[EncodedMessage] = field(default_factory=list)
    bytes: int = 0
    deadline: float = 0.0
    relearned: bool = False

    def add(self, entry: EncodedMessage) -> None:
        """Appends an entry."""
        self.entries.append(entry)
        self.bytes += len(entry.record)

    def fail(self, error: MqError) -> None:
        """Ends all of it without receipts."""
        self.deliver(self.entries, error)

    def open_topics(self) -> set[str]:
        """The topics of which the client has to choose a queue."""
        left = self.topics_of_one_queue()
        return {
            entry.topic
            for entry in self.entries
            if entry.queue_id == ANY_QUEUE and entry.topic not in left
        }

    def topics_of_one_queue(self) -> set[str]:
        """The topics whose entries all go to a queue that the node chooses.

        Not those with an entry that has a queue already: it could be the same one, and what the
        node chooses for is a request of its own, so the order of the entries would be lost.
        """
        if not self.one_queue:
            return set()
        return {entry.topic for entry in self.entries} - {
            entry.topic
            for entry in self.entries
            if entry.queue_id != ANY_QUEUE or entry.order_by is not None
        }


class RequestPart(NamedTuple):
    """What one request carries. `queue` is -1 where the node chooses one queue for all."""

    entries: Sequence[EncodedMessage]
    queue_ids: Sequence[int]
    records: bytes
    sizes: Sequence[int]
    queue: int | None

    def fields(self, wait: str | None) -> dict[str, Any]:
        """The header of its `append`."""
        fields: dict[str, Any] = {
            "count": len(self.sizes),
            "bytes": len(self.records),
            "crc": zlib.crc32(self.records),
        }
        if len(self.sizes) > 1:  # that of a lone record is `bytes`
            fields["sizes"] = struct.pack(f"<{len(self.sizes)}I", *self.sizes)
        if self.queue is not None:
            fields["queue"] = self.queue
        if wait is not None:
            fields["wait"] = wait
        return fields


def lone_part(entry: EncodedMessage) -> RequestPart:
    """One entry as a request of its own."""
    queue = ANY_QUEUE if entry.queue_id == ANY_QUEUE else None
    return RequestPart((entry,), (entry.queue_id,), entry.record, (len(entry.record),), queue)


class Turns:
    """Takes the queues of each topic in turn, from a random start."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def take(self, topic: str, queues: int) -> int:
        """The next queue of the topic."""
        turn = self._next.get(topic)
        if turn is None:
            turn = random.randrange(queues)
        self._next[topic] = turn + 1
        return turn % queues


def make_parts(
    batch: EntryBatch,
    entries: Sequence[EncodedMessage],
    write_queues: Mapping[str, int],
    turns: Turns,
    default_queues: int,
) -> list[RequestPart]:
    """Gives entries of a batch their queues, and each topic that nobody knows a part of its own.

    Such a part leaves the choice to the node, which makes the topic; entries with `order_by` take
    the queue that they would have among `default_queues`.
    """
    known: list[EncodedMessage] = []
    unknown: dict[str, list[EncodedMessage]] = {}
    left_to_node = batch.topics_of_one_queue()
    for entry in entries:
        open_queue = entry.queue_id == ANY_QUEUE and entry.order_by is None
        if open_queue and (entry.topic in left_to_node or not write_queues.get(entry.topic)):
            unknown.setdefault(entry.topic, []).append(entry)
        else:
            known.append(entry)
    parts = [_part(known, write_queues, turns, default_queues)] if known else []
    for group in unknown.values():
        records = b"".join(entry.record for entry in group)
        sizes = [len(entry.record) for entry in group]
        parts.append(RequestPart(group, [ANY_QUEUE] * len(group), records, sizes, ANY_QUEUE))
    return parts


def _part(
    entries: list[EncodedMessage],
    write_queues: Mapping[str, int],
    turns: Turns,
    default_queues: int,
) -> RequestPart:
    sizes = [len(entry.record) for entry in entries]
    queue_ids = [entry.queue_id for entry in entries]
    if ANY_QUEUE not in queue_ids:
        return RequestPart(
            entries, queue_ids, b"".join(entry.record for entry in entries), sizes, None
        )
    records = bytearray().join(entry.record for entry in entries)
    start = _QUEUE_ID_AT
    for row, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        if entry.queue_id == ANY_QUEUE:
            queues = write_queues.get(entry.topic) or default_queues
            if entry.order_by is None:
                queue_ids[row] = turns.take(entry.topic, queues)
            else:
                queue_ids[row] = ordered_queue(entry.order_by, queues)
            _QUEUE_ID.pack_into(records, start, queue_ids[row])
        start += size
    return RequestPart(entries, queue_ids, bytes(records), sizes, None)


def receipts(part: RequestPart, header: Mapping[str, Any]) -> list[Receipt]:
    """What the answer to `append` says of each entry, in their order.

    Raises BadRequest when the answer counts other records than the request had.
    """
    place = {(topic, queue): first for topic, queue, first, _ in header["queues"]}
    if sum(count for *_, count in header["queues"]) != len(part.entries):
        raise BadRequest("the answer to append counts other records than were sent")
    chosen = header["queues"][0][1] if part.queue == ANY_QUEUE else None
    host = id_start(header["store_host"])
    status, flushed, time = header["status"], header["flushed"], header["store_timestamp"]
    physical = header["physical_offset"]
    found: list[Receipt] = []
    for entry, size, own in zip(part.entries, part.sizes, part.queue_ids, strict=True):
        queue_id = own if chosen is None else chosen
        queue = (entry.topic, queue_id)
        offset = place[queue]
        place[queue] = offset + 1
        msg_id = f"{host}{physical:0{OFFSET_HEX_CHARS}X}"
        found.append(
            Receipt(
                status, entry.topic, queue_id, offset, physical, msg_id,
                entry.unique_key, flushed, time,
            )
        )  # fmt: skip
        physical += size
    return found


class OneQueueReceipts(Sequence[Receipt]):
    """What `receipts` gives for entries that all went into one queue, each made when asked for.

    Raises what a header without the right fields raises.
    """

    def __init__(self, part: RequestPart, header: Mapping[str, Any]) -> None:
        ((self._topic, self._queue_id, self._queue_offset, count),) = header["queues"]
        if count != len(part.entries) or self._topic != part.entries[0].topic:
            raise BadRequest("the answer to append counts other records than were sent")
        self._host = id_start(header["store_host"])
        self._status, self._flushed = header["status"], header["flushed"]
        self._time = header["store_timestamp"]
        # Not the entries: these hold the records.
        self._keys = [entry.unique_key for entry in part.entries]
        self._places = list(accumulate(part.sizes[:-1], initial=header["physical_offset"]))

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[index] for index in range(*row.indices(len(self)))]
        place = self._places[row]
        return Receipt(
            self._status, self._topic, self._queue_id, self._queue_offset + row % len(self), place,
            f"{self._host}{place:0{OFFSET_HEX_CHARS}X}", self._keys[row],
            self._flushed, self._time,
        )  # fmt: skip


def _lone_receipt(part: RequestPart, header: Mapping[str, Any]) -> Receipt:
    """As `receipts`, for one entry."""
    (entry,) = part.entries
    ((topic, queue_id, queue_offset, count),) = header["queues"]
    if count != 1 or topic != entry.topic or entry.queue_id not in (ANY_QUEUE, queue_id):
        raise BadRequest("the answer to append counts other records than were sent")
    physical = header["physical_offset"]
    return Receipt(
        header["status"], topic, queue_id, queue_offset, physical,
        f"{id_start(header['store_host'])}{physical:0{OFFSET_HEX_CHARS}X}",
        entry.unique_key, header["flushed"], header["store_timestamp"],
    )  # fmt: skip


@lru_cache(maxsize=64)
def id_start(store_host: str) -> str:
    """What all message ids of a node begin with."""
    return offset_message_id(parse_host(store_host), 0)[:-OFFSET_HEX_CHARS]


def read_receipts(part: RequestPart, answer: NodeAnswer) -> Results:
    """As `receipts`; an answer that cannot be read is an unknown outcome."""
    try:
        if len(part.entries) == 1:
            return (_lone_receipt(part, answer.header),)
        if part.queue == ANY_QUEUE:
            return OneQueueReceipts(part, answer.header)
        return receipts(part, answer.header)
    except UNREADABLE as error:
        return stored_unread(error)


def stored_unread(error: Exception) -> SendTimeout:
    """What the caller gets for a good answer that is none."""
    return SendTimeout(
        f"append: the answer cannot be read ({error!r}), but the messages are stored"
    )


def smaller(
    entries: Sequence[EncodedMessage],
    error: MqError,
    lone_faults: tuple[type[RefusedError], ...] = (IllegalMessage,),
) -> list[Sequence[EncodedMessage]]:
    """How to split refused entries, so that the good are not lost with the bad.

    A refusal has stored nothing. First topic by topic; then, where a record may be at fault
    (`lone_faults`) or the whole be too large for a segment, into halves. Empty when nothing is
    gained.
    """
    topics: dict[str, list[EncodedMessage]] = {}
    for entry in entries:
        topics.setdefault(entry.topic, []).append(entry)
    if len(topics) > 1:
        return list(topics.values())
    if len(entries) > 1 and isinstance(error, lone_faults):
        middle = len(entries) // 2
        return [entries[:middle], entries[middle:]]
    return []
