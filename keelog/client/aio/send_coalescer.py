"""Waiting sends of the tasks of one event loop: those of one turn go as one request.

Plain messages of a topic are gathered as columns, encoded together, and sent and answered in the
loop itself (`client.aio.channel`). All others go the way of the plain client's threads
(`client.send.send_coalescer`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from keelog.client.aio.channel import AsyncioChannel
from keelog.client.core import ClientCore
from keelog.client.messages import Body, MessageOptions, OutgoingMessage
from keelog.client.options import SendOptions
from keelog.client.results import Receipt
from keelog.client.send.columns import NOT_TAKEN, MessageBatch
from keelog.client.send.encode import Encoder
from keelog.client.send.receipts import BatchReceipt, Results
from keelog.client.send.record_batch import ColumnBatch, EncodedMessage
from keelog.client.send.send_coalescer import (
    HELD_S_MAX,
    SEND_BYTES_MAX,
    SEND_RECORDS_MAX,
    UNDER_WAY_MAX,
)
from keelog.client.transport.io_thread import CALLS_MAX
from keelog.client.transport.request import Call
from protocol.errors import MqError, NodeBusy, OutcomeUnknownError

EARLY_RECORDS = 32
"""While this loop has no batch under way, this number of messages goes at once: the node stores
them while the other tasks have their turns."""

ReceiptFuture = asyncio.Future[Receipt]


@dataclass(slots=True, eq=False)
class _GatheredSends:
    """Columns, and the future of each row. `deadline` is that of the oldest."""

    sends: "AsyncioSendCoalescer"
    columns: MessageBatch
    deadline: float
    futures: list[ReceiptFuture] = field(default_factory=list)
    unanswered: int = 0
    in_loop: bool = True
    """Whether the loop's own link carries it."""

    def batch(self, encoder: Encoder) -> ColumnBatch:
        """The encoded batch."""
        return ColumnBatch(
            None, self.deadline, encoder.gathered(self.columns), self.of_all,
            deliver=self.of_some, slots=range(len(self.futures)),
        )  # fmt: skip

    # In the loop, or on the I/O thread.

    def of_all(self, outcome: BatchReceipt | MqError) -> None:
        """All rows have their outcome."""
        self.sends.on_loop(self._resolve, self.futures, outcome)

    def of_some(self, entries: Sequence[EncodedMessage], results: Results) -> None:
        """Some rows have: the slots of the entries."""
        if isinstance(results, OutcomeUnknownError):
            results = results.about(entries[0].topic, [entry.unique_key for entry in entries])
        self.sends.on_loop(self._resolve, [self.futures[entry.slot] for entry in entries], results)

    # In the loop.

    def _resolve(self, futures: list[ReceiptFuture], results: Results) -> None:
        if isinstance(results, MqError):
            for row, future in enumerate(futures):
                if not future.done():
                    future.set_exception(
                        results.of_row(row) if isinstance(results, OutcomeUnknownError) else results
                    )
        else:
            for future, receipt in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(receipt)
        self.unanswered -= len(futures)
        if not self.unanswered:
            self.sends.answered(self)


class AsyncioSendCoalescer:
    """The waiting sends of one client in one loop, whose thread alone calls it."""

    def __init__(self, core: ClientCore, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self.loop = loop
        self._link = AsyncioChannel(core.io, loop)
        core.adopt(self._link)
        self._arrived: deque[tuple[ReceiptFuture, Receipt | MqError]] = deque()
        self._told = False
        self._open: dict[str, _GatheredSends] = {}
        self._full: list[_GatheredSends] = []
        self._under_way = 0
        self._elsewhere = 0
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Ends the link of the loop. What has no answer fails."""
        self._core.drop(self._link)

    def send(self, topic: str, body: Body | OutgoingMessage, options: SendOptions) -> ReceiptFuture:
        """Begins a waiting send. Raises IllegalMessage and its kinds, NodeBusy."""
        gathered = self._open.get(topic) if type(topic) is str else None
        if gathered is None or gathered.columns.take(topic, body, options) == NOT_TAKEN:
            gathered = self._begin(topic, body, options)
            if gathered is None:
                return self._send_by_itself(topic, body, options)
        future: ReceiptFuture = self.loop.create_future()
        futures = gathered.futures
        futures.append(future)
        rows = len(futures)
        if rows == EARLY_RECORDS and not self._under_way:
            self._send_all()
            return future
        if rows >= SEND_RECORDS_MAX:
            self._full.append(self._open.pop(topic))
        if not self._is_due:
            # After the other tasks of this turn.
            self._is_due = True
            self.loop.call_soon(self._go)
        return future

    def _send_by_itself(
        self, topic: str, body: Body | OutgoingMessage, options: SendOptions
    ) -> ReceiptFuture:
        future: ReceiptFuture = self.loop.create_future()
        self._core.send(topic, body, options, partial(self._put, future))
        return future

    def _begin(
        self, topic: str, body: Body | OutgoingMessage, options: SendOptions
    ) -> _GatheredSends | None:
        """New columns that hold the message; None where it goes by itself: it is another kind than
        those of its topic that wait, or something may be wrong with it."""
        self._core.check()
        if "queue_id" in options:
            return None
        columns = self._core.encoder.gathering(topic, cast(MessageOptions, options), SEND_BYTES_MAX)
        if columns is None or columns.take(topic, body, options) == NOT_TAKEN:
            return None
        before = self._open.get(topic)
        if before is not None and before.columns.kind != columns.kind:
            return None
        if sum(len(gathered.futures) for gathered in self._full) >= CALLS_MAX:
            raise NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches")
        if before is not None:
            self._full.append(before)
        gathered = self._open[topic] = _GatheredSends(self, columns, self._core.deadline(None))
        return gathered

    def _go(self) -> None:
        """Sends what waits, or leaves that to an answer, which is awaited for a moment only."""
        if not self._is_due:
            return  # it went early
        if self._under_way < UNDER_WAY_MAX:
            self._send_all()
        elif self._timer is None:
            self._timer = self.loop.call_later(HELD_S_MAX, self._send_all)

    def _send_all(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ready = [*self._full, *self._open.values()]
        self._full.clear()
        self._open.clear()
        for gathered in ready:
            self._under_way += 1
            gathered.unanswered = len(gathered.futures)
            batch = gathered.batch(self._core.encoder)
            if not self._core.sender.carry(batch, partial(self._carry, gathered)):
                self._core.sender.send(batch)

    def _carry(self, gathered: _GatheredSends, call: Call) -> bool:
        """While the I/O thread has a request, the next ones follow it: their order stays."""
        gathered.in_loop = not self._elsewhere and self._link.carry(call)
        self._elsewhere += not gathered.in_loop
        return gathered.in_loop

    def on_loop(self, action: Callable[..., None], *arguments: object) -> None:
        """From any thread. A closed loop drops it: no task waits for the outcome then."""
        if self._link.is_here():
            action(*arguments)
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action, *arguments)

    def answered(self, gathered: _GatheredSends) -> None:
        """All rows of one request have their outcomes."""
        self._under_way -= 1
        self._elsewhere -= not gathered.in_loop
        if self._is_due:
            self._go()

    def _put(self, future: ReceiptFuture, outcome: Receipt | MqError) -> None:
        """On the I/O thread: brings outcomes of single messages to the loop, many at a time."""
        self._arrived.append((future, outcome))
        if not self._told:
            self._told = True
            self.on_loop(self._resolve)

    def _resolve(self) -> None:
        self._told = False
        while self._arrived:
            future, outcome = self._arrived.popleft()
            if future.done():
                continue
            if isinstance(outcome, MqError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
