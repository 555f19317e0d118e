"""A connection to the writer, or a reader, beside those of the I/O thread: the caller that waits
for an answer carries the request itself.

Everything out of the ordinary (no connection yet, another process, an attempt that is repeated) is
left to the I/O thread. The three kinds differ in how they wait:
`client.transport.blocking_channel`, `client.transport.pull_channel` and `client.aio.channel`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from keelog.client.transport.exchange import Decision, Exchange, RepeatAfter
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.request import Call, NodeRole
from keelog.client.transport.routes import Routes
from keelog.client.transport.zmq_connection import RECONNECT_MS
from keelog.client.transport.zmtp_connection import ZmtpConnection
from protocol.wire.awake import AwakeLook

AWAKE_S = 0.0006
"""How long a lone caller looks at its connection before it sleeps."""


class Channel:
    """One for each client, role and way to wait; for one thread at a time."""

    def __init__(self, io: IoThread, role: NodeRole) -> None:
        self._io = io
        self._role = role
        self._link: ZmtpConnection | None = None
        self._again_at = 0.0
        self._losses = 0
        self._closing = False
        self._awake = AwakeLook(AWAKE_S, len(os.sched_getaffinity(0)), monotonic, os.sched_yield)

    def _link_up(self) -> ZmtpConnection | None:
        """The link to the process that the routes name, when it is up; begins one otherwise."""
        link, usable, now = self._link, self._usable(), monotonic()
        if link is not None and not link.exchange.under_way:
            self._take_answers(link)  # a connection that was lost meanwhile is found so
            link = self._link
        if link is None or link.endpoint not in usable or link.is_stale(now):
            self._drop()
            link = self._connect(usable[os.getpid() % len(usable)], now) if usable else None
        return link if link is not None and link.is_up else None

    def _take_answers(self, link: ZmtpConnection, wait: bool = False) -> None:
        """Takes what has come, and in the end that it was lost."""
        link.receive(self._act, wait)
        if link.is_lost:
            self._lose_all(link)

    def _look_awake(self, link: ZmtpConnection, awaits: Callable[[], object]) -> None:
        """Receives for AWAKE_S without sleep, as long as `awaits` is true."""

        def is_there() -> bool:
            if not link.has_come:
                return False
            self._take_answers(link)
            return not awaits()

        if awaits():
            self._awake.until(is_there)

    def _lose_all(self, link: ZmtpConnection) -> None:
        """The connection is gone; its calls go on elsewhere, or fail."""
        if self._link is link:
            self._link = None
            self._losses += 1
            self._again_at = monotonic() + RECONNECT_MS / 1_000
        link.close()
        why = f"the connection to {link.endpoint} was lost"
        self._end_all(link.exchange.lost(why, monotonic()))

    def _end_all(self, ended: Sequence[tuple[Call, Decision]]) -> None:
        for call, decision in ended:
            self._act(call, decision)

    def _usable(self) -> Sequence[str]:
        """Any reader answers any question, so one is kept as long as it is there."""
        routes = self._io.routes
        if routes is None or self._closing:
            return ()
        if self._role is NodeRole.READER:
            return routes.readers
        return () if routes.writer is None else (routes.writer,)

    def _connect(self, endpoint: str, now: float) -> ZmtpConnection | None:
        if now < self._again_at:
            return None
        self._again_at = now + RECONNECT_MS / 1_000
        try:
            link = self._link_to(endpoint)
        except (OSError, ValueError):
            return None  # the I/O thread reports it to the callers
        self._link = link
        self._begun(link)
        return self._link

    def _link_to(self, endpoint: str) -> ZmtpConnection:
        """Over a local socket where there is one: a fraction of a round trip over the network."""
        routes = self._io.routes
        local = "" if routes is None else self._local(routes).get(endpoint, "")
        exchange = Exchange(self._io.retry)
        if local:
            # It may be of another machine, beyond a tunnel, or of a process that starts again.
            with suppress(OSError, ValueError):
                return ZmtpConnection(endpoint, exchange, local)
        at = self._io.names.numeric(endpoint, self._losses)
        return ZmtpConnection(endpoint, exchange, "" if at == endpoint else at)

    def _local(self, routes: Routes) -> Mapping[str, str]:
        """Which local sockets it takes."""
        return routes.local

    def _begun(self, link: ZmtpConnection) -> None:
        """Prepares a new link."""

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _act(self, call: Call, decision: Decision) -> None:
        """Ends the call, or leaves the next attempt to the I/O thread."""
        if isinstance(decision, RepeatAfter):
            self._io.resume(call, decision.delay)
        else:
            call.done(decision)

    def give_way(self) -> None:
        """Prepares `close`, so that many channels let go at the same time."""

    def close(self) -> None:
        """Ends the calls that are under way, and the connection. Harmless when repeated."""
        raise NotImplementedError
