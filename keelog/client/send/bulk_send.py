"""Many messages in one call: `send_many`, and `Producer.send_batch`.

`send_many` sends a list of messages as a few large batches, several of them under way at a time.
`send_batch` has many messages for one queue, encoded and sent as one. Nothing happens message by
message there: bodies are joined, the kernel makes the records, and the receipt is columns
(`client.send.record_batch`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import attrgetter
from time import monotonic
from typing import Any

from keelog.client.messages import Body, MessageOptions, OutgoingMessage
from keelog.client.options import BatchOptions
from keelog.client.results import Receipt
from keelog.client.send.encode import NOT_TAKEN, Encoder, MessageBatch, plain_parts
from keelog.client.send.record_batch import (
    BatchReceipt,
    ColumnBatch,
    EncodedMessage,
    EntryBatch,
    RecordBatch,
    Results,
    error_of,
)
from keelog.client.send.sender import BatchSender
from protocol.errors import MqError, NodeBusy, RequestTimeout

KINDS_MAX = 16
"""Columns of one batch; messages of more kinds would leave too few for each."""
BATCHES_MAX = 8
"""Batches of one `send_many` that wait for their answers."""
RECORDS_MAX = 5_000
"""Records in one batch."""
BATCHES_BYTES_MAX = 64 * 1024 * 1024
"""Of all batches of one producer that have no answer; a first one always goes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A message of `send_many` that was not stored, or about which nothing is known."""

    index: int
    error: MqError


class SendManyError(MqError):
    """Some messages failed: `succeeded` has the receipts of the others, `failed` their errors.

    `failed` counts in the order of the call. Errors of the class OutcomeUnknownError mean that
    the message may be stored; they name it by `topic` and `unique_key`.
    """

    def __init__(self, succeeded: list[Receipt], failed: list[Failure]) -> None:
        first = failed[0]
        count = len(succeeded) + len(failed)
        super().__init__(
            f"{len(failed)} of {count} messages failed; number {first.index}: {first.error}",
            first.error.hint,
        )
        self.succeeded = succeeded
        self.failed = failed


class SendMany:
    """One `send_many`. Its answers come on the I/O thread, `run` waits in the caller's."""

    def __init__(
        self, sender: BatchSender, encoder: Encoder, wait: str | None, timeout: float
    ) -> None:
        self._sender = sender
        self._encoder = encoder
        self._wait = wait
        self._timeout = timeout
        self._condition = threading.Condition()
        self._bytes_unanswered = 0
        self._receipts: dict[int, Receipt] = {}
        self._failed: list[Failure] = []

    def run(
        self,
        topic: str,
        bodies: Iterable[Body | OutgoingMessage],
        options: MessageOptions,
        batch_bytes: int,
    ) -> list[Receipt]:
        """Sends all, waits for all. Raises SendManyError when any failed."""
        batch: list[EncodedMessage] = []
        size = 0
        for entry in self._entries(topic, bodies, options, batch_bytes):
            full = size + len(entry.record) > batch_bytes
            if batch and (full or len(batch) >= RECORDS_MAX):
                self._send(batch, size, BATCHES_MAX * batch_bytes)
                batch, size = [], 0
            batch.append(entry)
            size += len(entry.record)
        if batch:
            self._send(batch, size, BATCHES_MAX * batch_bytes)
        with self._condition:
            # Every batch has a deadline of its own, so this ends.
            self._condition.wait_for(lambda: not self._bytes_unanswered)
        receipts = [self._receipts[index] for index in sorted(self._receipts)]
        if self._failed:
            raise SendManyError(receipts, sorted(self._failed, key=lambda failure: failure.index))
        return receipts

    def _entries(
        self,
        topic: str,
        bodies: Iterable[Body | OutgoingMessage],
        options: MessageOptions,
        bytes_max: int,
    ) -> Iterator[EncodedMessage]:
        """The encoded messages in order: plain ones many at a time, others by themselves."""
        block = _Block(self._encoder, bytes_max)
        for index, body in enumerate(bodies):
            try:
                block.add(topic, body, options, index)
            except MqError as error:
                self._fail(index, error)
            if block.is_full:
                yield from block.encoded()
                block = _Block(self._encoder, bytes_max)
        yield from block.encoded()

    def _send(self, entries: Sequence[EncodedMessage], size: int, bytes_max: int) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: not self._bytes_unanswered or self._bytes_unanswered + size <= bytes_max
            )
            self._bytes_unanswered += size
        deadline = monotonic() + self._timeout
        self._sender.send(EntryBatch(self._wait, deadline, self._deliver, False, entries))

    def _deliver(self, entries: Sequence[EncodedMessage], results: Results) -> None:
        if isinstance(results, MqError):
            for entry in entries:
                self._fail(entry.slot, error_of(results, entry.topic, entry.unique_key))
        else:
            slots = (entry.slot for entry in entries)
            self._receipts.update(zip(slots, results, strict=True))
        with self._condition:
            self._bytes_unanswered -= sum(len(entry.record) for entry in entries)
            self._condition.notify()

    def _fail(self, index: int, error: MqError) -> None:
        self._failed.append(Failure(index, error))


