"""Batches of `Producer.send_batch`: many messages for one queue, encoded and sent as one.

Nothing here happens message by message: bodies are joined, the kernel makes the records, and the
receipt is columns (`client.send.receipts`).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import monotonic

from keelog.client.messages import Body
from keelog.client.options import BatchOptions
from keelog.client.send.encode import Encoder
from keelog.client.send.receipts import BatchReceipt
from keelog.client.send.record_batch import ColumnBatch, RecordBatch
from protocol.errors import MqError, NodeBusy, RequestTimeout

BATCHES_BYTES_MAX = 64 * 1024 * 1024
"""Of all batches of one producer that have no answer; a first one always goes."""


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
