"""A connection to the writer, or a reader, beside those of the I/O thread: who waits for an answer
carries the request itself.

Everything out of the ordinary (no connection yet, a refusal that may be repeated, another process)
is left to the I/O thread, whose rules hold. How to wait is the business of the three kinds:
`client.transport.blocking_channel`, `client.transport.pull_channel` and `client.aio.channel`.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from time import monotonic

from client.transport.io_thread import IoThread
from client.transport.request import (
    Call,
    GiveUp,
    NodeAnswer,
    NodeRole,
    RepeatAfter,
    after_loss,
    after_refusal,
)
from client.transport.routes import Routes
from client.transport.zmq_connection import RECONNECT_MS
from client.transport.zmtp_connection import BareLink
from protocol.errors import MqError
from protocol.wire.frames import raise_refusal


class OwnLink:
    """One for each client, role and way to wait; for one thread at a time."""

    def __init__(self, io: IoThread, role: NodeRole) -> None:
        self._io = io
        self._role = role
        self._link: BareLink | None = None
        self._ids = count(1)
        self._again_at = 0.0
        self._closing = False

    def _link_up(self) -> BareLink | None:
        """The link to the process that the routes name, when it is up; begins one otherwise."""
        link, usable, now = self._link, self._usable(), monotonic()
        if link is not None and not link.in_flight:
            self._take_answers(link)  # a connection that was lost meanwhile is found so
            link = self._link
        if link is None or link.endpoint not in usable or link.is_stale(now):
            self._drop()
            link = self._connect(usable[os.getpid() % len(usable)], now) if usable else None
        return link if link is not None and link.is_up else None

    def _take_answers(self, link: BareLink, wait: bool = False) -> None:
        """Takes what has come, and in the end that it was lost."""
        link.receive(self._answered, wait)
        if link.is_lost:
            self._lose_all(link)

    def _lose_all(self, link: BareLink) -> None:
        """The connection is gone; its calls go on elsewhere, or fail."""
        if self._link is link:
            self._link = None
            self._again_at = monotonic() + RECONNECT_MS / 1_000
        link.close()
        for call in link.take_lost():
            self._lose(link, call)

    def _usable(self) -> Sequence[str]:
        """Any reader answers any question, so one is kept as long as it is there."""
        routes = self._io.routes
        if routes is None or self._closing:
            return ()
        if self._role is NodeRole.READER:
            return routes.readers
        return () if routes.writer is None else (routes.writer,)

    def _connect(self, endpoint: str, now: float) -> BareLink | None:
        if now < self._again_at:
            return None
        self._again_at = now + RECONNECT_MS / 1_000
        try:
            link = self._link_to(endpoint)
        except (OSError, ValueError):
            return None  # the I/O thread says it to whoever asks
        self._link = link
        self._begun(link)
        return self._link

    def _link_to(self, endpoint: str) -> BareLink:
        """Over a local socket where there is one: a fraction of a round trip over the network."""
        routes = self._io.routes
        local = "" if routes is None else self._local(routes).get(endpoint, "")
        if local:
            # Another machine's, behind a tunnel, or of a process that is being started again.
            with suppress(OSError, ValueError):
                return BareLink(endpoint, local)
        return BareLink(endpoint)

    def _local(self, routes: Routes) -> Mapping[str, str]:
        """Which local sockets it takes."""
        return routes.local

    def _begun(self, link: BareLink) -> None:
        """Prepares a new link."""

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _answered(self, call: Call, answer: NodeAnswer) -> None:
        """Ends the call with its answer, or does what follows from a refusal."""
        call.sent = False
        try:
            raise_refusal(answer.header)
        except MqError as error:
            call.last_error = error
            self._act(call, after_refusal(call, error, self._io.retry, monotonic()))
        else:
            call.done(answer)

    def _lose(self, link: BareLink, call: Call) -> None:
        call.sent = False
        call.maybe_done = not call.repeatable
        why = f"the connection to {link.endpoint} was lost"
        self._act(call, after_loss(call, why, self._io.retry, monotonic()))

    def _act(self, call: Call, decision: RepeatAfter | GiveUp) -> None:
        if isinstance(decision, GiveUp):
            call.done(decision.error)
        else:
            self._io.resume(call, decision.delay)

    def give_way(self) -> None:
        """Before `close`, where many are closed: they let go at the same time."""

    def close(self) -> None:
        """Ends the calls that are under way, and the connection. Harmless when repeated."""
        raise NotImplementedError
