"""The common part of the plain client and the asyncio one: options, connection, operations.

A `ClientCore` turns options into operations (see `client.operations`) and calls into futures. Each
of the two clients waits for those by itself.
"""

import _thread
import os
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from time import monotonic, time
from typing import TYPE_CHECKING, Any, cast

from keelog.client import operations
from keelog.client.consumer.options import (
    ConsumerOptions,
    ConsumerSettings,
    Topics,
    consumer_settings,
)
from keelog.client.messages import Body, Message, OutgoingMessage
from keelog.client.operations import FindPages, Operation
from keelog.client.options import (
    MESSAGE_OPTIONS,
    CreateTopicOptions,
    FindOptions,
    GetOptions,
    ProducerOptions,
    ProducerSettings,
    PullOptions,
    PurgeOptions,
    SeekOptions,
    SendOptions,
    Time,
    check_acks,
    check_limit,
    check_names,
    check_on_damage,
    check_seconds,
    node_endpoint,
    settings_of,
)
from keelog.client.results import PullResult, TopicCreated, TopicPurged
from keelog.client.send.encode import Encoder
from keelog.client.send.producer import Producer
from keelog.client.send.sender import BatchSender, Done, SendCoalescer
from keelog.client.send.unique_key import UniqueKeys, local_ip
from keelog.client.subscription import (
    BULK,
    Start,
    Subscription,
    TailOptions,
    TailSettings,
    check_start,
)
from keelog.client.transport.direct import Channel, ChannelPool, PullChannel
from keelog.client.transport.exchange import (
    Arrival,
    Call,
    NodeAnswer,
    NodeRole,
    Retry,
    future_of,
    no_waiting_here,
)
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.routes import Routes
from protocol.errors import BadRequest, ClientClosed, ForkedClient, NotAllowed, UnknownOperation
from protocol.ids import Host

if TYPE_CHECKING:
    from keelog.client.consumer.consumer_thread import ConsumerThread

CLOSE_TIMEOUT_S = 5.0
_GREEN_THREADS = ("gevent", "eventlet")
"""Packages that put threads which share one of the system in the place of all others."""
_forks = 0
"""How often this process is a child of one with clients. To ask for the process id instead would be
a call of the system for each message."""


