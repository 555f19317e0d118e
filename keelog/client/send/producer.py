"""The producer: gathers messages into batches and sends them while the caller goes on.

The future of each message is a row of what becomes of its whole batch. A batch is resolved by
setting one field, where its futures look. Only those that somebody waits for, or that have
callbacks, are touched.

`send_many` sends a list of messages as a few large batches, several of them under way at a time.
`send_batch` has many messages for one queue, encoded and sent as one. Nothing happens message by
message there: bodies are joined, the kernel makes the records, and the receipt is columns
(`client.send.record_batch`).
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from time import monotonic
from typing import Any, NoReturn, Self, Unpack

from keelog.client.messages import Body, MessageOptions, OutgoingMessage
from keelog.client.options import BatchOptions, ProducerSettings, check_seconds
from keelog.client.results import Receipt
from keelog.client.send.encode import NOT_TAKEN, Encoder, MessageBatch, plain_parts
from keelog.client.send.record_batch import (
    BatchReceipt,
    ColumnBatch,
    EncodedMessage,
    EntryBatch,
    Results,
    error_of,
)
from keelog.client.send.sender import BatchSender
from keelog.client.transport.exchange import no_waiting_here
from keelog.client.transport.io_thread import IoThread, run_all
from protocol import errors
from protocol.wire.frames import PAYLOAD_BYTES_MAX

KINDS_MAX = 16
"""Columns of one batch; messages of more kinds would leave too few for each."""
BATCHES_MAX = 8
"""Batches of one `send_many` that wait for their answers."""
RECORDS_MAX = 5_000
"""Records in one batch."""
BATCHES_BYTES_MAX = 64 * 1024 * 1024
"""Of all batches of one producer that have no answer; a first one always goes."""
_RUNNING = "RUNNING"
_FINISHED = "FINISHED"
"""States of a `concurrent.futures.Future`."""


class Outcomes:
    """The outcomes of the messages of one batch: `results` of all of them at once, or `parts` of
    one after the other (results, and the row in these). `condition` is shared by many."""

    __slots__ = ("condition", "parts", "results", "watched")

    def __init__(self, condition: threading.Condition) -> None:
        self.condition = condition
        self.results: Results | None = None
        self.parts: dict[int, tuple[Results, int]] | None = None
        self.watched: dict[int, ReceiptFuture] | None = None
        """Rows with waiters or callbacks."""

    def of(self, row: int) -> tuple[Results, int] | None:
        """Where the outcome of a message lies; None while it has none."""
        if self.results is not None:
            return self.results, row
        return None if self.parts is None else self.parts.get(row)

    def resolve(self, results: Results) -> None:
        with self.condition:
            self.results = results
            watched, self.watched = self.watched, None
            self.condition.notify_all()
        if watched is not None:
            _notify(watched.values())


Slot = tuple[Outcomes, int]
"""Of an entry: where its outcome goes."""


class ReceiptFuture(Future[Receipt]):
    """As any future that runs already. The fields that `Future` keeps for each one lie in the
    batch's outcomes, or are made when somebody asks for them."""

    __slots__ = ("_callbacks", "_outcomes", "_row", "_watchers")

    def __init__(self, outcomes: Outcomes, row: int) -> None:
        # Not Future.__init__: its lock and lists would be most of the cost.
        self._outcomes = outcomes
        self._row = row

    # The fields that the methods of Future use.

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._outcomes.condition

    @property
    def _state(self) -> str:  # type: ignore[override]
        return _RUNNING if self._outcomes.of(self._row) is None else _FINISHED

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        found = self._outcomes.of(self._row)
        if found is None or not isinstance(found[0], errors.MqError):
            return None
        error = found[0]
        return error.of_row(found[1]) if isinstance(error, errors.OutcomeUnknownError) else error

    @property
    def _result(self) -> Receipt | None:  # type: ignore[override]
        found = self._outcomes.of(self._row)
        if found is None or isinstance(found[0], errors.MqError):
            return None
        return found[0][found[1]]

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        try:
            return self._watchers
        except AttributeError:
            self._watchers: list[Any] = []
            self._watch()
            return self._watchers

    @property
    def _done_callbacks(self) -> list[Callable[[Future[Receipt]], object]]:
        try:
            return self._callbacks
        except AttributeError:
            self._callbacks: list[Callable[[Future[Receipt]], object]] = []
            self._watch()
            return self._callbacks

    def _watch(self) -> None:
        outcomes = self._outcomes
        if outcomes.watched is None:
            outcomes.watched = {}
        outcomes.watched[self._row] = self

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt. Raises what became of the message instead, TimeoutError after `timeout`."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, None when there is a receipt. Raises TimeoutError after `timeout`."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        """Others that share the lock end first: their news are not this one's."""
        if self._outcomes.of(self._row) is None:
            with self._condition:
                self._condition.wait_for(self.done, timeout)


