"""The client for asyncio: the names of `keelog`, with `await`, `async with` and `async for`.

>>> import asyncio
>>> import keelog.aio
>>> async def send_and_read():
...     async with keelog.aio.connect() as client:
...         await asyncio.gather(*(client.send("limes", b"%d" % n, queue_id=0) for n in range(3)))
...         async for message in client.tail("limes", "earliest"):
...             return message.queue_offset, message.topic
>>> asyncio.run(send_and_read())
(0, 'limes')

A client may be used by several loops, one after the other or in threads of their own. A task
that is cancelled gives up waiting; its message may be stored all the same.

The loop carries plain sends itself, all else is done by the client's own I/O thread; nothing here
blocks the event loop.
"""

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from keelog.client import groups, operations, results
from keelog.client import options as kinds
from keelog.client.consumer.options import ConsumerOptions, Topics
from keelog.client.core import ClientCore, CoreOwner
from keelog.client.event_loop import (
    AsyncioSendCoalescer,
    Consumer,
    MessageStream,
    PullResults,
    run,
)
from keelog.client.groups import GroupInfo
from keelog.client.messages import Body, Message, MessageOptions, OutgoingMessage
from keelog.client.operations import FindPages, Operation
from keelog.client.send.encode import cancelling
from keelog.client.send.producer import Producer as PlainProducer
from keelog.client.send.record_batch import BatchReceipt
from keelog.client.subscription import Start, TailOptions
from keelog.client.transport.exchange import Retry
from keelog.client.transport.keys import PathText, client_keys
from keelog.client.transport.routes import Routes

if TYPE_CHECKING:
    from protocol.access.credentials import Credentials

T = TypeVar("T")
__all__ = ["Client", "Consumer", "MessageStream", "Producer", "PullResults", "connect"]


def connect(
    url: str | None = None,
    timeout: float | None = None,
    retry: Retry | None = None,
    *,
    read_from: str | None = None,
    key: PathText | None = None,
    server_key: PathText | None = None,
    credentials: "Credentials | None" = None,
) -> "Client":
    """As `keelog.connect`: use it with `async with`, or await it. Until then nothing is reached,
    and nobody there is an error of the first call."""
    keys = client_keys(key, server_key)
    return Client(ClientCore(url, timeout, retry, read_from, keys, credentials))


