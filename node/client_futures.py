"""Futures of a producer's messages: cheap to make, resolved many at a time."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from node.client_batch import Entry, Results
from node.client_types import Receipt
from protocol.errors import MqError

_RUNNING = "RUNNING"
_FINISHED = "FINISHED"
"""States of a `concurrent.futures.Future`."""


class ReceiptFuture(Future[Receipt]):
    """As any future that runs already, but all of one producer share a lock, and the receipt is
    made when somebody asks for it."""

    def __init__(self, condition: threading.Condition) -> None:
        # What Future.__init__ does, except for a lock of its own, which would be half the cost.
        self._condition = condition
        self._state = _RUNNING
        self._result: Receipt | None = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        self._receipts: Sequence[Receipt] = ()
        self._row = 0

    def result(self, timeout: float | None = None) -> Receipt:
        """The receipt. Raises what became of the message instead, TimeoutError after `timeout`."""
        self._wait(timeout)
        super().result(0)
        return self._receipts[self._row]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, None when there is a receipt. Raises TimeoutError after `timeout`."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        """Others that share the lock end first: their news are not this one's."""
        if self._state != _FINISHED:
            with self._condition:
                self._condition.wait_for(self.done, timeout)


def resolve(condition: threading.Condition, entries: Sequence[Entry], results: Results) -> None:
    """Ends the futures that are the entries' slots, where they have one."""
    futures: list[ReceiptFuture] = []
    error = results if isinstance(results, MqError) else None
    receipts: Sequence[Receipt] = () if isinstance(results, MqError) else results
    with condition:
        for row, entry in enumerate(entries):
            future = entry.slot
            if future is None:
                continue
            future._exception = error
            future._receipts, future._row = receipts, row
            future._state = _FINISHED
            if future._waiters or future._done_callbacks:
                futures.append(future)
        condition.notify_all()
    _tell(futures)


def _tell(futures: Iterable[ReceiptFuture]) -> None:
    """Those who wait for any of several futures, and done callbacks."""
    for future in futures:
        with future._condition:
            for waiter in future._waiters:
                if future._exception is None:
                    waiter.add_result(future)
                else:
                    waiter.add_exception(future)
        future._invoke_callbacks()  # type: ignore[attr-defined]
