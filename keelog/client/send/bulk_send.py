"""`send_many`: a list of messages as a few large batches, several of them under way at a time."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from keelog.client.messages import Body, MessageOptions, OutgoingMessage
from keelog.client.results import Receipt
from keelog.client.send.batch_sender import BatchSender
from keelog.client.send.columns import NOT_TAKEN, MessageBatch
from keelog.client.send.encode import Encoder
from keelog.client.send.receipts import Results, error_of
from keelog.client.send.record_batch import EncodedMessage, EntryBatch
from protocol.errors import MqError

BATCHES_MAX = 8
"""Batches that wait for their answers."""
RECORDS_MAX = 5_000
"""Records in one batch."""


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
        """The encoded messages in order: plain bodies many at a time, others by themselves."""
        columns = self._encoder.gathering(topic, options, bytes_max)
        end = 0
        for index, body in enumerate(bodies):
            row = NOT_TAKEN if columns is None else columns.take(topic, body, options)
            if row == NOT_TAKEN and columns is not None and columns.bodies:
                yield from self._of_columns(columns, end)
                columns = columns.emptied()
                row = columns.take(topic, body, options)
            end = index + 1
            if row != NOT_TAKEN:
                continue
            try:
                # An OutgoingMessage takes no options beside its own.
                rest: MessageOptions = {} if isinstance(body, OutgoingMessage) else options
                yield self._encoder.entry(topic, body, rest, index)
            except MqError as error:
                self._fail(index, error)
        if columns is not None and columns.bodies:
            yield from self._of_columns(columns, end)

    def _of_columns(self, columns: MessageBatch, end: int) -> list[EncodedMessage]:
        """Encodes columns; `end` is the index after their last message."""
        return self._encoder.gathered(columns).entries(range(end - len(columns.bodies), end))

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
