"""A connection to the writer, or a reader, beside those of the I/O thread: who waits for an answer
carries the request itself.

Everything out of the ordinary (no connection yet, a refusal that may be repeated, another process)
is left to the I/O thread, whose rules hold. How to wait is the business of the three kinds:
`node.client_direct`, `node.client_pulls` and `keelog.aio_link`.
"""

import os
from collections.abc import Sequence
from itertools import count
from time import monotonic

from node.client_calls import Answer, Call, GiveUp, RepeatAfter, Role, after_loss, after_refusal
from node.client_io import IoThread
from node.client_link import Link
from protocol.errors import MqError
from protocol.wire import raise_refusal


class OwnLink:
    """One for each client, role and way to wait; for one thread at a time."""

    def __init__(self, io: IoThread, role: Role) -> None:
        self._io = io
        self._role = role
        self._link: Link | None = None
        self._ids = count(1)
        self._closing = False

    def _link_up(self) -> Link | None:
        """The link to the process that the routes name, when it is up; begins one otherwise."""
        link, usable = self._link, self._usable()
        if link is None or link.endpoint not in usable:
            self._drop()
            link = self._connect(usable[os.getpid() % len(usable)]) if usable else None
            if link is None:
                return None
        if link.has_news():
            self._read_news(link)
        return link if link.connected else None

    def _usable(self) -> Sequence[str]:
        """Any reader answers any question, so one is kept as long as it is there."""
        routes = self._io.routes
        if routes is None or self._closing:
            return ()
        if self._role is Role.READER:
            return routes.readers
        return () if routes.writer is None else (routes.writer,)

    def _connect(self, endpoint: str) -> Link | None:
        try:
            link = self._link = self._io.make_link(endpoint)
        except MqError:
            return None  # the I/O thread says it to whoever asks
        self._begun(link)
        return link

    def _begun(self, link: Link) -> None:
        """Prepares a new link."""

    def _read_news(self, link: Link) -> None:
        """Takes in what the monitor has seen."""
        link.news()

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _answered(self, call: Call, answer: Answer) -> None:
        """Ends the call with its answer, or does what follows from a refusal."""
        call.sent = False
        try:
            raise_refusal(answer.header)
        except MqError as error:
            call.last_error = error
            self._act(call, after_refusal(call, error, self._io.retry, monotonic()))
        else:
            call.done(answer)

    def _lose(self, link: Link, call: Call) -> None:
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