def resolve_entries(entries: Sequence[EncodedMessage], results: Results) -> None:
    """Ends the futures of entries. Their slots are of type Slot."""
    condition = entries[0].slot[0].condition
    futures: list[ReceiptFuture] = []
    with condition:
        for row, entry in enumerate(entries):
            outcomes, own = entry.slot
            if outcomes.parts is None:
                outcomes.parts = {}
            if isinstance(results, errors.MqError):
                outcomes.parts[own] = error_of(results, entry.topic, entry.unique_key), 0
            else:
                outcomes.parts[own] = results, row
            if outcomes.watched and own in outcomes.watched:
                futures.append(outcomes.watched.pop(own))
        condition.notify_all()
    _notify(futures)


def _notify(futures: Collection[ReceiptFuture]) -> None:
    """Wakes the waiters of `concurrent.futures.wait`, and runs done callbacks.

    Raises what a callback raises that is not an Exception, after those of the other futures.
    """
    for future in futures:
        with future._condition:
            for waiter in future._waiters:
                if future._exception is None:
                    waiter.add_result(future)
                else:
                    waiter.add_exception(future)
    run_all(future._invoke_callbacks for future in futures)  # type: ignore[attr-defined]


class Producer:
    """Gathers messages into batches; safe for many threads. Leaving it as a context, or its client,
    sends what it holds and waits for the answers. Made by `Client.producer`.

    Messages of one queue are stored in the order of the calls, unless a batch had to be repeated
    (see `Retry`). Those of `send_nowait` that name no queue go into one queue a batch, which the
    node chooses, in turn.
    """

    def __init__(
        self,
        io: IoThread,
        sender: BatchSender,
        encoder: Encoder,
        check_client: Callable[[], None],
        settings: ProducerSettings,
    ) -> None:
        settings.check()
        self._io = io
        self._sender = sender
        self._encoder = encoder
        self._check_client = check_client
        self._settings = settings
        self._batch_bytes = min(settings.batch_bytes, PAYLOAD_BYTES_MAX)
        # Half of what may be in flight, so that one half is gathered while the other is sent.
        self._batch_count = max(1, settings.max_in_flight // 2)
        self._wait = None if settings.acks == "appended" else settings.acks
        # Taken for each message, so not by way of the condition.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._resolved = threading.Condition()
        # What is gathered: columns, or entries as soon as messages are not all of one kind.
        self._gathered: _GatheredRows | None = None
        self._entries: list[EncodedMessage] = []
        self._entries_bytes = 0
        self._unanswered = 0
        self._due = 0.0
        self._has_timer = False
        self._closed = False
        self._failed = 0
        # Those of `send_batch`.
        self._batches_answered = threading.Condition()
        self._batches = self._batches_bytes = 0
        self._batches_low = settings.max_batches - 1 - settings.max_batches // 4

    @property
    def failed(self) -> int:
        """How many messages of `send_nowait` and `send_oneway` have failed so far."""
        return self._failed

    @property
    def unanswered(self) -> int:
        """How many messages of `send_nowait` and `send_oneway` have no answer yet."""
        with self._lock:
            return self._unanswered + (0 if self._gathered is None else self._gathered.rows)

    def send_nowait(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[MessageOptions]
    ) -> "Future[Receipt]":
        """Takes the message and returns a future of its receipt.

        Raises IllegalMessage and its kinds at once, NodeBusy when the producer stays full. Done
        callbacks of the future run on the client's I/O thread: they must be short. Messages that
        are encoded together share their born timestamp, that of the batch.
        """
        self._check_client()
        with self._lock:
            future = self._gather(topic, body, options)
        return self._send_other(topic, body, options) if future is None else future

    def send_oneway(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[MessageOptions]
    ) -> None:
        """As `send_nowait`, without a future; `failed` counts the messages that were not stored."""
        self.send_nowait(topic, body, **options)

    def send_batch(
        self, topic: str, bodies: Sequence[Body], **options: Unpack[BatchOptions]
    ) -> "Future[BatchReceipt]":
        """Sends the bodies as one batch for one queue; all of them are stored, or none.

        The fastest way in: messages are encoded as a whole, and receipts made when asked for.

        >>> with client.producer() as producer:
        ...     future = producer.send_batch("nuts", [b"one", b"two"], keys=["n-1", "n-2"])
        >>> receipt = future.result()  # a BatchReceipt
        >>> receipt.status, len(receipt), receipt[1].queue_offset  # [1]: a Receipt, as of send
        ('PUT_OK', 2, 1)

        Several batches may be under way (`max_batches`). `keys` has one item a message, a key or
        several. Without `queue_id` and `order_by` the node takes the topic's queues in turn, one a
        batch. Raises at once IllegalMessage and its kinds, BadRequest, MessageTooLarge for more
        than a request may carry, NodeBusy when there stays no room; the future has the others.
        """
        self._check()
        with self._condition:
            self._seal()
        columns = self._encoder.batch(topic, bodies, options)
        size = len(columns.encoded.records)
        future: Future[BatchReceipt] = Future()
        future.set_running_or_notify_cancel()

        def done(outcome: BatchReceipt | errors.MqError) -> None:
            try:
                if isinstance(outcome, errors.MqError):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            finally:
                with self._batches_answered:
                    self._batches -= 1
                    self._batches_bytes -= size
                    if self._batches <= self._batches_low:
                        self._batches_answered.notify_all()

        self._take_batch(size)
        deadline = monotonic() + self._settings.timeout
        order_by = options.get("order_by")
        self._sender.send(ColumnBatch(self._wait, deadline, columns, done, order_by))
        return future

    def _take_batch(self, size: int) -> None:
        """Counts a batch of so many bytes, once there is room for it. Raises NodeBusy.

        A waiting thread goes on when there is room for some batches: to wake it for each answer
        costs more than to encode a batch.
        """

        def has_room() -> bool:
            fits = self._batches_bytes + size <= BATCHES_BYTES_MAX
            return not self._batches or (self._batches < settings.max_batches and fits)

        settings = self._settings
        can_wait = settings.when_full == "block" and not self._io.on_thread()
        with self._batches_answered:
            if can_wait and not has_room():
                self._batches_answered.wait_for(
                    lambda: self._batches <= self._batches_low and has_room(), settings.timeout
                )
            if not has_room():
                raise errors.NodeBusy(
                    f"{self._batches} batches wait for answers", "raise max_batches, or wait"
                )
            self._batches += 1
            self._batches_bytes += size

    def send_many(
        self,
        topic: str,
        bodies: Iterable[Body | OutgoingMessage],
        **options: Unpack[MessageOptions],
    ) -> list[Receipt]:
        """Sends all and waits for all; the receipts are in the order of `bodies`.

        The options hold for every plain body. Messages that are encoded together share their born
        timestamp. Raises SendManyError when any message failed.
        """
        self._check()
        if self._io.on_thread():
            raise no_waiting_here()
        with self._condition:
            self._seal()
        timeout, batch_bytes = self._settings.timeout, self._batch_bytes
        many = SendMany(self._sender, self._encoder, self._wait, timeout, batch_bytes)
        return many.run(topic, bodies, options)

    def flush(self, timeout: float | None = None) -> None:
        """Sends what was gathered, and waits until every message has its answer.

        Raises RequestTimeout when some have none after `timeout` seconds (None: as long as their
        own timeouts last); they may still come.
        """
        self._check_client()
        if self._io.on_thread():
            raise no_waiting_here()
        if timeout is not None:
            check_seconds("timeout", timeout)
        until = None if timeout is None else monotonic() + timeout
        with self._condition:
            self._seal()
            if not self._condition.wait_for(lambda: not self.unanswered, timeout):
                raise errors.RequestTimeout(
                    f"flush: {self.unanswered} messages have no answer yet", "wait longer"
                )
        left = None if until is None else max(0.0, until - monotonic())
        with self._batches_answered:
            if not self._batches_answered.wait_for(lambda: not self._batches, left):
                raise errors.RequestTimeout(
                    f"flush: {self._batches} batches have no answer yet", "wait longer"
                )

    def has_room(self) -> bool:
        """Whether `send_nowait` would take a message at once."""
        return self.unanswered < self._settings.max_in_flight

    def drain(self, timeout: float | None = None) -> None:
        """Waits until `send_nowait` takes a message at once.

        Raises NodeBusy after `timeout` seconds (None: the producer's own).
        """
        self._check_client()
        if timeout is not None:
            check_seconds("timeout", timeout)
        with self._condition:
            self._await_room(self._settings.timeout if timeout is None else timeout)

    def close(self) -> None:
        """Flushes and takes no more messages. Harmless when repeated, and in a forked child, where
        the messages are the parent's."""
        if self._closed and not self.unanswered and not self._batches:
            return
        # Also while another thread closes it: the closing client waits for these answers.
        self._closed = True
        with suppress(errors.ForkedClient):
            self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<keelog producer: {self.unanswered} messages unanswered, {self.failed} failed>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a producer cannot be pickled or copied: make one in the other process")

    def _check(self) -> None:
        self._check_client()
        if self._closed:
            raise errors.ClientClosed("the producer is closed", "make another one")

    def _gather(
        self, topic: str, body: Body | OutgoingMessage, options: MessageOptions
    ) -> ReceiptFuture | None:
        """With the lock held: adds the message to the columns; None when it does not fit there."""
        gathered = self._gathered
        if gathered is None:
            return None
        columns = gathered.columns
        row = columns.take(topic, body, options)
        if row == NOT_TAKEN:
            return None
        if row + 1 >= gathered.rows_max or columns.bytes >= columns.bytes_max:
            self._seal_when_full(gathered)
        return ReceiptFuture(gathered.outcomes, row)

    def _send_other(
        self, topic: str, body: Body | OutgoingMessage, options: MessageOptions
    ) -> ReceiptFuture:
        """Takes a message that needs columns of its own, or to be encoded by itself."""
        self._check()
        columns = self._encoder.gathering(topic, options, self._batch_bytes)
        if columns is not None and columns.take(topic, body, options) != NOT_TAKEN:
            with self._lock:
                self._await_room()
                # Others may have begun the same in between.
                future = self._gather(topic, body, options) or self._begin(columns)
            if future is not None:
                return future
        outcomes = Outcomes(self._resolved)
        self._add(self._encoder.entry(topic, body, options, (outcomes, 0)))
        return ReceiptFuture(outcomes, 0)

    def _begin(self, columns: MessageBatch) -> ReceiptFuture | None:
        """With the lock held: gathers in new columns, which hold a message; None where the batch
        is to be one of entries."""
        if self._gathered is not None and self._gathered.columns.kind == columns.kind:
            self._seal()
        if self._gathered is not None or self._entries:
            return None
        gathered = self._gathered = _GatheredRows(columns, Outcomes(self._resolved))
        self._linger()
        self._seal_when_full(gathered)
        return ReceiptFuture(gathered.outcomes, 0)

    def _seal_when_full(self, gathered: "_GatheredRows") -> None:
        """With the lock held. No more than may be in flight is gathered, so that taking a message
        needs no look at the room."""
        room = self._settings.max_in_flight - self._unanswered
        gathered.rows_max = min(self._batch_count, room)
        columns = gathered.columns
        if gathered.rows >= gathered.rows_max or columns.bytes >= columns.bytes_max:
            self._seal()

    def _add(self, entry: EncodedMessage) -> None:
        with self._lock:
            self._await_room()
            if self._gathered is not None:
                self._take_apart()
            size = len(entry.record)
            if self._entries and self._entries_bytes + size > self._batch_bytes:
                self._seal()
            self._entries.append(entry)
            self._entries_bytes += size
            self._unanswered += 1
            count, is_full = len(self._entries), self._entries_bytes >= self._batch_bytes
            if is_full or count >= self._batch_count:
                self._seal()
            elif count == 1:
                self._linger()

    def _take_apart(self) -> None:
        """With the lock held: goes on with entries, so that messages of several kinds are one
        batch, in the order of the calls."""
        gathered, self._gathered = self._gathered, None
        assert gathered is not None
        self._unanswered += gathered.rows
        columns = self._encoder.gathered(gathered.columns)
        self._entries = columns.entries(gathered.slots())
        self._entries_bytes = len(columns.encoded.records)

    def _await_room(self, timeout: float | None = None) -> None:
        """With the lock held. Waiting without sending what is gathered could last for ever."""
        if self.has_room():
            return
        self._seal()
        settings = self._settings
        if timeout is None:
            timeout = settings.timeout if settings.when_full == "block" else 0
        if timeout and self._io.on_thread():
            raise errors.NodeBusy(
                "a done callback may not wait for the producer", "send from a thread"
            )
        if not self._condition.wait_for(self.has_room, timeout):
            raise errors.NodeBusy(
                f"{self._unanswered} messages wait for answers", "raise max_in_flight, or wait"
            )

    def _linger(self) -> None:
        """With the lock held: what is gathered from now on goes in a moment.

        One timer for all batches: each one's own would wake the I/O thread, which then waits for
        the interpreter while this thread gathers, and sees the next answer only after that.
        """
        self._due = monotonic() + self._settings.linger
        if not self._has_timer:
            self._look_when_due()

    def _look_when_due(self) -> None:
        self._has_timer = self._io.call_at(self._due, self._lingered)
        if not self._has_timer:
            self._seal()

    def _lingered(self) -> None:
        with self._lock:
            self._has_timer = False
            if monotonic() >= self._due:
                self._seal()
            elif self._gathered is not None or self._entries:
                self._look_when_due()

    def _seal(self) -> None:
        """With the lock held: sends what is gathered."""
        deadline = monotonic() + self._settings.timeout
        if self._gathered is not None:
            gathered, self._gathered = self._gathered, None
            self._unanswered += gathered.rows
            self._sender.send(self._batch_of(gathered, deadline))
        elif self._entries:
            entries, self._entries, self._entries_bytes = self._entries, [], 0
            self._sender.send(EntryBatch(self._wait, deadline, self._deliver, True, entries))

    def _batch_of(self, gathered: "_GatheredRows", deadline: float) -> ColumnBatch:
        def done(outcome: BatchReceipt | errors.MqError) -> None:
            try:
                gathered.outcomes.resolve(outcome)
            finally:
                self._answered(gathered.rows, outcome)

        columns = self._encoder.gathered(gathered.columns)
        return ColumnBatch(
            self._wait, deadline, columns, done, deliver=self._deliver, slots=gathered.slots()
        )

    def _deliver(self, entries: Sequence[EncodedMessage], results: Results) -> None:
        """Resolves the futures, then makes room."""
        try:
            resolve_entries(entries, results)
        finally:
            self._answered(len(entries), results)

    def _answered(self, count: int, results: Results) -> None:
        with self._condition:
            self._unanswered -= count
            if isinstance(results, errors.MqError):
                self._failed += count
            self._condition.notify_all()


@dataclass(slots=True, eq=False)
class _GatheredRows:
    """Columns and their outcomes. The batch goes when it has `rows_max` messages."""

    columns: MessageBatch
    outcomes: Outcomes
    rows_max: int = 1

    @property
    def rows(self) -> int:
        return len(self.columns.bodies)

    def slots(self) -> Iterator[Slot]:
        return zip(repeat(self.outcomes), range(self.rows))


@dataclass(frozen=True, slots=True)
class Failure:
    """A message of `send_many` that was not stored, or about which nothing is known."""

    index: int
    error: errors.MqError


class SendManyError(errors.MqError):
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
    """One `send_many`. Its answers come on the I/O thread, `run` waits in the caller's.

    Messages that follow each other are gathered until they are encoded: in columns for each kind,
    so that kinds may alternate, and entries of those that have no columns.
    """

    def __init__(
        self,
        sender: BatchSender,
        encoder: Encoder,
        wait: str | None,
        timeout: float,
        batch_bytes: int,
    ) -> None:
        self._sender = sender
        self._encoder = encoder
        self._wait = wait
        self._timeout = timeout
        self._batch_bytes = batch_bytes
        self._condition = threading.Condition()
        self._bytes_unanswered = 0
        self._receipts: dict[int, Receipt] = {}
        self._failed: list[Failure] = []
        self._columns: dict[tuple[Any, ...], tuple[MessageBatch, list[int]] | None] = {}
        """With the index of each message; None for a kind that has to do without."""
        self._gathered: list[EncodedMessage] = []
        self._rows = self._bytes = 0

    def run(
        self, topic: str, bodies: Iterable[Body | OutgoingMessage], options: MessageOptions
    ) -> list[Receipt]:
        """Sends all, waits for all. Raises SendManyError when any failed."""
        batch: list[EncodedMessage] = []
        size = 0
        for entry in self._entries(topic, bodies, options):
            full = size + len(entry.record) > self._batch_bytes
            if batch and (full or len(batch) >= RECORDS_MAX):
                self._send(batch, size)
                batch, size = [], 0
            batch.append(entry)
            size += len(entry.record)
        if batch:
            self._send(batch, size)
        with self._condition:
            # Every batch has a deadline of its own, so this ends.
            self._condition.wait_for(lambda: not self._bytes_unanswered)
        receipts = [self._receipts[index] for index in sorted(self._receipts)]
        if self._failed:
            raise SendManyError(receipts, sorted(self._failed, key=lambda failure: failure.index))
        return receipts

    def _send(self, entries: Sequence[EncodedMessage], size: int) -> None:
        bytes_max = BATCHES_MAX * self._batch_bytes
        with self._condition:
            self._condition.wait_for(
                lambda: not self._bytes_unanswered or self._bytes_unanswered + size <= bytes_max
            )
            self._bytes_unanswered += size
        deadline = monotonic() + self._timeout
        self._sender.send(EntryBatch(self._wait, deadline, self._deliver, False, entries))

    def _deliver(self, entries: Sequence[EncodedMessage], results: Results) -> None:
        if isinstance(results, errors.MqError):
            self._failed += (
                Failure(entry.slot, error_of(results, entry.topic, entry.unique_key))
                for entry in entries
            )
        else:
            slots = (entry.slot for entry in entries)
            self._receipts.update(zip(slots, results, strict=True))
        with self._condition:
            self._bytes_unanswered -= sum(len(entry.record) for entry in entries)
            self._condition.notify()

    def _entries(
        self, topic: str, bodies: Iterable[Body | OutgoingMessage], options: MessageOptions
    ) -> Iterator[EncodedMessage]:
        """The encoded messages in order: plain ones many at a time, others by themselves."""
        for index, body in enumerate(bodies):
            try:
                self._add(topic, body, options, index)
            except errors.MqError as error:
                self._failed.append(Failure(index, error))
            if self._bytes >= self._batch_bytes or self._rows >= RECORDS_MAX:
                yield from self._take_gathered()
        yield from self._take_gathered()

    def _take_gathered(self) -> list[EncodedMessage]:
        for found in self._columns.values():
            if found is not None:
                self._encode(*found)
        gathered = sorted(self._gathered, key=attrgetter("slot"))
        self._columns, self._gathered, self._rows, self._bytes = {}, [], 0, 0
        return gathered

    def _add(
        self, topic: str, body: Body | OutgoingMessage, options: MessageOptions, index: int
    ) -> None:
        """Takes one more message. Raises what `Encoder.entry` raises."""
        if isinstance(body, OutgoingMessage):
            # It takes no options beside its own.
            topic, body, options = plain_parts(topic, body) or (topic, body, {})
        if not self._gather(topic, body, options, index):
            entry = self._encoder.entry(topic, body, options, index)
            self._gathered.append(entry)
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
            del self._columns[kind]
            return self._gather(topic, body, options, index)
        indexes.append(index)
        self._bytes += columns.bytes - before
        return True

    def _new_columns(
        self, topic: str, options: MessageOptions
    ) -> tuple[MessageBatch, list[int]] | None:
        if len(self._columns) >= KINDS_MAX:
            return None
        columns = self._encoder.gathering(topic, options, self._batch_bytes)
        return None if columns is None else (columns, [])

    def _encode(self, columns: MessageBatch, indexes: list[int]) -> None:
        if indexes:
            self._gathered += self._encoder.gathered(columns).entries(indexes)
