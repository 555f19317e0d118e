"""`Producer.send_batch`: many messages for one queue, encoded and sent as one.

Nothing here happens message by message: bodies are joined, the kernel makes the records, and the
receipt is columns (`client.send.batch_receipt`).
"""

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from client.messages import Body, MessageOptions, bad_body, ordered_queue
from client.send.batch_receipt import BatchReceipt
from client.send.columns import MessageBatch, kind_of
from client.send.record_batch import EncodedMessage, EntryBatch, Results, entries_of
from client.send.unique_key import UniqueKeyRuns
from client.transport.io_thread import IoThread
from client.transport.request import Call, NodeRole, Outcome
from protocol.errors import BadRequest, ClientClosed, MqError, NodeBusy, RequestTimeout
from protocol.message_id import Host
from protocol.record.codec import SHORT_HEAD
from protocol.record.encode import ANY_QUEUE
from protocol.record.encode_batch import BatchDraft, EncodedBatch, Keys, encode_columns
from protocol.sizes import DEFAULT_MAX_MESSAGE_BYTES

BATCHES_BYTES_MAX = 64 * 1024 * 1024
"""Of all batches of one producer that have no answer; a first one always goes."""

_QUEUE_ID_AT = SHORT_HEAD.offsets["queue_id"]


class BatchOptions(TypedDict, total=False):
    """What `send_batch` takes beside topic and bodies.

    `tags` hold for all messages; `keys` has one item a message, a key or several. All go to one
    queue: `queue_id`, that of `order_by`, or else the next in turn.
    """

    tags: str | None
    keys: Keys | None
    queue_id: int | None
    order_by: str | None


@dataclass(slots=True, eq=False)
class SentBatch:
    """An encoded batch on its way. `done` is called once with its outcome, on the I/O thread."""

    topic: str
    queue_id: int
    order_by: str | None
    encoded: EncodedBatch
    stem: str
    counter: int
    wait: str | None
    done: Callable[[BatchReceipt | MqError], None]
    deadline: float
    relearned: bool = False
    apart: Callable[["SentBatch"], EntryBatch] | None = None
    """Makes entries of it where, other than in a batch of the user's, the good messages are to be
    stored without a bad one."""

    @property
    def sizes(self) -> NDArray[np.uint32]:
        """The bytes of each record."""
        return self.encoded.sizes

    @property
    def rows(self) -> int:
        """How many messages it holds."""
        return len(self.encoded.sizes)

    def entries(self, slots: Iterable[Any]) -> list[EncodedMessage]:
        """Its messages one by one, each with its slot."""
        first = self.stem, self.counter
        return entries_of(self.encoded, self.topic, self.queue_id, first, slots)

    def open_topics(self) -> set[str]:
        """The topic, where the client has to know how many queues it has."""
        return set() if self.order_by is None else {self.topic}

    def fail(self, error: MqError) -> None:
        """Ends it without a receipt."""
        self.done(error)

    def place(self, write_queues: Mapping[str, int], default_queues: int) -> None:
        """Gives messages with `order_by` their queue."""
        if self.order_by is None:
            return
        queue_id = ordered_queue(self.order_by, write_queues.get(self.topic) or default_queues)
        if queue_id == self.queue_id:
            return
        self.queue_id = queue_id
        sizes = self.encoded.sizes.astype(np.int64)
        records = self.encoded.records.copy()
        places = (np.cumsum(sizes) - sizes + _QUEUE_ID_AT)[:, None] + np.arange(4)
        records[places] = np.frombuffer(queue_id.to_bytes(4, "big"), np.uint8)
        self.encoded = EncodedBatch(records, self.encoded.sizes, zlib.crc32(records.data))

    def call(self, done: Callable[[Outcome], None]) -> Call:
        """Its request."""
        return Call(
            NodeRole.WRITER, "append", self._fields(), self.deadline,
            payload=self.encoded.records.data, repeatable=False, done=done,
        )  # fmt: skip

    def _fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "count": len(self.encoded.sizes),
            "bytes": len(self.encoded.records),
            "crc": self.encoded.crc,
        }
        if self.queue_id == ANY_QUEUE:
            found["queue"] = ANY_QUEUE
        if self.wait is not None:
            found["wait"] = self.wait
        return found


