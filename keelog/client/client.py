"""The client of a node: `connect`, then send, read and look up. See docs/protocol.md.

Safe for many threads. One I/O thread owns the sockets; after a fork a client refuses to work.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, suppress
from time import monotonic
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from keelog.client import groups, operations, results, subscription
from keelog.client.consumer.consumer import Consumer
from keelog.client.consumer.consumer_thread import ConsumerThread
from keelog.client.consumer.options import ConsumerOptions, Topics
from keelog.client.core import ClientCore, CoreOwner
from keelog.client.groups import GroupInfo
from keelog.client.messages import Body, Message, OutgoingMessage
from keelog.client.operations import FindPages, Operation
from keelog.client.options import (
    CreateTopicOptions,
    FindOptions,
    GetOptions,
    ProducerOptions,
    PullOptions,
    PurgeOptions,
    SeekOptions,
    SendOptions,
    Time,
)
from keelog.client.send.encode import cancelling
from keelog.client.send.producer import Producer
from keelog.client.transport.exchange import Retry
from keelog.client.transport.keys import PathText, client_keys
from keelog.client.transport.routes import Routes, check_gateway
from protocol.errors import BusyError, MqError

if TYPE_CHECKING:
    from protocol.access.credentials import Credentials

T = TypeVar("T")


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
    """A client of the node whose control socket listens at `url`.

    Without arguments KEELOG_NODE and KEELOG_TIMEOUT count, then tcp://127.0.0.1:7850 and 5 s.
    `timeout` is the default for every call, in seconds, all attempts together. `retry` says how
    often what certainly was not stored is tried again. Raises NotConnected when nobody answers
    there, BadRequest for a bad address.

    `read_from` is the control address of a replica of that node: pulls, look-ups and queue bounds
    are answered there, and there alone. They show a message a moment after its send has returned.

    `key` and `server_key` are for nodes with keys (docs/curve.md): the path of your `.key_secret`,
    and the node's public key, or the path of its file. All that goes over TCP is encrypted then.
    Raises NotAllowed where one of both does not know the other, BadKey for a file that others may
    read.

    `credentials` are those of its consumers of groups, where RocketMQ's clients log in
    (docs/security.md).
    """
    keys = client_keys(key, server_key)
    core = ClientCore(url, timeout, retry, read_from, keys, credentials)
    try:
        run(core, core.open())
    except BaseException:
        core.close()
        raise
    return Client(core)


class Client(CoreOwner):
    """A client of one node, made by `connect`, for any number of threads; a context manager.

    Leaving it sends what its producers still hold, then ends the connection.

    Times to wait are seconds, times of messages are datetimes or ms since 1970. Every call takes a
    `timeout`, a deadline for all of its attempts together; without one the client's holds.

    Errors are kinds of `keelog.MqError`, with a `hint` of what to try. Where `retriable` is true,
    nothing was stored and the same call may succeed later: the client has tried that already, as
    `Retry` says. `SendTimeout` means that nobody can say whether a message was stored. Any call may
    raise NotConnected, RequestTimeout (of questions, in its place SendTimeout of sends), BadRequest
    for values that make no sense, ClientClosed, and in a forked child ForkedClient.

    >>> with keelog.connect() as client:
    ...     receipt = client.send("apples", b"three", tags="fruit", keys=["order-17"])
    ...     message = client.get(receipt.msg_id)
    >>> message.body, message.tags, message.keys
    (b'three', 'fruit', ['order-17'])
    """

    # Messages

    def send(
        self, topic: str, body: Body | OutgoingMessage, **options: Unpack[SendOptions]
    ) -> results.Receipt:
        """Stores one message and waits for its receipt.

        `body` is bytes of any kind, or an OutgoingMessage, which says all by itself. Options:
        `tags` (one), `keys`, `properties`, `queue_id` or `order_by` (messages of one such key keep
        their order), `acks="flushed"` (wait for the disk), `timeout`; see SendOptions.

        Raises SendTimeout when nobody can say whether it was stored, NotConnected, NodeBusy or
        ServiceNotAvailable when it was certainly not, IllegalMessage and its kinds for what a store
        cannot hold, UnknownTopic where topics are not made by sends.

        >>> receipt = client.send("pears", b"two", order_by="customer-3")
        >>> receipt.status, receipt.topic, receipt.queue_offset
        ('PUT_OK', 'pears', 0)
        """
        return self._core.send_and_wait(topic, body, options)

    def cancel(self, receipt: results.Receipt, timeout: float | None = None) -> None:
        """Takes a message back that was sent with `delay` or `deliver_at`: nobody gets it.

        Raises IllegalMessage where it is due already, BadRequest for the receipt of another kind
        of message, and as `send`.

        >>> receipt = client.send("pears", b"never mind", delay=3600.0)
        >>> client.cancel(receipt)
        """
        self.send(receipt.topic, cancelling(receipt), timeout=timeout)

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """A producer, which gathers messages and sends them in batches while the caller goes on.

        `linger` (0.005): seconds that a message waits for others. `batch_bytes` (256,000): a batch
        of this size goes at once. `max_in_flight` (1024): messages without an answer; beyond it
        `when_full` says whether `send_nowait` waits ("block", the default) or raises NodeBusy
        ("raise"). `max_batches` (64): the same for `send_batch`. `acks`: "appended" (as the node's
        flush mode says) or "flushed" (on disk). `timeout`: seconds that a batch may take.

        >>> with client.producer() as producer:
        ...     futures = [producer.send_nowait("plums", b"%d" % n) for n in range(100)]
        >>> all(future.result().status == "PUT_OK" for future in futures)
        True
        """
        return self._core.producer(options)

    def pull(
        self, topic: str, queue_id: int, offset: int, **options: Unpack[PullOptions]
    ) -> results.PullResult:
        """What one queue holds from `offset` on, by RocketMQ's rules; see PullOptions.

        The result says where to go on, whatever it found. `wait` seconds, 30 at most, the node
        holds a pull that finds nothing. A queue or topic that is not there is one without messages.

        >>> receipt = client.send("grapes", b"white", queue_id=3)
        >>> result = client.pull("grapes", 3, 0, wait=5.0)
        >>> result.status, [message.body for message in result.messages], result.next_begin_offset
        ('FOUND', [b'white'], 1)
        """
        core = self._core
        call = operations.pull_with(topic, queue_id, offset, options, core.timeout)
        return results.pull_result(core.ask(call), topic, queue_id)

    def tail(
        self,
        topic: str,
        start: subscription.Start = "latest",
        **options: Unpack[subscription.TailOptions],
    ) -> subscription.Follower[Message]:
        """Iterates over the messages of all queues, in order within each queue.

        `start`: "latest", "earliest", an offset, -N (the last N of each queue) or a datetime
        (store time). Messages that retention deleted are passed over. It goes on, through
        restarts of the node too, unless TailOptions say otherwise: `until_end=True` stops at the
        end as it is now, and raises ServiceNotAvailable or StoreDamaged after the last message
        where the node cannot tell where that is. `timeout=30.0` ends it when no message came
        for 30 s, and its `stop()` from another thread. Raises UnknownTopic.

        `cursor="billing"` goes on where that name stopped: the node keeps the place.
        `on_damage="skip"` goes on after a damaged message, in place of MessageDamaged.

        >>> for number in range(3):
        ...     receipt = client.send("figs", b"%d" % number, queue_id=0)
        >>> follower = client.tail("figs", "earliest")
        >>> [next(follower).body for _ in range(3)]
        [b'0', b'1', b'2']
        """
        tail = self._core.tail(topic, start, options)
        return subscription.Follower(tail, self._messages(tail, start))

    def consume(
        self,
        topic: str,
        start: subscription.Start = "latest",
        **options: Unpack[subscription.TailOptions],
    ) -> subscription.Follower[results.PullResult]:
        """As `tail`, but whole replies: for many messages, as bytes, columns or messages.

        While the caller works on one the next ones are under way.

        >>> for receipt in client.producer().send_many("dates", [b"%d" % n for n in range(500)]):
        ...     assert receipt.status == "PUT_OK"
        >>> count = 0
        >>> for result in client.consume("dates", "earliest"):
        ...     count += len(result.columns())
        ...     if count == 500:
        ...         break
        """
        tail = self._core.consume(topic, start, options)
        return subscription.Follower(tail, self._results(tail, start))

    def consumer(self, group: str, topics: Topics, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Joins a consumer group: its members share the queues of the topics, RocketMQ's own
        clients among them.

        `topics`: one, a list, or a mapping of topics to tags. Options: `tags` or `sql`, `start`,
        `auto_commit`, `max_retries`, `orderly`; see ConsumerOptions. The node needs a gateway
        (`--remoting`): NotAllowed without one.

        >>> receipt = client.send("peaches", b"ripe")
        >>> with client.consumer("pickers", "peaches", start="earliest") as consumer:
        ...     for message in consumer:
        ...         message.ack()
        ...         break
        >>> message.body, message.topic
        (b'ripe', 'peaches')
        """
        settings = self._core.consumer_settings(group, topics, options)
        check_gateway(self.routes(), self.endpoint, settings.tls is not None)
        member = ConsumerThread(self._core, settings)
        self._core.adopt_member(member)
        return Consumer(member, self.timeout)

    def get(self, msg_id: str | None = None, **options: Unpack[GetOptions]) -> Message:
        """One message, by `msg_id`, `physical_offset`, `topic` and `unique_key`, or `topic`,
        `queue_id` and `queue_offset`. Raises NotFound, StoreDamaged."""
        return run(self._core, operations.get(msg_id, options, self._core.deadline))

    def find(self, topic: str, key: str, **options: Unpack[FindOptions]) -> Iterator[Message]:
        """Messages with a key, newest first, in pages of the node; all of them without `limit`.

        `since` and `until` bound their store times; `unique=True` looks at unique keys alone. The
        index follows the log by some milliseconds. Raises UnknownTopic, and StoreDamaged after the
        last message where a damaged record may have the key; `on_damage="skip"` goes on instead.
        """
        self._core.check()
        return self._find(FindPages(topic, key, options, self._core.deadline))

    # Topics and offsets

    def topics(self, timeout: float | None = None) -> list[results.TopicInfo]:
        """All topics, in no order, each with its queues and permission."""
        return run(self._core, operations.topics(self._core.deadline(timeout)))

    def create_topic(
        self, topic: str, queues: int | None = None, **options: Unpack[CreateTopicOptions]
    ) -> results.TopicCreated:
        """Makes a topic, with 8 queues unless given. One that is there gets what is given,
        and stays as it was in all else; with `exist_ok=False` it is an error.

        With fewer queues, consumers of groups read no message of the others any more. Raises
        IllegalMessage for the name, NotAllowed for one of the system's, BadRequest.

        >>> client.create_topic("melons", queues=2)
        TopicCreated(topic='melons', queues=2, created=True)
        """
        return run(self._core, operations.make_topic(topic, queues, options, self._core.deadline))

    def delete_topic(self, topic: str, timeout: float | None = None) -> results.TopicDeleted:
        """Deletes a topic with all its messages; the result is true if it was there.

        Nobody can read them any more. A topic that is made anew, as by a send, begins at offset 0.
        """
        return run(self._core, operations.delete_topic(topic, self._core.deadline(timeout)))

    def purge_topic(self, topic: str, **options: Unpack[PurgeOptions]) -> results.TopicPurged:
        """Deletes the messages of a topic before a queue offset or a store time. The offsets of the
        others stay as they are. Raises UnknownTopic, BadRequest."""
        return run(self._core, operations.purge_topic(topic, options, self._core.deadline))

    def offsets(
        self, topic: str, queue_id: int | None = None, timeout: float | None = None,
        *, sizes: bool = False,
    ) -> list[results.QueueOffsets]:  # fmt: skip
        """Where each queue begins and ends, and whether its worker lags, so that there
        may be more; all of them without `queue_id`. With `sizes` also how many bytes it has, and
        since when. Raises UnknownTopic."""
        deadline = self._core.deadline(timeout)
        return run(self._core, operations.offsets(topic, queue_id, deadline, sizes))

    def seek(self, topic: str, queue_id: int, time: Time, **options: Unpack[SeekOptions]) -> int:
        """The queue offset at a store time, by RocketMQ's edge rules: of the first message stored
        at or after it, or the end of the queue."""
        return run(self._core, operations.seek(topic, queue_id, time, options, self._core.deadline))

    def cursor(self, topic: str, name: str, timeout: float | None = None) -> dict[int, int]:
        """How far the cursor `name` has read: the next offset of each queue; empty for a new one.

        `tail` and `consume` keep a cursor by themselves, with the option `cursor`.
        """
        return run(self._core, operations.cursor_places(topic, name, self._core.deadline(timeout)))

    def commit_cursor(
        self,
        topic: str,
        name: str,
        places: Mapping[int, int],
        timeout: float | None = None,
        *,
        generation: int | None = None,
    ) -> None:
        """Sets how far the cursor `name` has read; queues that are not named stay as they are.

        `generation`: as of `pull`; TopicRemoved if the topic was removed later. Raises
        UnknownTopic, and BadRequest for an offset beyond the end of its queue.

        >>> receipt = client.send("limes", b"green", queue_id=1)
        >>> client.commit_cursor("limes", "billing", {1: receipt.queue_offset + 1})
        >>> client.cursor("limes", "billing")
        {1: 1}
        """
        deadline = self._core.deadline(timeout)
        run(
            self._core,
            operations.commit_cursor(topic, name, places, deadline, generation=generation),
        )

    def groups(self, name: str | None = None, timeout: float | None = None) -> list[GroupInfo]:
        """All consumer groups, or the one of this name: members, queues, lag. A cursor is a group
        without members.

        >>> [(one.group, len(one.members)) for one in client.groups("billing")]
        [('billing', 0)]
        """
        return run(self._core, groups.groups(name, self._core.deadline(timeout)))

    def delete_group(self, name: str, timeout: float | None = None) -> bool:
        """Forgets how far a group, or cursor, has come, in all topics; the result is true if it had
        a place. Members that still read commit it anew."""
        return run(self._core, groups.delete_group(name, self._core.deadline(timeout)))

    # The node

    def status(self, timeout: float | None = None) -> results.NodeStatus:
        """Processes, log offsets, disk, as `keelog status` prints them. Raises NotConnected.

        >>> client.status().ready
        True
        """
        return run(self._core, operations.status(self._core.deadline(timeout)))

    def health(self, timeout: float | None = None) -> results.Health:
        """Whether the node is ready, check by check."""
        return run(self._core, operations.health(self._core.deadline(timeout)))

    def routes(self, timeout: float | None = None) -> Routes:
        """Where the node's processes listen."""
        return run(self._core, operations.routes(self._core.deadline(timeout)))

    def close(self) -> None:
        """Sends what producers still hold, waits for their answers, and ends the connection.

        Calls of other threads that have no answer fail: ClientClosed where nothing was sent, else
        SendTimeout. Harmless when repeated, and in a forked child.
        """
        self._core.close()

    def __enter__(self) -> Self:
        self._core.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<keelog client of {self.endpoint}>"

    def _find(self, find: FindPages) -> Iterator[Message]:
        while not find.done:
            yield from run(self._core, find.page())

    def _messages(
        self, tail: subscription.Subscription, start: subscription.Start
    ) -> Generator[Message, None, None]:
        cursor = tail.cursor
        with closing(self._results(tail, start, takes_much=False)) as found:
            for result in found:
                for message in result.messages:
                    yield message
                    if cursor is not None:
                        cursor.read_to(result.queue_id, message.queue_offset + 1, result.generation)
                        self._commit_if_due(cursor)
                    if tail.is_stopped:
                        return

    def _results(
        self, tail: subscription.Subscription, start: subscription.Start, *, takes_much: bool = True
    ) -> Generator[results.PullResult, None, None]:
        try:
            yield from self._pulled(tail, start, takes_much)
        except BaseException:
            if tail.cursor is not None and tail.cursor.moved():
                # Messages whose place is not committed come again: the error that ends it counts.
                with suppress(MqError):
                    commit(self, tail.cursor)
            raise
        if tail.cursor is not None and tail.cursor.moved():
            commit(self, tail.cursor)

    def _pulled(
        self, tail: subscription.Subscription, start: subscription.Start, takes_much: bool
    ) -> Generator[results.PullResult, None, None]:
        core, cursor = self._core, tail.cursor
        with core.pulls(takes_much) as pulls:
            run(core, tail.begin(start, monotonic(), core.deadline(None)))
            result: results.PullResult | None = None
            while result is not None or not tail.has_ended(monotonic()):
                now = monotonic()
                if tail.should_look(now):
                    run(core, tail.look_for_queues(now, core.deadline(None)))
                for queue_id, call in tail.due(now):
                    core.check()
                    pulls.start(queue_id, call)
                if result is not None:
                    # After the calls: the node reads on while the caller works.
                    yield result
                    if cursor is not None:
                        cursor.read_to(result.queue_id, result.next_begin_offset, result.generation)
                    result = None
                    tail.note_read(monotonic())
                    continue
                if cursor is not None:
                    self._commit_if_due(cursor)
                arrived = pulls.next(tail.sleep(now, subscription.TURN_S_MAX))
                if arrived is not None:
                    result = tail.take(*arrived, monotonic())

    def _commit_if_due(self, cursor: subscription.Cursor) -> None:
        """A node that is away gets the place later."""
        if cursor.is_due(monotonic()):
            with suppress(BusyError):
                commit(self, cursor)


def commit(client: Client, cursor: subscription.Cursor) -> None:
    """Has the node note how far the cursor has come."""
    run(client._core, cursor.commit(monotonic(), client._core.deadline(None)))


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
