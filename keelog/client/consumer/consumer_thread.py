"""The thread of one consumer: it owns the connection to the gateway.

Membership does not depend on what the program does meanwhile: heart-beats and pulls go on while a
handler takes long, or an event loop is blocked. All that decides is in `client.consumer.engine`.
"""

import ipaddress
import logging
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from keelog.client.consumer.engine import ConsumerEngine
from keelog.client.consumer.options import ConsumerSettings
from keelog.client.consumer.queues import GroupMessage
from keelog.client.consumer.remoting_exchange import RemotingExchange
from keelog.client.core import ClientCore
from keelog.client.transport.exchange import Call, NodeRole
from keelog.client.transport.routes import Routes, gateway_place, local_ip
from protocol.errors import ClientClosed, MqError, NotConnected, RefusedError
from protocol.remoting.codes import BrokenFrame

if TYPE_CHECKING:
    from ssl import SSLContext

log = logging.getLogger("keelog.client")

CONNECT_S_MAX = 3.0
BACKOFF_S = 0.1
BACKOFF_S_MAX = 5.0
CLOSE_S = 5.0
"""How long a consumer that is closed tries to commit."""
_SLEEP_S_MIN = 0.001


class ConsumerThread:
    """One member of a group. All methods are for any thread."""

    def __init__(self, core: ClientCore, settings: ConsumerSettings) -> None:
        self._core = core
        ip = ipaddress.ip_address(local_ip(core.endpoint))
        client_id = f"{ip}@{os.getpid()}#{time.time_ns()}"
        self._engine = ConsumerEngine(settings, client_id, self.settle)
        self._condition = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._wake_fd = -1
        self._close_at: float | None = None
        self._is_stopping = self._has_ended = False
        self._not_now: tuple[type[OSError], ...] = (BlockingIOError,)
        """What a socket raises that has to wait."""
        self._thread = threading.Thread(target=self._run, name="keelog-consumer", daemon=True)

    def start(self) -> None:
        """Joins the group, and goes on through restarts of the node."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread.start()

    @property
    def client_id(self) -> str:
        return self._engine.client_id

    def assignment(self) -> list[tuple[str, int]]:
        self._core.check()
        with self._condition:
            owned = self._engine.queues.owned.values()
            return sorted(
                (one.queue.topic, one.queue.queue_id) for one in owned if one.progress is not None
            )

    # Messages

    def take(self) -> GroupMessage | None:
        """A message, if there is one. Raises why the node refuses this member."""
        self._core.check()
        with self._condition:
            if self._engine.failure is not None:
                raise self._engine.failure
            return None if self.gives_no_more else self._engine.queues.take(monotonic())

    def wait(self, timeout: float | None) -> GroupMessage | None:
        """Waits for a message; None after `timeout` seconds, and when there will be no more."""
        until = None if timeout is None else monotonic() + timeout
        with self._condition:
            while True:
                message = self.take()
                if message is not None or self.gives_no_more:
                    return message
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    return None
                self._condition.wait(left)

    @property
    def gives_no_more(self) -> bool:
        return self._is_stopping or self._has_ended

    def settle(self, message: GroupMessage, delay_level: int | None) -> None:
        """A message was handled, or is to come again: see GroupMessage."""
        self._core.check()
        with self._condition:
            queues = self._engine.queues
            queues.settle(message, delay_level, monotonic())
            if delay_level is not None or queues.may_pull(message):
                self._wake()
            if self._engine.settings.orderly:
                self._notify()

    def begin_commit(self) -> "Future[None]":
        """Commits what was handled; the future is done when the node has it.

        Raises ClientClosed, and why the node refuses this member.
        """
        self._core.check()
        with self._condition:
            if self._engine.failure is not None:
                raise self._engine.failure
            if self._close_at is not None or self._has_ended:
                raise ClientClosed("the consumer is closed", "make another one")
            wait = self._engine.queues.commit(monotonic())
            self._wake()
            return wait.done

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls this, on any thread, when there may be something to take."""
        with self._condition:
            self._listeners.append(listener)

    def _notify(self) -> None:
        if self._engine.queues.has_messages or self.gives_no_more or self._engine.failure:
            self._condition.notify_all()
            for listener in self._listeners:
                listener()

    def _wake(self) -> None:
        if self._wake_fd >= 0 and not self._has_ended:
            os.eventfd_write(self._wake_fd, 1)

    # Ends

    @property
    def is_orderly(self) -> bool:
        return self._engine.settings.orderly

    def stop(self) -> None:
        self._core.check()
        with self._condition:
            self._is_stopping = True
            self._notify()

    def close_soon(self) -> None:
        """Begins to close: commits what was handled, and leaves the group. Does nothing in a forked
        child: the membership is the parent's."""
        if self._core.is_forked:
            return
        with self._condition:
            self._is_stopping = True
            if self._close_at is None:
                self._close_at = monotonic() + CLOSE_S
            self._engine.is_closing = True
            self._notify()
            self._wake()

    def close(self) -> None:
        self.close_soon()
        is_here = self._thread is threading.current_thread()
        if self._thread.ident is not None and not is_here and not self._core.is_forked:
            self._thread.join(CLOSE_S + CONNECT_S_MAX)

    def _must_end(self, is_connected: bool) -> bool:
        engine = self._engine
        if engine.failure is not None or engine.is_over:
            return True
        if self._close_at is None:
            return False
        at_rest = not is_connected and engine.queues.is_at_rest()
        return at_rest or monotonic() >= self._close_at

    # The thread

    def _run(self) -> None:
        try:
            self._stay_connected()
        except BaseException:
            self._engine.failure = ClientClosed(
                "the consumer's thread has failed", "report its traceback"
            )
            raise
        finally:
            with self._condition:
                self._has_ended = True
                self._notify()
                os.close(self._wake_fd)
                self._wake_fd = -1

    def _stay_connected(self) -> None:
        failures = 0
        while not self._must_end(is_connected=False):
            try:
                with self._connect() as connection:
                    failures = 0
                    self._serve(connection)
            except RefusedError as error:
                if not isinstance(error, BrokenFrame):
                    self._engine.failure = error
                    return
                log.warning("the gateway sent a broken frame: %s", error.reason)
            except (MqError, OSError) as error:
                if not failures:
                    log.warning("the consumer connects again: %s", error)
            if self._must_end(is_connected=False):
                return
            failures += 1
            ceiling = min(BACKOFF_S_MAX, BACKOFF_S * 2.0 ** min(failures, 10))
            self._wait(ceiling * (0.5 + random.random() / 2))

    def _connect(self) -> socket.socket:
        """Raises MqError, OSError."""
        asked = Call(NodeRole.CONTROL, "routes", {}, monotonic() + CONNECT_S_MAX)
        routes = Routes.of(self._core.ask(asked).header)
        tls = self._engine.settings.tls
        host, port = gateway_place(routes, self._core.endpoint, tls is not None)
        try:
            connection = socket.create_connection((host, port), CONNECT_S_MAX)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                connection = self._encrypted(connection, tls, host)
        except OSError as error:
            raise NotConnected(
                f"the node at {self._core.endpoint} answered, but its gateway at {host}:{port}"
                f" was not reached: {error.strerror or error}",
                "open that port too; where it is published under another number, or its host is"
                " another one here, start the node with --advertise",
            ) from None
        connection.setblocking(False)
        return connection

    def _encrypted(self, connection: socket.socket, tls: "SSLContext", host: str) -> socket.socket:
        """After the handshake. Raises OSError."""
        from ssl import SSLWantReadError, SSLWantWriteError

        self._not_now = (BlockingIOError, SSLWantReadError, SSLWantWriteError)
        with connection:  # which owns no descriptor any more after it
            return tls.wrap_socket(connection, server_hostname=host)

    def _serve(self, connection: socket.socket) -> None:
        """Until the connection is lost, or the member is over. Raises OSError, BrokenFrame."""
        with self._condition:
            exchange = self._engine.connected(monotonic())
        try:
            while True:
                with self._condition:
                    now = monotonic()
                    if self._engine.is_stale(now):
                        raise ConnectionResetError("the gateway does not answer")
                    due = self._engine.turn(now)
                    self._notify()
                    if self._must_end(is_connected=True):
                        return
                    if exchange.unsent:
                        with suppress(*self._not_now):
                            del exchange.unsent[: connection.send(exchange.unsent)]
                    events = select.POLLIN | (select.POLLOUT if exchange.unsent else 0)
                self._wait(due - now, connection, events)
                with self._condition:
                    self._receive(connection, exchange)
        finally:
            with self._condition:
                self._engine.lost(monotonic())

    def _wait(
        self, seconds: float, connection: socket.socket | None = None, events: int = 0
    ) -> None:
        waiting = select.poll()
        waiting.register(self._wake_fd, select.POLLIN)
        if connection is not None:
            waiting.register(connection, events)
        if self._close_at is not None:
            seconds = min(seconds, self._close_at - monotonic())
        waiting.poll(max(seconds, _SLEEP_S_MIN) * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)

    def _receive(self, connection: socket.socket, exchange: RemotingExchange) -> None:
        """Raises OSError, BrokenFrame."""
        # What OpenSSL holds makes no descriptor readable.
        pending: Callable[[], int] = getattr(connection, "pending", lambda: 0)
        while True:
            try:
                size = connection.recv_into(exchange.room())
            except self._not_now:
                return
            if not size:
                raise ConnectionResetError("the gateway has closed the connection")
            self._engine.received(size, monotonic())
            if not pending():
                return
