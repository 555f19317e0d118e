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

from keelog.client.transport.channel import Channel
from keelog.client.transport.exchange import Decision, lost
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.request import Call, NodeAnswer, NodeRole, Outcome
from keelog.client.transport.routes import Routes
from keelog.client.transport.zmtp_connection import ZmtpConnection

SLICE_S = 0.2
"""Waits are cut into slices, to notice a lost connection, or the client's end."""
CONNECT_S = 0.05
"""The first pull waits this time for the connection, then goes by the I/O thread."""


class PullChannel(Channel):
    """The pulls of one follower, for one thread at a time: at most one call for each queue. The
    lock lets another thread close the client."""

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
            if link is not None and link.send(call, is_stream=True):
                return
        self._io.call(call)

    def next(self, seconds: float) -> tuple[int, Outcome] | None:
        """Returns the next queue with an ended pull, and its outcome; None after `seconds`."""
        deadline = monotonic() + seconds
        while self._arrived.empty():
            now = monotonic()
            if now >= deadline:
                return None
            link = self._link
            if link is None or not link.exchange.under_way or self._closing:
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

    def _begun(self, link: ZmtpConnection) -> None:
        link.wait_at_most(CONNECT_S)
        deadline = monotonic() + CONNECT_S
        while not link.is_up and not link.is_lost and monotonic() < deadline:
            link.receive(self._act, wait=True)
        if link.is_lost:
            self._lose_all(link)

    def _receive(self, link: ZmtpConnection, seconds: float, now: float) -> None:
        """Waits for answers, a slice at most."""
        if now >= self._looked_at + SLICE_S:
            self._looked_at = now
            link.keep_alive(now)
            self._end_all(link.exchange.expired(now, link.endpoint))
        link.wait_at_most(seconds)
        self._take_answers(link, wait=True)

    def _act(self, call: Call, decision: Decision) -> None:
        """Looks for the next answer of a stream. The first one that is missing ends it."""
        if isinstance(decision, NodeAnswer):
            header, offset = decision.header, call.fields["offset"]
            if header.get("offset", offset) != offset:
                # The node dropped answers that the client did not take in time.
                decision = lost(call, "a part was lost", self._io.retry, monotonic())
            elif header.get("more") and self._link is not None:
                self._link.exchange.goes_on(call, {"offset": header["next_begin_offset"]})
        super()._act(call, decision)

    def _drop(self) -> None:
        if self._link is not None:
            self._lose_all(self._link)
        super()._drop()

    def give_way(self) -> None:
        """The waiting thread releases the socket within a slice, so that `close` need not wait."""
        self._closing = True

    def close(self) -> None:
        """Ends the pulls under way, soon, and the connection. Harmless when repeated."""
        self._closing = True
        with self._lock:
            link, self._link = self._link, None
            if link is not None:
                self._end_all(link.exchange.closed())
                link.close()
