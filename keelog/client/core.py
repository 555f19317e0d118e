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
from threading import get_ident
from time import monotonic, time
from typing import TYPE_CHECKING, NoReturn, cast
from zlib import crc32

from keelog.client.consumer.options import (
    ConsumerOptions,
    ConsumerSettings,
    Topics,
    consumer_settings,
)
from keelog.client.messages import Body, OutgoingMessage
from keelog.client.operations import Operation, routes
from keelog.client.options import (
    MESSAGE_OPTIONS,
    ProducerOptions,
    ProducerSettings,
    SendOptions,
    check_acks,
    check_names,
    check_seconds,
    node_endpoint,
    settings_of,
)
from keelog.client.results import Receipt
from keelog.client.send.encode import Encoder, UniqueKeys
from keelog.client.send.producer import Producer
from keelog.client.send.record_batch import (
    UNREADABLE,
    EncodedMessage,
    append_fields,
    lone_receipt,
    unreadable,
)
from keelog.client.send.sender import BatchSender, Done, SendCoalescer
from keelog.client.subscription import (
    BULK,
    Start,
    Subscription,
    TailOptions,
    TailSettings,
    check_start,
)
from keelog.client.transport import exchange
from keelog.client.transport.direct import Channel, ChannelPool, PullChannel
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.keys import ClientKeys
from keelog.client.transport.routes import Routes, local_ip
from protocol import errors
from protocol.ids import Host
from protocol.record.encode import ANY_QUEUE

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
        retry: exchange.Retry | None,
        read_from: str | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        """Starts the I/O thread, and one more for `read_from`. Raises BadRequest for an address
        that cannot be, NotAllowed where the program has no threads."""
        _check_threads()
        self.endpoint, self.timeout = settings_of(url, timeout)
        self.retry = exchange.Retry() if retry is None else retry
        if not isinstance(self.retry, exchange.Retry):
            raise errors.BadRequest(f"retry is {retry!r}", "give a keelog.Retry")
        self._pid = os.getpid()
        self._forks = _forks
        if read_from is not None:
            read_from = node_endpoint(read_from)
        self.io = self.reading = IoThread(self.endpoint, self.retry, keys)
        """They carry calls to the writer, and calls to readers."""
        if read_from is not None:
            try:
                self.reading = IoThread(read_from, self.retry, keys)
            except BaseException:
                self.io.stop(CLOSE_TIMEOUT_S)
                raise
        self._direct = ChannelPool(self.io, exchange.NodeRole.WRITER)
        self._reads = ChannelPool(self.reading, exchange.NodeRole.READER)
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
        self._sends = SendCoalescer(self.io, self.sender)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child process of the one that connected."""
        return self._forks != _forks

    def check(self) -> None:
        """Raises ForkedClient in a child process: sockets and thread belong to the parent."""
        if self._forks != _forks:
            raise errors.ForkedClient("this client was connected before the fork: connect again")

    def check_open(self) -> None:
        """Raises ForkedClient, or ClientClosed."""
        self.check()
        if not self._finalizer.alive:
            raise errors.ClientClosed

    def close(self) -> None:
        """Flushes producers, then ends the I/O thread; calls without an answer fail. Does nothing
        in a forked child."""
        self._finalizer()

    def start(self, call: exchange.Call) -> "Future[exchange.NodeAnswer]":
        self.check()
        future = exchange.future_of(call)
        self._io_of(call).call(call)
        return future

    def ask(self, call: exchange.Call) -> exchange.NodeAnswer:
        """Waits for a call's answer. A lone read is carried by the thread that waits for it.

        Raises the error that came instead.
        """
        if self._forks != _forks:
            self.check()
        if get_ident() in (self.io.ident, self.reading.ident):
            raise exchange.no_waiting_here()
        decision: exchange.Decision | None = None
        if call.role is exchange.NodeRole.READER:
            reply = self._reads.ask(call.op, call.fields, call.payload, call.deadline)
            if reply is not None:
                answer = reply[0]
                if isinstance(answer, exchange.NodeAnswer) and answer.header.get("ok"):
                    return answer
                decision = call.ended(*reply, self.retry, monotonic())
        goes_on = isinstance(decision, exchange.GOES_ON)
        if isinstance(decision, errors.MqError) and not goes_on:
            raise decision
        arrival: exchange.Arrival[exchange.NodeAnswer] = exchange.Arrival()
        call.done = arrival
        if decision is None:
            self._io_of(call).call(call)
        else:
            self.reading.resume(call, decision)
        return arrival.wait()

    def _io_of(self, call: exchange.Call) -> IoThread:
        return self.reading if call.role is exchange.NodeRole.READER else self.io

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
            return (yield from routes(self.deadline(None)))
        except errors.UnknownOperation:
            raise errors.BadRequest(
                f"{self.endpoint} is a process of a node, not its control address",
                "write the address that keelog serve says it is ready at",
            ) from None

    def producer(self, options: ProducerOptions) -> Producer:
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
    ) -> None:
        """Begins a waiting send; `done` learns its outcome. See Client.send.

        Raises IllegalMessage and its kinds, or BadRequest.
        """
        self._sends.send(*self._encoded(topic, body, options, done))

    def send_and_wait(
        self, topic: str, body: Body | OutgoingMessage, options: SendOptions
    ) -> Receipt:
        """See Client.send. The caller's thread carries the request itself, unless sends of others
        go by the I/O thread."""
        entry, wait, timeout = self._encoded(topic, body, options, None)
        if get_ident() == self.io.ident:
            raise exchange.no_waiting_here()
        sends, sender, deadline = self._sends, self.sender, monotonic() + timeout
        placed = None
        if not sends.groups and not sends.arrived:
            placed = entry if entry.order_by is None else sender.placed(entry)
        if placed is not None:
            fields = append_fields(
                placed.record, 1, crc32(placed.record), placed.queue_id == ANY_QUEUE,
                wait, sender.once, placed.later,
            )  # fmt: skip
            reply = self._direct.ask("append", fields, placed.record, deadline)
            if reply is not None:
                answer = reply[0]
                if not isinstance(answer, exchange.NodeAnswer) or not answer.header.get("ok"):
                    return sender.take_up(entry, placed, wait, deadline, reply)
                try:
                    return lone_receipt(
                        entry.topic, entry.queue_id, entry.unique_key, answer.header
                    )
                except UNREADABLE as error:
                    raise unreadable(error).about(entry.topic, (entry.unique_key,)) from None
        arrival: exchange.Arrival[Receipt] = exchange.Arrival()
        sends.send(entry._replace(slot=arrival), wait, timeout)
        return arrival.wait()

    def _encoded(
        self, topic: str, body: Body | OutgoingMessage, options: SendOptions, slot: Done | None
    ) -> tuple[EncodedMessage, str | None, float]:
        """The message, the field `wait` of its request, and the timeout."""
        self.check()
        wait, timeout = None, self.timeout
        if not options.keys() <= MESSAGE_OPTIONS:
            rest = dict(options)
            given = cast(float | None, rest.pop("timeout", None))
            if given is not None:
                check_seconds("timeout", given)
                timeout = given
            acks, waits = rest.pop("acks", "appended"), rest.pop("wait", True)
            check_acks(acks)
            # None leaves it to the node's settings.
            wait = str(acks) if acks != "appended" else None if waits else "none"
            options = cast(SendOptions, rest)
        entry = self.encoder.entry(topic, body, options, slot, waits=wait != "none")
        return entry, wait, timeout

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

    def tail(self, topic: str, start: Start, options: TailOptions) -> Subscription:
        self.check()
        check_start(start)
        return Subscription(topic, TailSettings.of(options), self.retry, self.timeout)

    def consume(self, topic: str, start: Start, options: TailOptions) -> Subscription:
        return self.tail(topic, start, {**BULK, **options})

    def consumer_settings(
        self, group: str, topics: Topics, options: ConsumerOptions
    ) -> ConsumerSettings:
        self.check_open()
        return consumer_settings(group, topics, options, int(time() * 1000))


class CoreOwner:
    """What the clients of threads and of event loops have in common."""

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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: connect in the other process")


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
            carrier.begin_close()
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
        raise errors.NotAllowed(
            f"{starter} has replaced the threads of this program, and a client needs one of its"
            " own",
            "gevent: monkey.patch_all(thread=False); eventlet: monkey_patch(thread=False);"
            " gunicorn: --worker-class gthread",
        )
