"""Futures whose tasks go on without a call of the event loop for each of them.

A plain future has the loop call its task in the next turn; that is as much work as the task's own
way to its next message. Whoever brings many outcomes at once calls the tasks here instead.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context

from node.client_types import Receipt
from protocol.errors import MqError


class ReceiptFuture(asyncio.Future[Receipt]):
    """For one task, which awaits it before anything else."""

    __slots__ = ("context", "resume")
    context: Context
    resume: Callable[["ReceiptFuture"], object]

    def add_done_callback(
        self, fn: Callable[["ReceiptFuture"], object], *, context: Context | None = None
    ) -> None:
        """What lets the task go on, in the task's own context."""
        assert context is not None
        self.resume = fn
        self.context = context

    def cancel(self, msg: object = None) -> bool:
        """As the task's `cancel` asks: the loop lets it go on."""
        is_new = super().cancel(msg)
        if is_new:
            self.get_loop().call_soon(self.resume, self, context=self.context)
        return is_new


def end_all(futures: Iterable[ReceiptFuture], outcomes: Iterable[Receipt | MqError]) -> None:
    """Gives each future its outcome and lets its task go on, in this order.

    For a callback of the loop: no task may be running. Nothing is done for cancelled futures.
    """
    pairs = zip(futures, outcomes, strict=True)
    try:
        for future, outcome in pairs:
            if future.done():
                continue
            if isinstance(outcome, Receipt):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)
            future.context.run(future.resume, future)
    finally:
        # Some are left when a task has raised SystemExit: they learn their outcomes all the same.
        for future, outcome in pairs:
            future.get_loop().call_soon(end_all, [future], [outcome])