class ClientCore:
    """One connection to one node, for any number of threads of one process."""

    def __init__(
        self,
        url: str | None,
        timeout: float | None,
        retry: Retry | None,
        read_from: str | None = None,
    ) -> None:
        """Starts the I/O thread, and one more for `read_from`. Raises BadRequest for an address
        that cannot be, NotAllowed where the program has no threads."""
        _check_threads()
        self.endpoint, self.timeout = settings_of(url, timeout)
        self.retry = Retry() if retry is None else retry
        if not isinstance(self.retry, Retry):
            raise BadRequest(f"retry is {retry!r}", "give a keelog.Retry")
        self._pid = os.getpid()
        self._forks = _forks
        if read_from is not None:
            read_from = node_endpoint(read_from)
        self.io = self.reading = IoThread(self.endpoint, self.retry)
        """They carry calls to the writer, and calls to readers."""
        if read_from is not None:
            try:
                self.reading = IoThread(read_from, self.retry)
            except BaseException:
                self.io.stop(CLOSE_TIMEOUT_S)
                raise
        self._direct = ChannelPool(self.io, NodeRole.WRITER)
        self._reads = ChannelPool(self.reading, NodeRole.READER)
        # Without a call of `close` it runs at the collection, or at the end of the program.
        self._carriers: set[Channel | PullChannel] = {*self._direct.links, *self._reads.links}
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        self._members: weakref.WeakSet[ConsumerThread] = weakref.WeakSet()
        self._finalizer = weakref.finalize(
            self,
            _stop,
            {self.io, self.reading},
            self._carriers,
            self._producers,
            self._members,
            self._pid,
        )
        ip = local_ip(self.endpoint)
        self.encoder = Encoder(self.io, UniqueKeys(ip), Host(ip, 0))
        self.sender = BatchSender(self.io, self.retry.once)
        self._sends = SendCoalescer(self.io, self.sender, self._direct)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child process of the one that connected."""
        return self._forks != _forks

    def check(self) -> None:
        """Raises ForkedClient in a child process: sockets and thread belong to the parent."""
        if self._forks != _forks:
            raise ForkedClient("this client was connected before the fork: connect again")

    def check_open(self) -> None:
        """Raises ForkedClient, or ClientClosed."""
        self.check()
        if not self._finalizer.alive:
            raise ClientClosed

    def close(self) -> None:
        """Flushes producers, then ends the I/O thread; calls without an answer fail. Does nothing
        in a forked child."""
        self._finalizer()

    def start(self, call: Call) -> "Future[NodeAnswer]":
        """Starts a call."""
        self.check()
        future = future_of(call)
        self._io_of(call).call(call)
        return future

    def ask(self, call: Call) -> NodeAnswer:
        """Waits for a call's answer. A lone read is carried by the thread that waits for it.

        Raises the error that came instead.
        """
        self.check()
        if self.io.on_thread() or self.reading.on_thread():
            raise no_waiting_here()
        arrival: Arrival[NodeAnswer] = Arrival()
        call.done = arrival
        if call.role is not NodeRole.READER or not self._reads.carry(call):
            self._io_of(call).call(call)
        return arrival.wait()

    def _io_of(self, call: Call) -> IoThread:
        return self.reading if call.role is NodeRole.READER else self.io

    @contextmanager
    def pulls(self, takes_much: bool) -> Iterator[PullChannel]:
        """Opens the channel that carries the pulls of one follower, and closes it after it."""
        self.check()
        pulls = PullChannel(self.reading, takes_much)
        self._carriers.add(pulls)
        if not self._finalizer.alive:
            pulls.close()  # A thread that closed the client just now may have missed this channel.
        try:
            yield pulls
        finally:
            self._carriers.discard(pulls)
            if self._forks == _forks:
                pulls.close()

    def deadline(self, timeout: float | None) -> float:
        """When a call that starts now must be over. Raises BadRequest for no number of seconds."""
        if timeout is None:
            return monotonic() + self.timeout
        check_seconds("timeout", timeout)
        return monotonic() + timeout

    def open(self) -> Operation[Routes]:
        """Reaches the node, so that a wrong address is an error of `connect`."""
        try:
            answer = yield Call(NodeRole.CONTROL, "routes", {}, self.deadline(None))
        except UnknownOperation:
            raise BadRequest(
                f"{self.endpoint} is a process of a node, not its control address",
                "write the address that keelog serve says it is ready at",
            ) from None
        return Routes.of(answer.header)

    def producer(self, options: ProducerOptions) -> Producer:
        """A producer on this connection."""
        self.check_open()
        check_names("a producer", options, ProducerOptions)
        settings = ProducerSettings(**{"timeout": self.timeout, **options})  # type: ignore[arg-type]
        producer = Producer(self.io, self.sender, self.encoder, self.check, settings)
        self._producers.add(producer)
        return producer

    def send(
        self,
        topic: str,
        body: Body | OutgoingMessage,
        options: SendOptions,
        done: Done,
        may_block: bool = False,
    ) -> None:
        """Begins a waiting send; `done` learns its outcome. See Client.send.

        `may_block`: the caller's thread may wait for the answer here. Raises IllegalMessage and
        its kinds, or BadRequest.
        """
        self.check()
        wait, timeout = None, self.timeout
        if not options.keys() <= MESSAGE_OPTIONS:
            rest = dict(options)
            given = cast(float | None, rest.pop("timeout", None))
            if given is not None:
                check_seconds("timeout", given)
                timeout = given
            wait = wait_field(rest.pop("acks", "appended"), rest.pop("wait", True))
            options = cast(SendOptions, rest)
        entry = self.encoder.entry(topic, body, options, done, waits=wait != "none")
        if may_block:
            self._sends.send_here(entry, wait, timeout)
        else:
            self._sends.send(entry, wait, timeout)

    def adopt(self, link: Channel) -> None:
        """The link ends with the client."""
        self._carriers.add(link)

    def adopt_member(self, member: "ConsumerThread") -> None:
        """A member of a consumer group ends with the client."""
        self.check_open()
        self._members.add(member)

    def drop(self, link: Channel) -> None:
        """Ends a link that was adopted."""
        self._carriers.discard(link)
        link.close()

    def pull(
        self, topic: str, queue_id: int, offset: int, options: PullOptions
    ) -> Operation[PullResult]:
        """See Client.pull."""
        check_names("pull", options, PullOptions)
        fields: dict[str, Any] = {
            "topic": topic,
            "queue": queue_id,
            "offset": offset,
            "max_messages": options.get("max_messages", operations.DEFAULT_MAX_MESSAGES),
            "max_bytes": options.get("max_bytes", operations.DEFAULT_MAX_BYTES),
        }
        if options.get("tags"):
            fields["tags"] = options["tags"]
        if options.get("generation") is not None:
            fields["generation"] = options["generation"]
        timeout = options.get("timeout")
        wait = options.get("wait", 0.0)
        check_seconds("wait", wait)
        if timeout is not None:
            check_seconds("timeout", timeout)
        return operations.pull(fields, wait, self.timeout if timeout is None else timeout)

    def tail(self, topic: str, start: Start, options: TailOptions) -> Subscription:
        """See Client.tail."""
        self.check()
        check_start(start)
        return Subscription(topic, TailSettings.of(options), self.retry, self.timeout)

    def consume(self, topic: str, start: Start, options: TailOptions) -> Subscription:
        """See Client.consume."""
        return self.tail(topic, start, {**BULK, **options})

    def consumer_settings(
        self, group: str, topics: Topics, options: ConsumerOptions
    ) -> ConsumerSettings:
        """See Client.consumer."""
        self.check_open()
        return consumer_settings(group, topics, options, int(time() * 1000))

    def get(self, msg_id: str | None, options: GetOptions) -> Operation[Message]:
        """See Client.get."""
        check_names("get", options, GetOptions)
        place = {
            "msg_id": msg_id,
            "physical_offset": options.get("physical_offset"),
            "topic": options.get("topic"),
            "unique_key": options.get("unique_key"),
            "queue": options.get("queue_id"),
            "offset": options.get("queue_offset"),
            "generation": options.get("generation"),
        }
        return operations.get(place, self.deadline(options.get("timeout")))

    def find(self, topic: str, key: str, options: FindOptions) -> FindPages:
        """See Client.find."""
        self.check()
        check_names("find", options, FindOptions)
        check_limit(options.get("limit"))
        on_damage = options.get("on_damage", "fail")
        check_on_damage(on_damage)
        fields: dict[str, Any] = {
            "topic": topic,
            "key": key,
            "begin": operations.milliseconds(options.get("since"), 0),
            "end": operations.milliseconds(options.get("until"), operations.TIME_MS_MAX),
        }
        if options.get("unique"):
            fields["unique"] = True
        limit, timeout = options.get("limit"), options.get("timeout")
        return FindPages(fields, limit, self.deadline, timeout, on_damage)

    def seek(self, topic: str, queue_id: int, time: Time, options: SeekOptions) -> Operation[int]:
        """See Client.seek."""
        check_names("seek", options, SeekOptions)
        fields = {
            "topic": topic,
            "queue": queue_id,
            "timestamp": operations.milliseconds(time, 0),
            "boundary": options.get("boundary", "lower"),
        }
        return operations.seek(fields, self.deadline(options.get("timeout")))

    def create_topic(
        self, topic: str, queues: int | None, options: CreateTopicOptions
    ) -> Operation[TopicCreated]:
        """See Client.create_topic."""
        check_names("create_topic", options, CreateTopicOptions)
        deadline = self.deadline(options.get("timeout"))
        if not options.get("exist_ok", True):
            # Asked before: a topic that is there would be changed.
            known = yield from operations.topics(deadline, NodeRole.WRITER)
            if topic in {one.topic for one in known}:
                raise BadRequest(f"topic {topic} exists", "leave exist_ok out")
        fields = {
            "topic": topic,
            "queues": queues,
            "perm": options.get("perm"),
            "retention_hours": options.get("retention_hours"),
        }
        return (yield from operations.create_topic(fields, deadline))

    def purge_topic(self, topic: str, options: PurgeOptions) -> Operation[TopicPurged]:
        """See Client.purge_topic."""
        check_names("purge_topic", options, PurgeOptions)
        offset, time = options.get("before_offset"), options.get("before_time")
        if (offset is None) == (time is None):
            raise BadRequest("purge_topic needs before_offset or before_time", "give one of them")
        fields = {
            "topic": topic,
            "queue": options.get("queue_id"),
            "offset": offset,
            "timestamp": None if time is None else operations.milliseconds(time, 0),
        }
        return operations.purge_topic(fields, self.deadline(options.get("timeout")))


def wait_field(acks: object, wait: object) -> str | None:
    """The field `wait` of a send: None leaves it to the node's settings."""
    check_acks(acks)
    if acks == "appended":
        return None if wait else "none"
    return str(acks)


