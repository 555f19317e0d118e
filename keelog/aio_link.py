"""A connection to the writer that an event loop carries itself.

Handing a request to the I/O thread and its answer back costs two changes of threads, and each of
them waits for the interpreter's lock. Here the loop watches ZeroMQ's descriptor. That tells only
when something new has come, and sending takes note of it too, so the socket is asked behind both.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import zmq

from node.client_calls import Answer, Call, Role, at_deadline, when_closed
from node.client_io import IoThread
from node.client_link import NOBLOCK, RECEIVE_MAX, Link
from node.client_own_link import OwnLink

CLOSE_S = 1.0
"""Another thread that closes the link waits so long for the loop to let go of it."""


class LoopLink(OwnLink):
    """One for each loop. All but `close` runs in the loop's thread."""

    def __init__(self, io: IoThread, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(io, Role.WRITER)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def carry(self, call: Call) -> bool:
        """Begins a call; its `done` will be called once, in the loop, or on the I/O thread where
        that goes on with it. False, at once, when it is for the I/O thread from the beginning."""
        link = self._link_up()
        if link is None:
            return False
        call.id = next(self._ids)
        if not link.send(call):
            return False
        if self._timer is None or call.deadline < self._timer_at:
            self._wake_at(call.deadline)
        if link.has_answer():
            self._loop.call_soon(self._take_answers, link)
        return True

    def _begun(self, link: Link) -> None:
        self._loop.add_reader(link.socket.FD, self._take_answers, link)
        self._loop.add_reader(link.monitor.FD, self._read_news, link)

    def _read_news(self, link: Link) -> None:
        if not link.closed and link.news().lost:
            # What has come counts, also when the connection is lost by now.
            self._settle(link, list(link.receive()), link.take_lost())

    def _take_answers(self, link: Link) -> None:
        for _ in range(RECEIVE_MAX):
            if link.closed or not link.has_answer():
                return
            with suppress(zmq.Again):
                found = link.receive_one(NOBLOCK)
                if found is not None:
                    self._answered(*found)
        self._loop.call_soon(self._take_answers, link)

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
        for call in [call for call in link.in_flight.values() if call.deadline <= now]:
            del link.in_flight[call.id]
            call.done(at_deadline(call, link.endpoint))
        if link.in_flight:
            self._wake_at(min(call.deadline for call in link.in_flight.values()))

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(link.socket.FD)
            self._loop.remove_reader(link.monitor.FD)
        # What has come counts.
        answers, lost = list(link.receive()), link.take_lost()
        link.close()
        if self._closing:
            for call, answer in answers:
                self._answered(call, answer)
            for call in lost:
                call.done(when_closed(call, failed=False))
        elif answers or lost:
            # Soon: who learns an outcome may send the next message, and so come back to here.
            self._loop.call_soon(self._settle, link, answers, lost)

    def _settle(self, link: Link, answers: list[tuple[Call, Answer]], lost: list[Call]) -> None:
        for call, answer in answers:
            self._answered(call, answer)
        for call in lost:
            self._lose(link, call)

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
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

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
