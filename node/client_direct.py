"""A connection to the writer, or a reader, by which a lone thread carries its request itself.

Handing a request to the I/O thread and its answer back costs two changes of threads, much of what a
lone send or look-up takes. Everything out of the ordinary (no connection yet, a refusal that may be
repeated, another process) is left to the I/O thread, whose rules hold.
"""

import os
import threading
from collections.abc import Sequence
from itertools import count
from time import monotonic

import zmq

from node.client_calls import (
    Call,
    GiveUp,
    RepeatAfter,
    Role,
    after_loss,
    after_refusal,
    at_deadline,
    when_closed,
)
from node.client_io import IoThread
from node.client_link import NOBLOCK, RECEIVE_MAX, Link
from protocol.errors import MqError
from protocol.wire import raise_refusal

SLICE_S = 0.05
"""A wait for an answer is cut into such, to see a lost connection, or the client's end."""


class Direct:
    """One for each client and role, for one thread at a time: the lock gives the sockets from one
    to the next."""

    def __init__(self, io: IoThread, role: Role = Role.WRITER) -> None:
        self._io = io
        self._role = role
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._ids = count(1)
        self._closing = False

    def carry(self, call: Call) -> bool:
        """Carries a call to its end, or as far as where the I/O thread goes on with it.

        False, at once, when it is for the I/O thread from the beginning; nothing was done then.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            link = None if self._closing else self._link_up()
            if link is None:
                return False
            call.id = next(self._ids)
            if not link.send(call):
                return False
            try:
                self._wait(link, call)
            finally:
                # An answer that comes later finds nobody.
                link.in_flight.pop(call.id, None)
            return True
        finally:
            self._lock.release()

    def _link_up(self) -> Link | None:
        """The link to the process that the routes name, when it is up; begins one otherwise."""
        link, usable = self._link, self._usable()
        if link is None or link.endpoint not in usable:
            self._drop()
            if usable:
                self._connect(usable[os.getpid() % len(usable)])
            return None
        if link.has_news():
            link.news()
        return link if link.connected else None

    def _usable(self) -> Sequence[str]:
        """Any reader answers any question, so one is kept as long as it is there."""
        routes = self._io.routes
        if routes is None:
            return ()
        if self._role is Role.READER:
            return routes.readers
        return () if routes.writer is None else (routes.writer,)

    def _connect(self, endpoint: str) -> None:
        try:
            link = self._io.make_link(endpoint)
        except MqError:
            return  # the I/O thread says it to whoever asks
        link.socket.setsockopt(zmq.RCVTIMEO, int(SLICE_S * 1000))
        self._link = link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _wait(self, link: Link, call: Call) -> None:
        while True:
            left_s = call.deadline - monotonic()
            if left_s <= 0:
                call.done(at_deadline(call, link.endpoint))
                return
            flags = 0
            if left_s < SLICE_S:
                link.socket.poll(int(left_s * 1000) + 1)
                flags = NOBLOCK
            if self._take_answer(link, call, flags):
                return
            if link.has_news() and link.news().lost:
                # What has come counts, also when the connection is lost by now.
                if not self._take_answer(link, call, NOBLOCK):
                    self._lose(link, call)
                return
            if self._closing:
                call.done(when_closed(call, failed=False))
                return

    def _take_answer(self, link: Link, call: Call, flags: int) -> bool:
        """Whether the call's answer came. Late answers of other calls are passed over."""
        for _ in range(RECEIVE_MAX):
            try:
                found = link.receive_one(flags)
            except zmq.Again:
                return False
            if found is not None and found[0] is call:
                break
            flags = NOBLOCK
        else:
            return False
        call.sent = False
        answer = found[1]
        try:
            raise_refusal(answer.header)
        except MqError as error:
            call.last_error = error
            self._act(call, after_refusal(call, error, self._io.retry, monotonic()))
        else:
            call.done(answer)
        return True

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

    def close(self) -> None:
        """Ends the call that is under way, soon, and the connection. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        with self._lock:
            self._drop()
