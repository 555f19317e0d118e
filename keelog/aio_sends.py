"""Waiting sends of the tasks of one event loop: those of one turn go as one request.

Plain messages of a topic are gathered as columns and encoded together; their answer is one callback
of the loop. All others go the way of the plain client's threads (`node.client_sends`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from node.client_batch import Entry, Results
from node.client_batches import BatchReceipt
from node.client_columns import NOT_TAKEN, Columns
from node.client_core import ClientCore, SendOptions
from node.client_io import CALLS_MAX
from node.client_message import OutgoingMessage
from node.client_sends import HELD_S_MAX, SEND_RECORDS_MAX, UNDER_WAY_MAX
from node.client_types import Receipt
from protocol.errors import MqError, NodeBusy

ReceiptFuture = asyncio.Future[Receipt]


@dataclass(slots=True, eq=False)
class _Gathered:
    """Columns, and who waits for each row. `deadline` is that of the oldest."""

    sends: "LoopSends"
    columns: Columns
    deadline: float
    futures: list[ReceiptFuture] = field(default_factory=list)
    unanswered: int = 0

    # On the I/O thread.

    def of_all(self, outcome: BatchReceipt | MqError) -> None:
        """All rows have their outcome."""
        self.sends.on_loop(self._resolve, self.futures, outcome)

    def of_some(self, entries: Sequence[Entry], results: Results) -> None:
        """Some rows have: the slots of the entries."""
        self.sends.on_loop(self._resolve, [self.futures[entry.slot] for entry in entries], results)

    # In the loop.

    def _resolve(self, futures: list[ReceiptFuture], results: Results) -> None:
        if isinstance(results, MqError):
            for future in futures:
                if not future.done():
                    future.set_exception(results)
        else:
            for future, receipt in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(receipt)
        self.unanswered -= len(futures)
        if not self.unanswered:
            self.sends.answered()


class LoopSends:
    """The waiting sends of one client in one loop, whose thread alone calls it."""

    def __init__(self, core: ClientCore, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop
        self._arrived: deque[tuple[ReceiptFuture, Receipt | MqError]] = deque()
        self._told = False
        self._open: dict[str, _Gathered] = {}
        self._full: list[_Gathered] = []
        self._under_way = 0
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def send(
        self, topic: str, body: bytes | OutgoingMessage, options: SendOptions
    ) -> ReceiptFuture:
        """Begins a send that does not go alone. Raises IllegalMessage and its kinds, NodeBusy."""
        self._core.check()
        future: ReceiptFuture = self._loop.create_future()
        gathered = self._open.get(topic) if type(topic) is str else None
        if gathered is None or gathered.columns.take(topic, body, options) == NOT_TAKEN:
            gathered = self._begin(topic, body, options)
            if gathered is None:
                self._core.send(topic, body, options, partial(self._put, future))
                return future
        futures = gathered.futures
        futures.append(future)
        if len(futures) >= SEND_RECORDS_MAX:
            self._full.append(self._open.pop(topic))
        if not self._is_due:
            # Behind the other tasks of this turn.
            self._is_due = True
            self._loop.call_soon(self._go)
        return future

    def _begin(
        self, topic: str, body: bytes | OutgoingMessage, options: SendOptions
    ) -> _Gathered | None:
        """New columns that hold the message; None where it goes by itself: it is another kind than
        those of its topic that wait, or something may be wrong with it."""
        columns = self._core.columns(topic, options)
        if columns is None or columns.take(topic, body, options) == NOT_TAKEN:
            return None
        before = self._open.get(topic)
        if before is not None and before.columns.kind != columns.kind:
            return None
        if sum(len(gathered.futures) for gathered in self._full) >= CALLS_MAX:
            raise NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches")
        if before is not None:
            self._full.append(before)
        gathered = self._open[topic] = _Gathered(self, columns, self._core.deadline(None))
        return gathered

    def _go(self) -> None:
        """Sends what waits, or leaves that to an answer, which is awaited for a moment only."""
        if self._under_way < UNDER_WAY_MAX:
            self._send_all()
        elif self._timer is None:
            self._timer = self._loop.call_later(HELD_S_MAX, self._send_all)

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
            self._core.send_columns(gathered.columns, gathered.deadline, gathered)

    def on_loop(self, action: Callable[..., None], *arguments: object) -> None:
        """From the I/O thread. The loop may be closed by now: then nobody waits for the outcome."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action, *arguments)

    def answered(self) -> None:
        """All rows of one request have their outcomes."""
        self._under_way -= 1
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
