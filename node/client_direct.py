"""A connection to the writer, or a reader, by which a lone thread carries its request itself.

Handing a request to the I/O thread and its answer back costs two changes of threads, much of what a
lone send or look-up takes.
"""

import threading
from time import monotonic

import zmq

from node.client_calls import Call, Role, at_deadline, when_closed
from node.client_io import IoThread
from node.client_link import NOBLOCK, RECEIVE_MAX, Link
from node.client_own_link import OwnLink

SLICE_S = 0.05
"""A wait for an answer is cut into such, to see a lost connection, or the client's end."""


class Direct(OwnLink):
    """One for each client and role: the lock gives the sockets from one thread to the next."""

    def __init__(self, io: IoThread, role: Role = Role.WRITER) -> None:
        super().__init__(io, role)
        self._lock = threading.Lock()

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

    def _begun(self, link: Link) -> None:
        link.socket.setsockopt(zmq.RCVTIMEO, int(SLICE_S * 1000))

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
                self._answered(call, found[1])
                return True
            flags = NOBLOCK
        return False

    def close(self) -> None:
        """Ends the call that is under way, soon, and the connection. Harmless when repeated."""
        if self._closing:
            return
        self._closing = True
        with self._lock:
            self._drop()
