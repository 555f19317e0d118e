"""What the tasks of an event loop read with: followers of a topic, and the consumer of a group.

A task that is cancelled while it waits gives up waiting and nothing else: the next `async for`, or
`anext`, goes on where it was. `Consumer` is a member of a group, made by
`keelog.aio.Client.consumer`.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import NoReturn, Self

from keelog.client import operations
from keelog.client.consumer.consumer import HANDLER_S_MAX, check_run, failed, not_committed
from keelog.client.consumer.consumer_thread import ConsumerThread
from keelog.client.consumer.options import ConsumerSettings
from keelog.client.consumer.owned_queue import GroupMessage
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.messages import Message
from keelog.client.results import PullResult
from keelog.client.subscription import TURN_S_MAX, Start, Subscription
from keelog.client.transport.exchange import Outcome
from keelog.client.transport.routes import Routes, check_gateway
from protocol.errors import BusyError, MqError

AsyncHandler = Callable[[GroupMessage], Awaitable[object]]


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


class Consumer:
    """As `keelog.Consumer`: use it with `async with`, then `async for`. It joins its group there.

    A thread of its own keeps the membership, so that a blocked loop costs none. Messages are
    settled at once, without an await.
    """

    def __init__(self, core: ClientCore, settings: ConsumerSettings) -> None:
        self._core = core
        self._member = ConsumerThread(core, settings)
        self._arrived = asyncio.Event()
        self._finalizer = weakref.finalize(self, self._member.close_soon)

    @property
    def client_id(self) -> str:
        """The name of this member in its group."""
        return self._member.client_id

    def assignment(self) -> list[tuple[str, int]]:
        """Topic and number of each queue that this member reads now."""
        return self._member.assignment()

    async def __aenter__(self) -> Self:
        answer = await run(self._core, operations.routes(self._core.deadline(None)))
        check_gateway(Routes.of(answer.header), self._core.endpoint)
        loop, arrived = asyncio.get_running_loop(), self._arrived

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(arrived.set)

        self._member.listen(wake)
        self._core.adopt_member(self._member)
        self._member.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def get(self, timeout: float | None = None) -> GroupMessage | None:
        """Waits for a message; None after `timeout` seconds (None: for ever), and after `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    self._arrived.clear()
                    message = self._member.take()
                    if message is not None or self._member.gives_no_more:
                        return message
                    await self._arrived.wait()
        return None

    async def __aiter__(self) -> AsyncIterator[GroupMessage]:
        while (message := await self.get()) is not None:
            yield message
            message.ack()

    async def run(
        self, handler: AsyncHandler, workers: int = 1, timeout: float | None = HANDLER_S_MAX
    ) -> None:
        """Awaits `handler` with each message, in `workers` tasks, until `stop` or `close`.

        A message is handled when the handler returns; where it raises, it comes again. After
        `timeout` seconds a handler is cancelled, and its message comes again. Messages of handlers
        that are cancelled from elsewhere are not settled: they come again elsewhere.
        """
        check_run(workers, timeout)

        async def work() -> None:
            while (message := await self.get()) is not None:
                try:
                    async with asyncio.timeout(timeout):
                        await handler(message)
                except Exception:  # noqa: BLE001 (whatever it is: the message comes again)
                    failed(message)
                else:
                    message.ack()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def commit(self, timeout: float | None = None) -> None:
        """Commits what was handled until now, and waits until the gateway has it.

        Raises RequestTimeout, ClientClosed.
        """
        done = asyncio.wrap_future(self._member.begin_commit())
        try:
            async with asyncio.timeout(self._core.timeout if timeout is None else timeout):
                await done
        except TimeoutError:
            raise not_committed() from None

    def stop(self) -> None:
        """Gives out no more messages, so that loops and `run` end."""
        self._member.stop()

    async def close(self) -> None:
        """Commits what was handled and leaves the group. Harmless when repeated."""
        self._finalizer.detach()
        await asyncio.to_thread(self._member.close)

    def __repr__(self) -> str:
        return f"<keelog.aio consumer {self.client_id}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a consumer cannot be pickled or copied: make one in the other process")
