"""The consumer of asyncio: a member of a consumer group, made by `keelog.aio.Client.consumer`."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NoReturn, Self

from keelog.client import operations
from keelog.client.aio.run import run
from keelog.client.consumer.consumer import WORKERS_MAX, failed, not_committed
from keelog.client.consumer.consumer_thread import ConsumerThread
from keelog.client.consumer.gateway_place import check_gateway
from keelog.client.consumer.group_message import GroupMessage
from keelog.client.consumer.handler_watch import HANDLER_S_MAX
from keelog.client.consumer.options import ConsumerSettings
from keelog.client.core import ClientCore
from keelog.client.options import check_seconds
from keelog.client.transport.routes import Routes
from protocol.errors import BadRequest

AsyncHandler = Callable[[GroupMessage], Awaitable[object]]


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

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(arrived.set)

        self._member.listen(ring)
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
        if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
            raise BadRequest(f"workers is {workers!r}", f"use 1 to {WORKERS_MAX}")
        if timeout is not None:
            check_seconds("timeout", timeout)

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
