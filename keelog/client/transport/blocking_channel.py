"""A connection to the writer, or a reader, by which a lone thread carries its request itself.

Handing a request to the I/O thread and its answer back costs two changes of threads, much of what a
lone send or look-up takes.
"""

import threading
from time import monotonic

from keelog.client.transport.channel import Channel
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.request import Call, NodeRole
from keelog.client.transport.zmtp_connection import ZmtpConnection

DIRECTS = 2
"""Threads that carry a request at the same time. Messages of further threads go in groups."""
SLICE_S = 0.05
"""A wait for an answer is cut into such, to see a lost connection, or the client's end."""


class ChannelPool:
    """The channels of one client to one role."""

    def __init__(self, io: IoThread, role: NodeRole) -> None:
        self.links = tuple(BlockingChannel(io, role) for _ in range(DIRECTS))

    def carry(self, call: Call) -> bool:
        """As `BlockingChannel.carry`, by the first that is free."""
        for link in self.links:
            if not link.is_busy:
                return link.carry(call)
        return False


class BlockingChannel(Channel):
    """One for each thread that waits: the lock gives the socket from one to the next."""

    def __init__(self, io: IoThread, role: NodeRole) -> None:
        super().__init__(io, role)
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether another thread has it."""
        return self._lock.locked()

    def carry(self, call: Call) -> bool:
        """Carries a call to its end, or as far as where the I/O thread goes on with it.

        False, at once, when it is for the I/O thread from the beginning; nothing was done then.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            link = self._link_up()
            if link is None:
                return False
            if not link.send(call):
                return False
            try:
                self._wait(link, call)
            finally:
                # A late answer is dropped.
                link.exchange.under_way.pop(call.id, None)
            return True
        finally:
            self._lock.release()

    def _wait(self, link: ZmtpConnection, call: Call) -> None:
        self._look_awake(link, lambda: call.id in link.exchange.under_way)
        while call.id in link.exchange.under_way:
            now = monotonic()
            if call.deadline <= now:
                self._end_all(link.exchange.expired(now, link.endpoint))
                return
            if self._closing:
                self._end_all(link.exchange.closed())
                return
            link.wait_at_most(min(call.deadline - now, SLICE_S))
            self._take_answers(link, wait=True)
            link.keep_alive(now)

    def close(self) -> None:
        """Ends the call that is under way, soon, and the connection. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        with self._lock:
            self._drop()
