"""The client of a node: `connect`, then send, read and look up. See docs/protocol.md.

Safe for many threads. One I/O thread owns the sockets; after a fork a client refuses to work.
"""

from collections.abc import Iterator
from time import monotonic
from types import TracebackType
from typing import NoReturn, Self, TypeVar, Unpack

from node import client_operations as operations
from node.client_calls import Arrival, Retry
from node.client_core import ClientCore, goes_alone
from node.client_find import Find
from node.client_message import Body, Message, OutgoingMessage
from node.client_operations import Operation
from node.client_options import (
    CreateTopicOptions,
    FindOptions,
    GetOptions,
    ProducerOptions,
    PullOptions,
    SeekOptions,
    SendOptions,
    Time,
)
from node.client_producer import Producer
from node.client_pull import PullResult
from node.client_routes import Routes
from node.client_tail import Start, Tail, TailOptions
from node.client_types import (
    Health,
    NodeStatus,
    QueueOffsets,
    Receipt,
    TopicCreated,
    TopicInfo,
)
from protocol.errors import MqError

T = TypeVar("T")
TURN_S_MAX = 1.0
"""How long a follower sleeps at most before it looks around again."""


def connect(
    url: str | None = None, timeout: float | None = None, retry: Retry | None = None
) -> "Client":
    """A client of the node whose control socket listens at `url`.

    Without arguments KEELOG_NODE and KEELOG_TIMEOUT count, then tcp://127.0.0.1:9870 and 5 s.
    `timeout` is the default for every call, in seconds, all attempts together. Raises
    NotConnected when nobody answers there, BadRequest for a bad address.
    """
    core = ClientCore(url, timeout, retry)
    try:
        run(core, core.open())
    except BaseException:
        core.close()
        raise
    return Client(core)


def run(core: ClientCore, operation: Operation[T]) -> T:
    """Carries an operation out, waiting for each of its calls."""
    try:
        call = next(operation)
        while True:
            try:
                answer = core.ask(call)
            except MqError as error:
                call = operation.throw(error)
            else:
                call = operation.send(answer)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class Client:
    """What `connect` returns; a context manager. Errors are those of `protocol.errors`."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    @property
    def endpoint(self) -> str:
        """The control address."""
        return self._core.endpoint

    @property
    def timeout(self) -> float:
        """The default for every call, in seconds."""
        return self._core.timeout

    # Messages

    def send(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[SendOptions]
    ) -> Receipt:
        """Stores one message and waits for its receipt.

        Raises SendTimeout when nobody can say whether it was stored, NotConnected or NodeBusy
        when it was certainly not, IllegalMessage and its kinds for what a store cannot hold.
        """
        if goes_alone(body, options):
            return run(self._core, self._core.send_alone(topic, body, options))
        receipt: Arrival[Receipt] = Arrival()
        self._core.send(topic, body, options, receipt, may_block=True)
        return receipt.wait()

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer that sends in batches; see ProducerSettings for the options."""
        return self._core.producer(options)

    def pull(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[PullOptions]
    ) -> PullResult:
        """What one queue holds from `offset` on, by RocketMQ's rules; see PullResult.

        `tags` is `"A || B"` or None. The result says where to go on.
        """
        return run(self._core, self._core.pull(topic, queue_id, offset, options))

    def tail(
        self, topic: str, start: Start = "latest", **options: Unpack[TailOptions]
    ) -> Iterator[Message]:
        """Iterates over the messages of all queues, in order within each queue.

        `start`: "latest", "earliest", an offset, -N (the last N of each queue) or a datetime
        (store time). What retention has deleted is passed over. See TailOptions.
        """
        return self._messages(self._core.tail(topic, options), start)

    def consume(
        self, topic: str, start: Start = "latest", **options: Unpack[TailOptions]
    ) -> Iterator[PullResult]:
        """As `tail`, but whole answers: for many messages, as bytes, columns or messages.

        While the caller works on one the next ones are under way.
        """
        return self._results(self._core.consume(topic, options), start)

    def get(self, msg_id: str | None = None, **options: Unpack[GetOptions]) -> Message:
        """One message, by `msg_id`, `physical_offset`, `topic` and `unique_key`, or `topic`,
        `queue_id` and `queue_offset`. Raises NotFound."""
        return run(self._core, self._core.get(msg_id, options))

    def find(self, topic: str, key: str, **options: Unpack[FindOptions]) -> Iterator[Message]:
        """Messages with a key, newest first, in pages of the node; all of them without `limit`."""
        return self._find(self._core.find(topic, key, options))

    # Topics and offsets

    def topics(self, timeout: float | None = None) -> list[TopicInfo]:
        """All topics."""
        return run(self._core, operations.topics(self._core.deadline(timeout)))

    def create_topic(
        self, topic: str, queues: int = 8, **options: Unpack[CreateTopicOptions]
    ) -> TopicCreated:
        """Makes a topic. An existing one stays; without `exist_ok` it is an error (BadRequest)."""
        return run(self._core, self._core.create_topic(topic, queues, options))

    def delete_topic(self, topic: str, timeout: float | None = None) -> bool:
        """Deletes a topic; returns whether it was there."""
        return run(self._core, operations.delete_topic(topic, self._core.deadline(timeout)))

    def offsets(
        self, topic: str, queue_id: int | None = None, timeout: float | None = None
    ) -> list[QueueOffsets]:
        """Where each queue begins and ends."""
        return run(self._core, operations.offsets(topic, queue_id, self._core.deadline(timeout)))

    def seek(self, topic: str, queue_id: int, time: Time, **options: Unpack[SeekOptions]) -> int:
        """The queue offset at a store time, by RocketMQ's edge rules."""
        return run(self._core, self._core.seek(topic, queue_id, time, options))

    # The node

    def status(self, timeout: float | None = None) -> NodeStatus:
        """Processes, log offsets, disk."""
        return run(self._core, operations.status(self._core.deadline(timeout)))

    def health(self, timeout: float | None = None) -> Health:
        """Whether the node is ready, check by check."""
        return run(self._core, operations.health(self._core.deadline(timeout)))

    def routes(self, timeout: float | None = None) -> Routes:
        """Where the node's processes listen."""
        return Routes.of(run(self._core, operations.routes(self._core.deadline(timeout))).header)

    def close(self) -> None:
        """Ends the connection; close producers first, they flush. Harmless when repeated."""
        self._core.close()

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<keelog client of {self.endpoint}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: connect in the other process")

    def _find(self, find: Find) -> Iterator[Message]:
        while not find.done:
            yield from run(self._core, find.page())

    def _messages(self, tail: Tail, start: Start) -> Iterator[Message]:
        for result in self._results(tail, start):
            yield from result.messages

    def _results(self, tail: Tail, start: Start) -> Iterator[PullResult]:
        core = self._core
        with core.pulls() as pulls:
            run(core, tail.begin(start, monotonic(), core.deadline(None)))
            result: PullResult | None = None
            while not tail.finished or result is not None:
                now = monotonic()
                if tail.should_look(now):
                    run(core, tail.look_for_queues(now, core.deadline(None)))
                for queue_id, call in tail.due(now):
                    core.check()
                    pulls.start(queue_id, call)
                if result is not None:
                    # Behind the calls: the node reads on while the caller works.
                    yield result
                    result = None
                    continue
                arrived = pulls.next(tail.sleep(now, TURN_S_MAX))
                if arrived is not None:
                    result = tail.take(*arrived, monotonic())
