"""Futures of a producer's messages: a row of what becomes of a whole batch.

A batch is resolved by setting one field, where its futures look. Only those that somebody waits
for, or that have callbacks, are touched.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

from keelog.client.results import Receipt
from keelog.client.send.receipts import Results, error_of
from keelog.client.send.record_batch import EncodedMessage
from keelog.client.transport.timers import run_all
from protocol.errors import MqError, OutcomeUnknownError

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
        """Ends all futures of the batch."""
        with self.condition:
            self.results = results
            watched, self.watched = self.watched, None
            self.condition.notify_all()
        if watched is not None:
            _tell(watched.values())


Slot = tuple[Outcomes, int]
"""Of an entry: where its outcome goes."""


class ReceiptFuture(Future[Receipt]):
    """As any future that runs already. What `Future` keeps for each one lies in the batch's
    outcomes, or is made when somebody asks for it."""

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
        if found is None or not isinstance(found[0], MqError):
            return None
        error = found[0]
        return error.of_row(found[1]) if isinstance(error, OutcomeUnknownError) else error

    @property
    def _result(self) -> Receipt | None:  # type: ignore[override]
        found = self._outcomes.of(self._row)
        if found is None or isinstance(found[0], MqError):
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
            if isinstance(results, MqError):
                outcomes.parts[own] = error_of(results, entry.topic, entry.unique_key), 0
            else:
                outcomes.parts[own] = results, row
            if outcomes.watched and own in outcomes.watched:
                futures.append(outcomes.watched.pop(own))
        condition.notify_all()
    _tell(futures)


def _tell(futures: Collection[ReceiptFuture]) -> None:
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
