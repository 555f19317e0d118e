"""Followers of asyncio. A task that is cancelled while it waits gives up waiting and nothing else:
the next `async for`, or `anext`, goes on where it was."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Self

from keelog.client.aio.run import run
from keelog.client.core import ClientCore
from keelog.client.messages import Message
from keelog.client.pull_result import PullResult
from keelog.client.subscription import Start, Subscription
from keelog.client.transport.request import Outcome
from protocol.errors import BusyError, MqError

TURN_S_MAX = 1.0
"""How long a follower sleeps at most before it looks around again."""


class PullResults:
    """The answers of one follower. An error, or `aclose`, ends it."""

    def __init__(self, core: ClientCore, tail: Subscription, start: Start) -> None:
        self._core = core
        self._tail = tail
        self._start = start
        self._has_begun = self._is_over = False
        self._last: PullResult | None = None
        # One for each pull under way at most.
        self._arrived: asyncio.Queue[tuple[int, Outcome]] = asyncio.Queue()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PullResult:
        if self._is_over:
            raise StopAsyncIteration
        if self._last is not None:
            self.read_to(self._last, self._last.next_begin_offset)
            self._last = None
            self._tail.note_read(monotonic())
        try:
            found = await self._next()
        except MqError:
            await self.aclose()
            raise
        if found is None:
            await self.commit()
            raise StopAsyncIteration
        self._last = found
        return found

    def read_to(self, result: PullResult, offset: int) -> None:
        """The messages of a result below `offset` were read."""
        if self._tail.cursor is not None:
            self._tail.cursor.read_to(result.queue_id, offset, result.generation)

    async def commit(self, only_when_due: bool = False) -> None:
        """Commits the cursor, if there is one that has moved."""
        cursor, now = self._tail.cursor, monotonic()
        if cursor is None or not (cursor.is_due(now) if only_when_due else cursor.moved()):
            return
        await run(self._core, cursor.commit(now, self._core.deadline(None)))

    async def commit_if_due(self) -> None:
        """As `commit`, now and then. A node that is away gets the place later."""
        with suppress(BusyError):
            await self.commit(only_when_due=True)

    async def _next(self) -> PullResult | None:
        """Awaits nothing while it holds an answer: being cancelled would lose it."""
        core, tail = self._core, self._tail
        if not self._has_begun:
            await run(core, tail.begin(self._start, monotonic(), core.deadline(None)))
            self._has_begun = True
        while True:
            await self.commit_if_due()
            now = monotonic()
            if tail.should_look(now):
                await run(core, tail.look_for_queues(now, core.deadline(None)))
            self._ask(now)
            if tail.has_ended(now):
                return None
            try:
                async with asyncio.timeout(tail.sleep(now, TURN_S_MAX)):
                    queue_id, outcome = await self._arrived.get()
            except TimeoutError:
                continue
            result = tail.take(queue_id, outcome, monotonic())
            if result is not None:
                self._ask(monotonic())  # the node reads on while the caller works
                return result

    def _ask(self, now: float) -> None:
        loop = asyncio.get_running_loop()

        def put(queue_id: int, outcome: Outcome) -> None:
            # A closed loop drops it: no task waits for the answer then.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._arrived.put_nowait, (queue_id, outcome))

        for queue_id, call in self._tail.due(now):
            call.done = partial(put, queue_id)
            self._core.check()
            self._core.reading.call(call)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody called `stop`."""
        return self._tail.is_stopped

    def stop(self) -> None:
        """Ends the iteration from another task or thread: within a second where it waits, else when
        the next item is asked for. The place until then is committed."""
        self._tail.stop()

    async def aclose(self) -> None:
        """Ends it, and commits its cursor. Harmless when repeated."""
        self._is_over = True
        with suppress(MqError):  # what cannot be committed now is read again
            await self.commit()


class MessageStream:
    """The messages of the answers, one after the other."""

    def __init__(self, results: PullResults) -> None:
        self._results = results
        self._result: PullResult | None = None
        self._left: Iterator[Message] = iter(())
        self._last: Message | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._result is not None and self._last is not None:
            self._results.read_to(self._result, self._last.queue_offset + 1)
            self._last = None
            await self._results.commit_if_due()
        if self._results.is_stopped:
            # Here: asking for the next result would count all of this one as read.
            await self.aclose()
            raise StopAsyncIteration
        while True:
            for message in self._left:
                self._last = message
                return message
            self._result = await anext(self._results)
            self._left = iter(self._result.messages)

    def stop(self) -> None:
        """As that of PullResults."""
        self._results.stop()

    async def aclose(self) -> None:
        """Ends it. Harmless when repeated."""
        self._left = iter(())
        await self._results.aclose()
