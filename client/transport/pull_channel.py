"""The pulls of one follower: it carries them itself, on a connection of its own, as streams.

Handing each pull to the I/O thread, and its answer back, costs two changes of threads for each
message that arrives alone. Everything out of the ordinary (no connection, several readers, a
refusal that may be repeated) is left to the I/O thread, whose rules hold.
"""

import queue
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from time import monotonic

from client.transport.channel import OwnLink
from client.transport.io_thread import IoThread
from client.transport.request import (
    Call,
    GiveUp,
    NodeAnswer,
    NodeRole,
    Outcome,
    RepeatAfter,
    after_loss,
    at_deadline,
    when_closed,
)
from client.transport.routes import Routes
from client.transport.zmtp_connection import BareLink

SLICE_S = 0.2
"""A wait for answers is cut into such, to see a lost connection, or the client's end."""
CONNECT_S = 0.05
"""So long the first pull waits for the connection; those of a slower one begin elsewhere."""


class Pulls(OwnLink):
    """What is under way for one follower, which is one thread at a time: at most one call for each
    queue. The lock gives the socket to whoever closes the client."""

    def __init__(self, io: IoThread, takes_much: bool) -> None:
        """`takes_much`: large answers one after the other, rather than each message at once."""
        super().__init__(io, NodeRole.READER)
        self._takes_much = takes_much
        self._arrived: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._looked_at = 0.0

    def start(self, queue_id: int, call: Call) -> None:
        """Begins a pull of a queue."""
        call.done = partial(self._put, queue_id)
        with self._lock:
            link = None if self._closing else self._link_up()
            if link is not None:
                call.id = next(self._ids)
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
            if link is None or not link.in_flight or self._closing:
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

    def _usable(self) -> Sequence[str]:
        """Of several readers none is the node's; the one that is connected stays."""
        readers, link = super()._usable(), self._link
        is_kept = link is not None and link.endpoint in readers
        return readers if is_kept or len(readers) == 1 else ()

    def _local(self, routes: Routes) -> Mapping[str, str]:
        return routes.bulk if self._takes_much else routes.local

    def _begun(self, link: BareLink) -> None:
        link.wait_at_most(CONNECT_S)
        deadline = monotonic() + CONNECT_S
        while not link.is_up and not link.is_lost and monotonic() < deadline:
            link.receive(self._answered, wait=True)
        if link.is_lost:
            self._lose_all(link)

    def _receive(self, link: BareLink, seconds: float, now: float) -> None:
        """Waits for answers, a slice at most."""
        if now >= self._looked_at + SLICE_S:
            self._looked_at = now
            link.keep_alive(now)
            for call in [call for call in link.in_flight.values() if call.deadline <= now]:
                del link.in_flight[call.id]
                call.done(at_deadline(call, link.endpoint))
        link.wait_at_most(seconds)
        self._take_answers(link, wait=True)

    def _answered(self, call: Call, answer: NodeAnswer) -> None:
        offset = call.fields["offset"]
        if answer.header.get("offset", offset) != offset:
            # The node gave up some that nobody took for long.
            call.sent = False
            self._act(call, after_loss(call, "a part was lost", self._io.retry, monotonic()))
            return
        link = self._link
        goes_on = bool(answer.header.get("more")) and link is not None
        if goes_on and link is not None:
            # Where it is repeated from, should the rest not come.
            call.fields = {**call.fields, "offset": answer.header["next_begin_offset"]}
            link.in_flight[call.id] = call
        super()._answered(call, answer)
        if goes_on:
            call.sent = True

    def _act(self, call: Call, decision: RepeatAfter | GiveUp) -> None:
        call.fields = {k: value for k, value in call.fields.items() if k != "stream"}
        super()._act(call, decision)

    def _drop(self) -> None:
        if self._link is not None:
            self._lose_all(self._link)
        super()._drop()

    def give_way(self) -> None:
        """Whoever waits lets go of the socket within a slice, so that `close` need not wait."""
        self._closing = True

    def close(self) -> None:
        """Ends the pulls under way, soon, and the connection. Harmless when repeated."""
        self._closing = True
        with self._lock:
            link, self._link = self._link, None
            if link is not None:
                for call in link.take_lost():
                    call.done(when_closed(call, failed=False))
                link.close()