class OutcomeSink(Protocol):
    """Who learns, on the I/O thread, what became of columns: of all rows at once, or of some after
    the others, which are the slots of the entries."""

    def of_all(self, outcome: BatchReceipt | MqError) -> None: ...

    def of_some(self, entries: Sequence[EncodedMessage], results: Results) -> None: ...


class BatchEncoder:
    """Encodes batches for one client, as the node's routes say."""

    def __init__(self, io: IoThread, ip: bytes) -> None:
        self._io = io
        self._keys = UniqueKeyRuns(ip)
        self._host = Host(ip, 0)

    def encode(
        self, topic: str, bodies: Sequence[Body], options: BatchOptions
    ) -> tuple[EncodedBatch, BatchDraft]:
        """Raises IllegalMessage and its kinds, MessageTooLarge, BadRequest."""
        rest = options.keys() - BatchOptions.__annotations__.keys()
        queue_id = options.get("queue_id")
        if rest:
            raise BadRequest(f"a batch has no option {min(rest)}", "see help(keelog.Producer)")
        if queue_id is not None and options.get("order_by") is not None:
            raise BadRequest("queue_id and order_by exclude each other", "leave one of them out")
        bodies = _plain(bodies)
        joined = b"".join(bodies)
        sizes = list(map(len, bodies))
        _check_types(topic, options)
        stem, counter = self._keys.take(len(sizes))
        draft = BatchDraft(
            topic=topic,
            bodies=joined,
            sizes=sizes,
            stem=stem,
            counter=counter,
            queue_id=ANY_QUEUE if queue_id is None else queue_id,
            tags=options.get("tags") or "",
            keys=options.get("keys"),
            born_timestamp=int(time() * 1000),
            born_host=self._host,
        )
        routes = self._io.routes
        crc = routes is None or routes.crc
        body_max = DEFAULT_MAX_MESSAGE_BYTES if routes is None else routes.max_message_bytes
        return encode_columns(draft, crc, body_max), draft

    def encode_gathered(self, columns: MessageBatch) -> tuple[EncodedBatch, BatchDraft]:
        """Of messages that are known to be right; they share their time."""
        kind, bodies = columns.kind, columns.bodies
        stem, counter = self._keys.take(len(bodies))
        draft = BatchDraft(
            topic=kind.topic,
            bodies=b"".join(bodies),
            sizes=list(map(len, bodies)),
            stem=stem,
            counter=counter,
            queue_id=kind.queue_id,
            tags=kind.tags,
            keys=columns.all_keys(),
            born_timestamp=int(time() * 1000),
            born_host=self._host,
        )
        return encode_columns(draft, kind.crc, kind.body_max), draft

    def columns(self, topic: str, options: MessageOptions, bytes_max: int) -> MessageBatch | None:
        """Empty columns; None where each message has to be encoded by itself."""
        kind = kind_of(topic, options, self._io.routes)
        return None if kind is None else MessageBatch(kind, options, bytes_max)

    def entries(self, columns: MessageBatch, slots: Iterable[Any]) -> list[EncodedMessage]:
        """The messages of columns one by one, each with its slot."""
        encoded, draft = self.encode_gathered(columns)
        first = draft.stem, draft.counter
        return entries_of(encoded, draft.topic, draft.queue_id, first, slots)

    def record_batch(self, columns: MessageBatch, deadline: float, told: OutcomeSink) -> SentBatch:
        """A request of columns, of which `told` learns what became."""
        encoded, draft = self.encode_gathered(columns)

        def apart(batch: SentBatch) -> EntryBatch:
            entries = batch.entries(range(batch.rows))
            return EntryBatch(told.of_some, batch.wait, True, entries, deadline=deadline)

        return SentBatch(
            draft.topic, draft.queue_id, None, encoded, draft.stem, draft.counter,
            None, told.of_all, deadline, apart=apart,
        )  # fmt: skip