def _stop(
    ios: set[IoThread],
    carriers: set[Channel | PullChannel],
    producers: Iterable[Producer],
    members: "Iterable[ConsumerThread]",
    pid: int,
) -> None:
    if os.getpid() != pid:
        return
    for member in tuple(members):
        member.close_soon()
    here = any(io.on_thread() for io in ios)
    for member in () if here else tuple(members):
        member.close()
    try:
        # The caller means its messages to be stored. A done callback cannot wait for that.
        for producer in () if here else tuple(producers):
            producer.close()
    finally:
        ending = tuple(carriers)
        for carrier in ending:
            carrier.give_way()
        for carrier in ending:
            carrier.close()
        for io in ios:
            io.stop(CLOSE_TIMEOUT_S)


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _check_threads() -> None:
    """Refuses a program whose threads are green ones: one that waits in ZeroMQ stops all others.

    Debuggers and profilers replace the function too, and start real threads.
    """
    starter = getattr(_thread.start_new_thread, "__module__", None) or ""
    if starter.partition(".")[0] in _GREEN_THREADS:
        raise NotAllowed(
            f"{starter} has replaced the threads of this program, and a client needs one of its"
            " own",
            "gevent: monkey.patch_all(thread=False); eventlet: monkey_patch(thread=False);"
            " gunicorn: --worker-class gthread",
        )