class _Block:
    """Messages that follow each other, gathered until they are encoded: in columns for each kind,
    so that kinds may alternate, and entries of those that have no columns."""

    def __init__(self, encoder: Encoder, bytes_max: int) -> None:
        self._encoder = encoder
        self._bytes_max = bytes_max
        self._columns: dict[tuple[Any, ...], tuple[MessageBatch, list[int]] | None] = {}
        """With the index of each message; None for a kind that has to do without."""
        self._entries: list[EncodedMessage] = []
        self._rows = self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether these make a batch."""
        return self._bytes >= self._bytes_max or self._rows >= RECORDS_MAX

    def add(
        self, topic: str, body: Body | OutgoingMessage, options: MessageOptions, index: int
    ) -> None:
        """Takes one more message. Raises what `Encoder.entry` raises."""
        if isinstance(body, OutgoingMessage):
            # It takes no options beside its own.
            topic, body, options = plain_parts(topic, body) or (topic, body, {})
        if not self._gather(topic, body, options, index):
            entry = self._encoder.entry(topic, body, options, index)
            self._entries.append(entry)
            self._bytes += len(entry.record)
        self._rows += 1

    def _gather(
        self, topic: str, body: Body | OutgoingMessage, options: MessageOptions, index: int
    ) -> bool:
        """Puts the message into the columns of its kind, if it fits into any."""
        if type(body) is not bytes:
            return False
        queue_id = options.get("queue_id")
        kind = topic, options.get("tags"), queue_id, type(queue_id)  # 1.0 is not a queue, 1 is
        try:
            found = self._columns[kind]
        except KeyError:
            found = self._columns[kind] = self._new_columns(topic, options)
        except TypeError:  # a value that cannot be right
            return False
        if found is None:
            return False
        columns, indexes = found
        before = columns.bytes
        if columns.take(topic, body, options) == NOT_TAKEN:
            if not columns.bodies:
                return False
            self._encode(columns, indexes)  # there may be no room
            columns, indexes, before = columns.emptied(), [], 0
            self._columns[kind] = columns, indexes
            if columns.take(topic, body, options) == NOT_TAKEN:
                return False
        indexes.append(index)
        self._bytes += columns.bytes - before
        return True

    def _new_columns(
        self, topic: str, options: MessageOptions
    ) -> tuple[MessageBatch, list[int]] | None:
        if len(self._columns) >= KINDS_MAX:
            return None
        columns = self._encoder.gathering(topic, options, self._bytes_max)
        return None if columns is None else (columns, [])

    def _encode(self, columns: MessageBatch, indexes: list[int]) -> None:
        if indexes:
            self._entries += self._encoder.gathered(columns).entries(indexes)

    def encoded(self) -> list[EncodedMessage]:
        """All of them, in the order of the call."""
        for found in self._columns.values():
            if found is not None:
                self._encode(*found)
        return sorted(self._entries, key=attrgetter("slot"))


class PendingBatches:
    """The batches of one producer that have no answer yet; safe for many threads."""

    def __init__(
        self,
        encoder: Encoder,
        send: Callable[[RecordBatch], object],
        wait: str | None,
        timeout: float,
        batches_max: int,
    ) -> None:
        """`wait`: the field of that name. `timeout`: seconds until the last attempt ends."""
        self._encoder = encoder
        self._send = send
        self._wait = wait
        self._timeout = timeout
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
        self, topic: str, bodies: Sequence[Body], options: BatchOptions, room_timeout: float
    ) -> "Future[BatchReceipt]":
        """Encodes and sends; waits up to `room_timeout` seconds for room. Raises NodeBusy."""
        columns = self._encoder.batch(topic, bodies, options)
        size = len(columns.encoded.records)
        future: Future[BatchReceipt] = Future()
        future.set_running_or_notify_cancel()

        def done(outcome: BatchReceipt | MqError) -> None:
            try:
                if isinstance(outcome, MqError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            finally:
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
        deadline = monotonic() + self._timeout
        self._send(ColumnBatch(self._wait, deadline, columns, done, options.get("order_by")))
        return future

    def _has_room(self, size: int) -> bool:
        fits = self._bytes + size <= BATCHES_BYTES_MAX
        return not self._count or (self._count < self._max and fits)

    def _has_much_room(self, size: int) -> bool:
        """A waiting thread goes on when there is room for some batches: to wake it for each answer
        costs more than to encode a batch."""
        return self._count <= self._low and self._has_room(size)

    def flush(self, timeout: float | None) -> None:
        """Waits until every batch has its answer. Raises RequestTimeout."""
        with self._condition:
            if not self._condition.wait_for(lambda: not self._count, timeout):
                raise RequestTimeout(
                    f"flush: {self._count} batches have no answer yet", "wait longer"
                )
