"""A connection to the writer that an event loop carries itself.

Handing a request to the I/O thread and its answer back costs two changes of threads, and each of
them waits for the interpreter's lock. Here the loop watches the connection.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from time import monotonic

from keelog.client.transport.channel import Channel
from keelog.client.transport.exchange import Decision
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.request import Call, NodeRole
from keelog.client.transport.zmtp_connection import ZmtpConnection

LOOK_S = 2.0
"""While calls are under way, the loop checks this often that the node is alive."""
_ALONE = nullcontext()
CLOSE_S = 1.0
"""Another thread that closes the link waits this time for the loop to release it."""


class AsyncioChannel(Channel):
    """One for each loop. All but `close` runs in the loop's thread."""

    def __init__(
        self,
        io: IoThread,
        loop: asyncio.AbstractEventLoop,
        taking: AbstractContextManager[object] = _ALONE,
    ) -> None:
        """`taking` is around the outcomes that come together. Make it in the loop's thread."""
        super().__init__(io, NodeRole.WRITER)
        self._loop = loop
        self._taking = taking
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._watches_room = False

    def carry(self, call: Call) -> bool:
        """Begins a call; its `done` will be called once, in the loop, or on the I/O thread where
        that goes on with it. False, at once, when it is for the I/O thread from the beginning."""
        link = self._link_up()
        if link is None or not link.send(call):
            return False
        if link.wants_to_send:
            self._watch_room(link)
        if self._timer is None:
            self._wake_at(min(call.deadline, monotonic() + LOOK_S))
        elif call.deadline < self._timer_at:
            self._wake_at(call.deadline)
        return True

    def look_awake(self) -> None:
        """Looks for the answer of a lone call before the loop goes on."""
        if self._link is not None:
            under_way = self._link.exchange.under_way
            self._look_awake(self._link, lambda: under_way)

    def _begun(self, link: ZmtpConnection) -> None:
        self._loop.add_reader(link.fd, self._look, link)
        self._watch_room(link)

    def _watch_room(self, link: ZmtpConnection) -> None:
        """Until the network has taken everything."""
        if not link.closed and not self._watches_room:
            self._watches_room = True
            self._loop.add_writer(link.fd, self._look, link)

    def _look(self, link: ZmtpConnection) -> None:
        if link.closed:
            return
        self._take_answers(link)
        if self._watches_room and not link.closed and not link.wants_to_send:
            self._watches_room = False
            self._loop.remove_writer(link.fd)

    def _take_answers(self, link: ZmtpConnection, wait: bool = False) -> None:
        with self._taking:
            super()._take_answers(link, wait)

    def _wake_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_later(max(0.0, when - monotonic()), self._expire)

    def _expire(self) -> None:
        """Ends the calls whose time is up. One timer for all: most calls outlive none."""
        self._timer = None
        link = self._link
        if link is None:
            return
        now = monotonic()
        link.keep_alive(now)
        if link.is_lost:
            self._lose_all(link)
            return
        super()._end_all(link.exchange.expired(now, link.endpoint))
        if calls := link.exchange.under_way.values():
            first = min(call.deadline for call in calls)
            self._wake_at(min(first, now + LOOK_S))

    def _lose_all(self, link: ZmtpConnection) -> None:
        self._unwatch(link)
        ended = link.exchange.closed() if self._closing else ()
        super()._lose_all(link)
        super()._end_all(ended)

    def _end_all(self, ended: Sequence[tuple[Call, Decision]]) -> None:
        if ended:
            # Soon: a caller that learns an outcome may send the next message, and come back here.
            self._loop.call_soon(super()._end_all, ended)

    def _unwatch(self, link: ZmtpConnection) -> None:
        if not self._loop.is_closed() and not link.closed:
            self._loop.remove_reader(link.fd)
            self._loop.remove_writer(link.fd)
        self._watches_room = False

    def _drop(self) -> None:
        link = self._link
        if link is not None:
            # What has come counts.
            link.receive(self._act)
            self._lose_all(link)

    def close(self) -> None:
        """Ends the calls that are under way, and the connection. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        if self._loop.is_running() and not self.is_here():
            _in_loop(self._loop, self._end)
        else:
            self._end()

    def is_here(self) -> bool:
        """Whether the caller runs in the loop."""
        return self._loop.is_running() and threading.get_ident() == self._thread

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._drop()


def _in_loop(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Runs `action` in a loop of another thread, and waits for its end."""
    over = threading.Event()

    def run() -> None:
        action()
        over.set()

    with suppress(RuntimeError):  # it may be closed just now
        loop.call_soon_threadsafe(run)
        over.wait(CLOSE_S)
