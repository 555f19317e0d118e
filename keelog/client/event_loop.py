"""How an event loop carries a client's operations and sends.

Handing a request to the I/O thread and its answer back costs two changes of threads, and each of
them waits for the interpreter's lock. With `AsyncioChannel` the loop watches a connection to the
writer that it carries itself.

Waiting sends of the tasks of one loop: those of one turn go as one request. Plain messages of a
topic are gathered as columns, encoded together, and sent and answered in the loop itself. All
others go the way of the plain client's threads (`client.send.sender`).

Tasks read with followers of a topic, or with the consumer of a group. A task that is cancelled
while it waits gives up waiting and nothing else: the next `async for`, or `anext`, goes on where it
was.
"""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Self, TypeVar, cast

from keelog.client import operations
from keelog.client.consumer.consumer import (
    HANDLER_S_MAX,
    ConsumerBase,
    check_run,
    failed,
    not_committed,
)
from keelog.client.consumer.consumer_thread import ConsumerThread
from keelog.client.consumer.options import ConsumerSettings
from keelog.client.consumer.queues import GroupMessage
from keelog.client.core import ClientCore
from keelog.client.messages import Body, Message, MessageOptions, OutgoingMessage
from keelog.client.operations import Operation
from keelog.client.options import SendOptions
from keelog.client.results import PullResult, Receipt
from keelog.client.send.encode import NOT_TAKEN, MessageBatch
from keelog.client.send.record_batch import BatchReceipt, ColumnBatch, EncodedMessage, Results
from keelog.client.send.sender import HELD_S_MAX, SEND_BYTES_MAX, SEND_RECORDS_MAX, SendGroup
from keelog.client.subscription import TURN_S_MAX, Start, Subscription
from keelog.client.transport.direct import Channel, ZmtpConnection
from keelog.client.transport.exchange import Call, Decision, NodeRole, Outcome
from keelog.client.transport.io_thread import CALLS_MAX, IoThread
from keelog.client.transport.routes import check_gateway
from protocol.errors import BusyError, MqError, NodeBusy, OutcomeUnknownError

T = TypeVar("T")
LOOK_S = 2.0
"""While calls are under way, the loop checks this often that the node is alive."""
_ALONE = nullcontext()
CLOSE_S = 1.0
"""Another thread that closes the link waits this time for the loop to release it."""
EARLY_RECORDS = 32
"""While this loop has no batch under way, this number of messages goes at once: the node stores
them while the other tasks have their turns."""

ReceiptFuture = asyncio.Future[Receipt]
AsyncHandler = Callable[[GroupMessage], Awaitable[object]]


async def run(core: ClientCore, operation: Operation[T]) -> T:
    """Carries an operation out, awaiting each of its calls."""
    try:
        call = next(operation)
        while True:
            try:
                answer = await asyncio.wrap_future(core.start(call))
            except MqError as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def pass_on_error(ended: asyncio.Future[Any], fail: Callable[[BaseException], None]) -> None:
    """Passes on an unexpected error of a task that has ended: asyncio would log it and go on."""
    if not ended.cancelled() and (error := ended.exception()) is not None:
        fail(error)