class Client(CoreOwner):
    """A client, made by `connect`. Its methods and errors are those of `keelog.Client`; those that
    wait there are awaited here."""

    def __init__(self, core: ClientCore) -> None:
        super().__init__(core)
        self._sends: AsyncioSendCoalescer | None = None
        self._sends_of: dict[asyncio.AbstractEventLoop, AsyncioSendCoalescer] = {}

    async def _open(self) -> Self:
        """Reaches the node. Raises NotConnected; the client is closed then."""
        try:
            await self._run(self._core.open())
        except BaseException:
            await self.close()
            raise
        return self

    def __await__(self) -> Generator[None, None, Self]:
        return self._open().__await__()

    async def send(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[kinds.SendOptions]
    ) -> results.Receipt:
        """Stores one message and waits for its receipt."""
        # Looked at once: another thread may use the client in its own loop.
        loop, sends = asyncio.get_running_loop(), self._sends
        if sends is None or sends.loop is not loop:
            sends = self._begin(loop)
        return await sends.send(topic, body, options)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> AsyncioSendCoalescer:
        """The client is used in another loop than before; that one may still run."""
        self._core.check()
        for old in [known for known in self._sends_of if known.is_closed()]:
            self._sends_of.pop(old).close()
        if loop not in self._sends_of:
            self._sends_of[loop] = AsyncioSendCoalescer(self._core, loop)
        self._sends = self._sends_of[loop]
        return self._sends_of[loop]

    async def cancel(self, receipt: results.Receipt, timeout: float | None = None) -> None:
        """Takes a message back that was sent with `delay` or `deliver_at`."""
        await self.send(receipt.topic, cancelling(receipt), timeout=timeout)

    def producer(self, **options: Unpack[kinds.ProducerOptions]) -> "Producer":
        """A producer that sends in batches. `when_full` does not apply: see Producer."""
        return Producer(self._core.producer({**options, "when_full": "raise"}))

    async def pull(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[kinds.PullOptions]
    ) -> results.PullResult:
        """Pulls the messages of one queue from `offset` on."""
        call = operations.pull_with(topic, queue_id, offset, options, self.timeout)
        answer = await asyncio.wrap_future(self._core.start(call))
        return results.pull_result(answer, topic, queue_id)

    def tail(
        self, topic: str, start: Start = "latest", **options: Unpack[TailOptions]
    ) -> MessageStream:
        """Iterates over the messages of all queues, in order within each queue.

        A task that is cancelled while it waits, as by a timeout, may go on with it later. With a
        `cursor` end it with `aclose()`, which commits the place.
        """
        tail = self._core.tail(topic, start, options)
        return MessageStream(PullResults(self._core, tail, start))

    def consume(
        self, topic: str, start: Start = "latest", **options: Unpack[TailOptions]
    ) -> PullResults:
        """As `tail`, but whole results: for many messages, as bytes, columns or messages."""
        return PullResults(self._core, self._core.consume(topic, start, options), start)

    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerOptions]) -> Consumer:
        """A member of a consumer group: use it with `async with`, then `async for`."""
        return Consumer(self._core, self._core.consumer_settings(group, topics, options))

    async def get(self, msg_id: str | None = None, **options: Unpack[kinds.GetOptions]) -> Message:
        """One message. Raises NotFound."""
        return await self._run(operations.get(msg_id, options, self._core.deadline))

    def find(
        self, topic: str, key: str, **options: Unpack[kinds.FindOptions]
    ) -> AsyncIterator[Message]:
        """Messages with a key, newest first."""
        self._core.check()
        return self._find(FindPages(topic, key, options, self._core.deadline))

    async def topics(self, timeout: float | None = None) -> list[results.TopicInfo]:
        """All topics."""
        return await self._run(operations.topics(self._core.deadline(timeout)))

    async def create_topic(
        self, topic: str, queues: int | None = None, **options: Unpack[kinds.CreateTopicOptions]
    ) -> results.TopicCreated:
        """Makes a topic, or changes what is given; `exist_ok=False` refuses the latter."""
        return await run(
            self._core, operations.make_topic(topic, queues, options, self._core.deadline)
        )

    async def delete_topic(self, topic: str, timeout: float | None = None) -> results.TopicDeleted:
        """Deletes a topic with all its messages; the result is true if it was there."""
        return await self._run(operations.delete_topic(topic, self._core.deadline(timeout)))

    async def purge_topic(
        self, topic: str, **options: Unpack[kinds.PurgeOptions]
    ) -> results.TopicPurged:
        """Deletes the messages of a topic before a queue offset or a store time."""
        return await self._run(operations.purge_topic(topic, options, self._core.deadline))

    async def offsets(
        self, topic: str, queue_id: int | None = None, timeout: float | None = None,
        *, sizes: bool = False,
    ) -> list[results.QueueOffsets]:  # fmt: skip
        """Returns the first and the next offset of each queue; with `sizes` also its bytes and its
        oldest message's time."""
        deadline = self._core.deadline(timeout)
        return await self._run(operations.offsets(topic, queue_id, deadline, sizes))

    async def seek(
        self, topic: str, queue_id: int, time: datetime | int, **options: Unpack[kinds.SeekOptions]
    ) -> int:
        """The queue offset at a store time."""
        return await run(
            self._core, operations.seek(topic, queue_id, time, options, self._core.deadline)
        )

    async def cursor(self, topic: str, name: str, timeout: float | None = None) -> dict[int, int]:
        """How far the cursor `name` has read: the next offset of each queue."""
        deadline = self._core.deadline(timeout)
        return await self._run(operations.cursor_places(topic, name, deadline))

    async def commit_cursor(
        self,
        topic: str,
        name: str,
        places: Mapping[int, int],
        timeout: float | None = None,
        *,
        generation: int | None = None,
    ) -> None:
        """Sets how far the cursor `name` has read."""
        deadline = self._core.deadline(timeout)
        asked = operations.commit_cursor(topic, name, places, deadline, generation=generation)
        await self._run(asked)

    async def groups(
        self, name: str | None = None, timeout: float | None = None
    ) -> list[GroupInfo]:
        """All consumer groups, or the one of this name: members, queues, lag."""
        return await self._run(groups.groups(name, self._core.deadline(timeout)))

    async def delete_group(self, name: str, timeout: float | None = None) -> bool:
        """Forgets how far a group, or cursor, has come; the result is true if it had a place."""
        return await self._run(groups.delete_group(name, self._core.deadline(timeout)))

    async def status(self, timeout: float | None = None) -> results.NodeStatus:
        """Processes, log offsets, disk."""
        return await self._run(operations.status(self._core.deadline(timeout)))

    async def health(self, timeout: float | None = None) -> results.Health:
        """Whether the node is ready, check by check."""
        return await self._run(operations.health(self._core.deadline(timeout)))

    async def routes(self, timeout: float | None = None) -> Routes:
        """Returns the addresses of the node's processes."""
        return await self._run(operations.routes(self._core.deadline(timeout)))

    async def close(self) -> None:
        """Ends the connection."""
        await asyncio.to_thread(self._core.close)

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<keelog.aio client of {self.endpoint}>"

    async def _run(self, operation: Operation[T]) -> T:
        return await run(self._core, operation)

    async def _find(self, find: FindPages) -> AsyncIterator[Message]:
        while not find.done:
            for message in await self._run(find.page()):
                yield message


