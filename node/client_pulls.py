"""The pulls of one follower: it carries them itself, on a connection of its own, as streams.

Handing each pull to the I/O thread, and its answer back, costs two changes of threads for each
message that arrives alone. Everything out of the ordinary (no connection, several readers, a
refusal that may be repeated) is left to the I/O thread, whose rules hold.
"""

import queue
import threading
from functools import partial
from time import monotonic

import zmq

from node.client_calls import (
    Answer,
    Call,
    GiveUp,
    Outcome,
    RepeatAfter,
    after_loss,
    after_refusal,
    at_deadline,
    when_closed,
)
from node.client_io import IoThread
from node.client_link import Link
from protocol.errors import MqError
from protocol.wire import raise_refusal

SLICE_S = 0.2
"""A wait for answers is cut into such, to see a lost connection, or the client's end."""
CONNECT_S = 0.05
"""So long the first pull waits for the connection; those of a slower one begin elsewhere."""


class Pulls:
    """What is under way for one follower, which is one thread at a time: at most one call for each
    queue. The lock gives the socket to whoever closes the client."""

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._arrived: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._number = 0
        self._looked_at = 0.0
        self._closing = False

    def start(self, queue_id: int, call: Call) -> None:
        """Begins a pull of a queue."""
        call.done = partial(self._put, queue_id)
        with self._lock:
            link = None if self._closing else self._link_up()
            if link is not None:
                self._number += 1
                call.id = self._number
                asked = call.fields
                call.fields = {**asked, "stream": True}
                if link.send(call):
                    return
                call.fields = asked
        self._io.call(call)

    def next(self, seconds: float) -> tuple[int, Outcome] | None:
        """The next queue whose pull has ended, and how; None after so many seconds."""
        deadline = monotonic() + seconds
        while self._arrived.empty():
            now = monotonic()
            if now >= deadline:
                return None
            link = self._link
            if link is None or not link.in_flight:
                try:
                    return self._arrived.get(timeout=deadline - now)
                except queue.Empty:
                    return None
            with self._lock:
                if not self._closing:
                    self._receive(link, min(deadline - now, SLICE_S), now)
        return self._arrived.get()

    def _put(self, queue_id: int, outcome: Outcome) -> None:
        self._arrived.put((queue_id, outcome))

    def _link_up(self) -> Link | None:
        """The link to the node's one reader, when it is up; begins it where there is none."""
        routes, link = self._io.routes, self._link
        readers = () if routes is None else routes.readers
        if link is None or link.endpoint not in readers:
            self._drop()
            link = self._connect(readers[0]) if len(readers) == 1 else None
            if link is None:
                return None
        if link.has_news():
            self._read_news(link)
        return link if link.connected else None

    def _connect(self, endpoint: str) -> Link | None:
        try:
            link = self._link = self._io.make_link(endpoint)
        except MqError:
            return None  # the I/O thread says it to whoever asks
        link.socket.setsockopt(zmq.RCVTIMEO, int(SLICE_S * 1000))
        link.monitor.poll(int(CONNECT_S * 1000))
        return link

    def _receive(self, link: Link, seconds: float, now: float) -> None:
        """Waits for one answer, a slice at most."""
        if now >= self._looked_at + SLICE_S:
            self._looked_at = now
            self._look_after(link, now)
        if seconds < SLICE_S and not link.socket.poll(max(1, int(seconds * 1000))):
            return
        try:
            found = link.receive_one(0)
        except zmq.Again:
            return
        if found is not None:
            self._take(*found)

    def _take(self, call: Call, answer: Answer) -> None:
        call.sent = False
        try:
            raise_refusal(answer.header)
        except MqError as error:
            call.last_error = error
            self._act(call, after_refusal(call, error, self._io.retry, monotonic()))
            return
        offset = call.fields["offset"]
        if answer.header.get("offset", offset) != offset:
            # The node gave up some that nobody took for long.
            self._act(call, after_loss(call, "a part was lost", self._io.retry, monotonic()))
            return
        if answer.header.get("more") and self._link is not None:
            # Where it is repeated from, should the rest not come.
            call.fields = {**call.fields, "offset": answer.header["next_begin_offset"]}
            call.sent = True
            self._link.in_flight[call.id] = call
        call.done(answer)

    def _look_after(self, link: Link, now: float) -> None:
        """Calls whose time is up, and a connection that was lost."""
        if link.has_news():
            self._read_news(link)
        for call in [call for call in link.in_flight.values() if call.deadline <= now]:
            del link.in_flight[call.id]
            call.done(at_deadline(call, link.endpoint))

    def _read_news(self, link: Link) -> None:
        if not link.news().lost:
            return
        # What has come counts, also when the connection is lost by now.
        for found in link.receive():
            self._take(*found)
        self._lose(link)

    def _lose(self, link: Link) -> None:
        for call in link.take_lost():
            call.sent = False
            why = f"the connection to {link.endpoint} was lost"
            self._act(call, after_loss(call, why, self._io.retry, monotonic()))

    def _act(self, call: Call, decision: RepeatAfter | GiveUp) -> None:
        if isinstance(decision, GiveUp):
            call.done(decision.error)
        else:
            call.fields = {k: value for k, value in call.fields.items() if k != "stream"}
            self._io.resume(call, decision.delay)

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._lose(link)
            link.close()

    def close(self) -> None:
        """Ends the pulls under way, soon, and the connection. Harmless when repeated."""
        self._closing = True
        with self._lock:
            link, self._link = self._link, None
            if link is not None:
                for call in link.take_lost():
                    call.done(when_closed(call, failed=False))
                link.close()