def _plain(bodies: Sequence[Body]) -> Sequence[bytes]:
    """The bodies as bytes, whose lengths are those of what is joined. Raises BadRequest."""
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not hasattr(bodies, "__len__"):
        raise BadRequest(
            f"the bodies are one {type(bodies).__name__}", "give a list or a tuple of bodies"
        )
    if set(map(type, bodies)) <= {bytes}:
        return bodies  # type: ignore[return-value]  # as has been seen just now
    for body in bodies:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise bad_body(body)
    return list(map(bytes, bodies))


def _check_types(topic: str, options: BatchOptions) -> None:
    """Raises BadRequest, where the encoder would raise some TypeError."""
    tags, keys = options.get("tags"), options.get("keys")
    queue_id, order_by = options.get("queue_id"), options.get("order_by")
    fine = (
        isinstance(topic, str)
        and (tags is None or isinstance(tags, str))
        and (keys is None or (isinstance(keys, Sequence) and not isinstance(keys, str | bytes)))
        and (queue_id is None or isinstance(queue_id, int))
        and (order_by is None or isinstance(order_by, str))
    )
    if not fine:
        raise BadRequest(
            "an option of the batch has another type than it should",
            "topic, tags and order_by are text, keys a list, queue_id an integer",
        )


class PendingBatches:
    """The batches of one producer that have no answer yet; safe for many threads."""

    def __init__(
        self, encoder: BatchEncoder, send: Callable[[SentBatch], bool], batches_max: int
    ) -> None:
        self._encoder = encoder
        self._send = send
        self._max = batches_max
        self._low = batches_max - 1 - batches_max // 4
        self._condition = threading.Condition()
        self._count = 0
        self._bytes = 0

    @property
    def unanswered(self) -> int:
        """How many batches have no answer yet."""
        return self._count

    def send(
        self,
        topic: str,
        bodies: Sequence[Body],
        options: BatchOptions,
        acks: tuple[str | None, float],
        room_timeout: float,
    ) -> "Future[BatchReceipt]":
        """Encodes and sends; waits up to `room_timeout` seconds for room. Raises NodeBusy.

        `acks`: the field `wait`, and the seconds until the last attempt ends.
        """
        wait, timeout = acks
        encoded, draft = self._encoder.encode(topic, bodies, options)
        size = len(encoded.records)
        future: Future[BatchReceipt] = Future()
        future.set_running_or_notify_cancel()

        def done(outcome: BatchReceipt | MqError) -> None:
            if isinstance(outcome, MqError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
            with self._condition:
                self._count -= 1
                self._bytes -= size
                if self._count <= self._low:
                    self._condition.notify_all()

        with self._condition:
            if not self._has_room(size):
                self._condition.wait_for(lambda: self._has_much_room(size), room_timeout)
            if not self._has_room(size):
                raise NodeBusy(
                    f"{self._count} batches wait for answers", "raise max_batches, or wait"
                )
            self._count += 1
            self._bytes += size
        batch = SentBatch(
            topic, draft.queue_id, options.get("order_by"), encoded, draft.stem, draft.counter,
            wait, done, monotonic() + timeout,
        )  # fmt: skip
        if not self._send(batch):
            done(ClientClosed())
        return future

    def _has_room(self, size: int) -> bool:
        fits = self._bytes + size <= BATCHES_BYTES_MAX
        return not self._count or (self._count < self._max and fits)

    def _has_much_room(self, size: int) -> bool:
        """Who has to wait goes on when there is room for some batches: to wake a thread for each
        answer costs more than to encode a batch."""
        return self._count <= self._low and self._has_room(size)

    def flush(self, timeout: float | None) -> None:
        """Waits until every batch has its answer. Raises RequestTimeout."""
        with self._condition:
            if not self._condition.wait_for(lambda: not self._count, timeout):
                raise RequestTimeout(
                    f"flush: {self._count} batches have no answer yet", "wait longer"
                )
