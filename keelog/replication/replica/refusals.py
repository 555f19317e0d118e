"""What clients ask the process in the writer's place: questions are answered, changes refused."""

from collections.abc import Callable

from node.runtime.shortage import as_refusal
from node.serving.request_server import BadFrames, Received, Server
from node.writer.requests import answer_other
from node.writer.store import WriterStore
from protocol.errors import MqError, NodeFollows
from protocol.wire.frames import Header, check_envelope, id_within, refusal, request_id, unpack

ANSWERS_AT_ONCE = 100
QUESTIONS = frozenset({"ping", "topics", "groups", "cursor_get", "cursor_commit"})
"""Places of groups are taken as by a Java slave, for the time without a master: the master's own
replace them."""


class Refusals:
    """Serves the writer's socket of a replica. `settle` brings the ends of queues up to date."""

    def __init__(
        self, server: Server, store: WriterStore, source: str, settle: Callable[[], None]
    ) -> None:
        self._server = server
        self._store = store
        self._source = source
        self._settle = settle

    def turn(self) -> None:
        """Serves the requests that wait, up to a number that does not delay the copy."""
        for _ in range(ANSWERS_AT_ONCE):
            received = self._server.receive()
            if received is None:
                return
            if isinstance(received, BadFrames):
                self._server.send(received.peer, refusal(received.request_id, received.error))
            else:
                self._server.send(received.peer, self._answer(received))

    def _answer(self, received: Received) -> Header:
        number = 0
        try:
            header = unpack(received.header)
            number = request_id(header)
            operation = check_envelope(header)
            if operation not in QUESTIONS:
                raise NodeFollows(
                    f"this node follows {self._source} and takes {operation[:40]} from no client",
                    "send to the master; keelog replica promote makes this node one",
                )
            if operation == "cursor_commit":
                self._settle()
            return answer_other(self._store, operation, header, number)
        except (MqError, OSError) as error:
            number = number or id_within(received.header)
            return refusal(number, as_refusal(error, str(self._store.root)))
