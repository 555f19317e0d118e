"""Serves the requests to a reader: answers them, or leaves pulls to the desk. No sockets, no clock.

Answers leave through a function; times are seconds of the caller's monotonic clock.
"""

from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any

from node.reader.answers import Answer, find_messages, get, list_all_topics, offsets, seek
from node.reader.fetch import fetch, layout
from node.reader.long_polls import Held
from node.reader.pull_desk import PullDesk
from node.reader.requests import parse_fetch, parse_get, parse_pull
from node.reader.stats import ReaderStats
from node.runtime.shortage import as_refusal
from node.serving.request_server import BadFrames, Received
from node.serving.unix_server import Payload
from node.store.config.topics_file import TopicsFile
from node.store.opening import RunningStore
from node.store.query.pull import TransferLimits
from protocol.errors import BadRequest, MqError, UnknownOperation
from protocol.requests import FIND, LAYOUT, OFFSETS, SEEK
from protocol.wire.frames import (
    Header,
    answer,
    check_envelope,
    id_within,
    refusal,
    request_id,
    unpack,
)

HEADER_BYTES_MAX = 128 * 1024
"""More than any request to a reader needs."""

Send = Callable[[bytes, Header, Payload | None], bool]


class ReaderService:
    """Answers requests from the desk's store."""

    def __init__(
        self,
        store: RunningStore,
        topics: TopicsFile,
        limits: TransferLimits,
        send: Send,
        shards: int,
    ) -> None:
        self.desk = PullDesk(store, self._deliver, shards)
        self.stats = ReaderStats()
        """Its owner may replace it before the first request."""
        self.requests = 0
        self.look_ups = 0
        """Those that were answered at once, and were no pulls."""
        self._topics = topics
        self._limits = limits
        self._send = send

    def handle(self, received: Received | BadFrames, now: float) -> None:
        """Answers one request, or holds it. Never raises for what a client sent."""
        self.requests += 1
        desk = self.desk
        desk.note_removals()
        began, pulls = monotonic_ns(), self.stats.pulls
        if isinstance(received, BadFrames):
            self._refuse(received.peer, received.request_id, "", received.error)
            return
        number, operation = 0, ""
        try:
            header = unpack(received.header, HEADER_BYTES_MAX)
            number = request_id(header)
            operation = check_envelope(header)
            if received.payload is not None:
                raise BadRequest("a reader takes one frame, two came")
            if operation == "pull":
                wanted = parse_pull(header, desk.store.settings, self._limits)
                desk.pull(received.peer, number, wanted, now)
                if self.stats.pulls != pulls:
                    self.stats.took(operation, monotonic_ns() - began)
                return
            found = desk.again(lambda: self._answer(operation, header, now))
        except (MqError, OSError) as error:
            number = number or id_within(received.header)
            place = str(desk.store.root)
            # No name for the refusal: its traceback would keep this frame, and the request, alive.
            self._refuse(received.peer, number, operation, as_refusal(error, place))
        else:
            self.look_ups += 1
            self._send(received.peer, answer(number, **found.fields), found.payload)
            self.stats.answered(operation, monotonic_ns() - began)

    def refuse(self, received: Received | BadFrames, error: MqError) -> None:
        """Refuses one request with `error`, whatever it asks for."""
        if isinstance(received, BadFrames):
            number = received.request_id
        else:
            try:
                number = request_id(unpack(received.header, HEADER_BYTES_MAX))
            except BadRequest:
                number = id_within(received.header)
        self._refuse(received.peer, number, "", error)

    def _refuse(self, peer: bytes, number: int, operation: str, error: MqError) -> None:
        header = refusal(number, error)
        self.stats.refused(operation, header["error"])
        self._send(peer, header, None)

    def _deliver(self, held: Held, found: Answer | MqError, extra: Mapping[str, Any]) -> bool:
        """Sends what the desk has for a pull; False when the peer is gone."""
        if isinstance(found, MqError):
            header, payload = refusal(held.request_id, found), None
        else:
            header, payload = answer(held.request_id, **found.fields, **extra), found.payload
        self.stats.pulled(held.queue.topic, header, payload)
        return self._send(held.peer, header, payload)

    def _answer(self, operation: str, header: Header, now: float) -> Answer:
        if operation == "ping":
            return Answer({})
        desk = self.desk
        desk.check_followed()
        store, tail = desk.store, desk.tail
        match operation:
            case "get":
                wanted = parse_get(header)
                desk.see_end(now)
                return get(store, tail, wanted)
            case "find":
                found = find_messages(store, self._topics, FIND.parse(header))
                self.stats.looked_up(bool(found.fields["count"]))
                return found
            case "offsets":
                asked = OFFSETS.parse(header)
                desk.see_end(now)
                return offsets(store, tail, self._topics, asked)
            case "seek":
                return seek(store, SEEK.parse(header))
            case "fetch":
                return fetch(store, parse_fetch(header))
            case "layout":
                return layout(store, LAYOUT.parse(header))
            case "topics":
                return list_all_topics(store, self._topics)
        raise UnknownOperation(
            f"a reader knows no operation {operation[:40]!a}",
            "pull, get, find, offsets, seek, topics, fetch, layout or ping",
        )