class AsyncioChannel(Channel):
    """One for each loop. All but `close` runs in the loop's thread."""

    def __init__(
        self,
        io: IoThread,
        loop: asyncio.AbstractEventLoop,
        taking: AbstractContextManager[object] = _ALONE,
    ) -> None:
        """`taking` is around the outcomes that come together. Make it in the loop's thread."""
        super().__init__(io, NodeRole.WRITER)
        self._loop = loop
        self._taking = taking
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._watches_room = False

    def carry(self, call: Call) -> bool:
        """Begins a call; its `done` will be called once, in the loop, or on the I/O thread where
        that goes on with it. False, at once, when it is for the I/O thread from the beginning."""
        link = self._start(call)
        if link is None:
            return False
        if link.wants_to_send:
            self._watch_room(link)
        if self._timer is None:
            self._wake_at(min(call.deadline, monotonic() + LOOK_S))
        elif call.deadline < self._timer_at:
            self._wake_at(call.deadline)
        return True

    def look_awake(self) -> None:
        """Looks for the answer of a lone call before the loop goes on."""
        link, under_way = self._link, self._exchange.under_way

        def is_there() -> bool:
            if link is None or not link.has_come():
                return False
            self._take_answers(link)
            return not under_way

        if link is not None and under_way:
            self._awake.until(is_there)

    def _begun(self, link: ZmtpConnection) -> None:
        self._loop.add_reader(link.fd, self._look, link)
        self._watch_room(link)

    def _watch_room(self, link: ZmtpConnection) -> None:
        """Until the network has taken everything."""
        if not link.closed and not self._watches_room:
            self._watches_room = True
            self._loop.add_writer(link.fd, self._look, link)

    def _look(self, link: ZmtpConnection) -> None:
        if link.closed:
            return
        self._take_answers(link)
        if self._watches_room and not link.closed and not link.wants_to_send:
            self._watches_room = False
            self._loop.remove_writer(link.fd)

    def _take_answers(self, link: ZmtpConnection, wait: bool = False) -> None:
        with self._taking:
            super()._take_answers(link, wait)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_later(max(0.0, when - monotonic()), self._expire)

    def _expire(self) -> None:
        """Ends the calls whose time is up. One timer for all: most calls outlive none."""
        self._timer = None
        link = self._link
        if link is None:
            return
        now = monotonic()
        link.keep_alive(now)
        if link.is_lost:
            self._lose_all(link)
            return
        super()._end_all(self._exchange.expired(now, link.endpoint))
        if calls := self._exchange.under_way.values():
            first = min(call.deadline for call in calls)
            self._wake_at(min(first, now + LOOK_S))

    def _lose_all(self, link: ZmtpConnection) -> None:
        if not self._loop.is_closed() and not link.closed:
            self._loop.remove_reader(link.fd)
            self._loop.remove_writer(link.fd)
        self._watches_room = False
        ended = self._exchange.closed() if self._closing else ()
        super()._lose_all(link)
        super()._end_all(ended)

    def _end_all(self, ended: Sequence[tuple[Call, Decision]]) -> None:
        if ended:
            # Soon: a caller that learns an outcome may send the next message, and come back here.
            self._loop.call_soon(super()._end_all, ended)

    def _drop(self) -> None:
        link = self._link
        if link is not None:
            # What has come counts.
            self._take_in(link)
            self._lose_all(link)

    def close(self) -> None:
        """Ends the calls that are under way, and the connection. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        if not self._loop.is_running() or self.is_here():
            self._end()
            return
        over = threading.Event()

        def end() -> None:
            self._end()
            over.set()

        with suppress(RuntimeError):  # the loop may be closed just now
            self._loop.call_soon_threadsafe(end)
            over.wait(CLOSE_S)

    def is_here(self) -> bool:
        """Whether the caller runs in the loop."""
        return self._loop.is_running() and threading.get_ident() == self._thread

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._drop()


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
        self._is_notified = False
        self._group: SendGroup[_GatheredSends] = SendGroup(
            self._send_all, lambda when, push: loop.call_later(max(0.0, when - monotonic()), push)
        )
        self._open: dict[str, _GatheredSends] = {}
        """By topic, those that wait and take more."""
        self._elsewhere = 0
        self._is_due = False

    def close(self) -> None:
        """Ends the link of the loop. Sends without an answer fail."""
        self._core.drop(self._link)

    def send(self, topic: str, body: Body | OutgoingMessage, options: SendOptions) -> ReceiptFuture:
        """Begins a waiting send. Raises IllegalMessage and its kinds, NodeBusy."""
        future: ReceiptFuture = self.loop.create_future()
        gathered = self._open.get(topic) if type(topic) is str else None
        if gathered is None or gathered.columns.take(topic, body, options) == NOT_TAKEN:
            gathered = self._begin(topic, body, options)
            if gathered is None:
                self._core.send(topic, body, options, partial(self._put, future))
                return future
        futures = gathered.futures
        futures.append(future)
        rows = len(futures)
        if rows == EARLY_RECORDS and not self._group.under_way:
            self._group.push()
            return future
        if rows >= SEND_RECORDS_MAX:
            del self._open[topic]
        if not self._is_due:
            # After the other tasks of this turn.
            self._is_due = True
            self.loop.call_soon(self._group.push)
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
        before, waiting = self._open.get(topic), self._group.waiting
        if before is not None and before.columns.kind != columns.kind:
            return None
        if sum(len(gathered.futures) for gathered, _ in waiting) >= CALLS_MAX:
            raise NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches")
        gathered = self._open[topic] = _GatheredSends(self, columns, self._core.deadline(None))
        waiting.append((gathered, monotonic() + HELD_S_MAX))
        return gathered

    def _send_all(self, group: SendGroup[_GatheredSends]) -> None:
        self._is_due = False
        self._open.clear()
        ready = [gathered for gathered, _ in group.waiting]
        group.waiting.clear()
        for gathered in ready:
            group.under_way += 1
            gathered.unanswered = len(gathered.futures)
            batch = ColumnBatch(
                None, gathered.deadline, self._core.encoder.gathered(gathered.columns),
                gathered.of_all, deliver=gathered.of_some, slots=range(gathered.unanswered),
            )  # fmt: skip
            if not self._core.sender.carry(batch, partial(self._carry, gathered)):
                self._core.sender.send(batch)

    def _carry(self, gathered: _GatheredSends, call: Call) -> bool:
        """While the I/O thread has a request, the next ones follow it: their order stays."""
        gathered.in_loop = not self._elsewhere and self._link.carry(call)
        self._elsewhere += not gathered.in_loop
        return gathered.in_loop

    def answered(self, gathered: _GatheredSends) -> None:
        """All rows of one request have their outcomes."""
        self._group.under_way -= 1
        self._elsewhere -= not gathered.in_loop
        if self._is_due:
            self._group.push()

    def on_loop(self, action: Callable[..., None], *arguments: object) -> None:
        """From any thread. A closed loop drops it: no task waits for the outcome then."""
        if self._link.is_here():
            action(*arguments)
            return
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action, *arguments)

    def _put(self, future: ReceiptFuture, outcome: Receipt | MqError) -> None:
        """On the I/O thread: brings outcomes of single messages to the loop, many at a time."""
        self._arrived.append((future, outcome))
        if not self._is_notified:
            self._is_notified = True
            self.on_loop(self._resolve)

    def _resolve(self) -> None:
        self._is_notified = False
        while self._arrived:
            future, outcome = self._arrived.popleft()
            if future.done():
                continue
            if isinstance(outcome, MqError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


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


class Consumer(ConsumerBase):
    """As `keelog.Consumer`: use it with `async with`, then `async for`. It joins its group there.

    A thread of its own keeps the membership, so that a blocked loop costs none. Messages are
    settled at once, without an await.
    """

    def __init__(self, core: ClientCore, settings: ConsumerSettings) -> None:
        super().__init__(ConsumerThread(core, settings))
        self._core = core
        self._arrived = asyncio.Event()
        self._finalizer = weakref.finalize(self, self._member.close_soon)

    async def __aenter__(self) -> Self:
        routes = await run(self._core, operations.routes(self._core.deadline(None)))
        check_gateway(routes, self._core.endpoint)
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