class Producer:
    """Gathers messages into batches, as `keelog.Producer`.

    `send_nowait` and `send_batch` never wait, whatever `when_full` says: they raise NodeBusy when
    `max_in_flight` messages, or `max_batches` batches, have no answer. `await drain()` between
    sends prevents the former.
    """

    def __init__(self, producer: PlainProducer) -> None:
        self._producer = producer

    @property
    def failed(self) -> int:
        """How many messages of `send_nowait` and `send_oneway` have failed."""
        return self._producer.failed

    @property
    def unanswered(self) -> int:
        """How many messages of `send_nowait` and `send_oneway` have no answer yet."""
        return self._producer.unanswered

    def has_room(self) -> bool:
        """Whether `send_nowait` would take a message at once."""
        return self._producer.has_room()

    def send_nowait(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[MessageOptions]
    ) -> "asyncio.Future[results.Receipt]":
        """Takes the message; the future gives its receipt."""
        return asyncio.wrap_future(self._producer.send_nowait(topic, body, **options))

    def send_oneway(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[MessageOptions]
    ) -> None:
        """As `send_nowait`, but without a future: `failed` counts what was not stored."""
        self._producer.send_oneway(topic, body, **options)

    def send_batch(
        self, topic: str, bodies: Sequence[Body], **options: Unpack[kinds.BatchOptions]
    ) -> "asyncio.Future[BatchReceipt]":
        """Sends the bodies as one batch for one queue; the future gives its receipt.

        Never waits: it raises NodeBusy when `max_batches` have no answer.
        """
        return asyncio.wrap_future(self._producer.send_batch(topic, bodies, **options))

    async def send_many(
        self,
        topic: str,
        bodies: Iterable[Body | OutgoingMessage],
        **options: Unpack[MessageOptions],
    ) -> list[results.Receipt]:
        """Sends all and waits for all. Raises SendManyError when any message failed."""
        send_many = partial(self._producer.send_many, topic, bodies, **options)
        return await asyncio.to_thread(send_many)

    async def drain(self, timeout: float | None = None) -> None:
        """Waits until `send_nowait` takes a message at once.

        Raises NodeBusy after `timeout` seconds without room (None: the producer's own).
        """
        # Another task may be quicker, so it is looked at again: after this look nobody else runs.
        while not self._producer.has_room():
            await asyncio.to_thread(self._producer.drain, timeout)

    async def flush(self, timeout: float | None = None) -> None:
        """Sends what was gathered, and waits until every message has its answer."""
        await asyncio.to_thread(self._producer.flush, timeout)

    async def close(self) -> None:
        """Flushes and takes no more messages."""
        await asyncio.to_thread(self._producer.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
