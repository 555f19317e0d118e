"""A writer's operations `stage`, `publish` and `unstage`, and the turns of its publications."""

from collections.abc import Callable

from node.runtime.process import now_ms
from node.serving.request_server import Received, Server
from node.writer.append_request import AppendRequest
from node.writer.staging.publication import Outcome, Waiter
from node.writer.staging.publisher import Publisher
from node.writer.staging.requests import parse_publish, parse_stage, parse_unstage
from node.writer.staging.stages import Staging
from node.writer.store import WriterStore
from protocol.errors import MqError, UnknownOperation
from protocol.wire.frames import Header, answer, refusal, request_id

Append = Callable[[list[AppendRequest], float], None]


class StagingService:
    """Staging, as the writer's loop sees it. `append` writes records to the log and announces them.

    `flushed` returns the log offset below which all is durable.
    """

    def __init__(
        self, store: WriterStore, server: Server, append: Append, flushed: Callable[[], int]
    ) -> None:
        self._store = store
        self._server = server
        self._append = append
        record_bytes_max = store.log.request_bytes_max
        self._staging = Staging(
            store.root, store.settings, store.rules, store.topics, record_bytes_max
        )
        self._publisher = Publisher(store.root, self._staging, flushed, store.log.end)
        self.fd = self._publisher.fd
        store.needed_from = self._publisher.needed_from
        store.retention.make_room = self._publisher.make_room

    @property
    def is_active(self) -> bool:
        """Whether there is anything to turn for."""
        return self._publisher.is_active

    @property
    def has_work(self) -> bool:
        """Whether the loop shall not sleep."""
        return self._publisher.has_work

    @property
    def waits_for_flush(self) -> bool:
        """Whether a flush is asked for now."""
        return self._publisher.waits_for_flush

    def handle(self, received: Received, header: Header, operation: str) -> Header | None:
        """The answer; None for a publication, whose answer comes later. Raises MqError."""
        number = request_id(header)
        # Kept for longer than the socket's memory should be.
        payload = None if received.payload is None else bytes(received.payload)
        if operation == "stage":
            self._store.retention.check_room()
            staged = self._staging.put(parse_stage(header, payload))
            return answer(
                number,
                published=staged.published,
                frames=len(staged.stage.crcs),
                records=staged.stage.records,
                bytes=staged.stage.bytes,
            )
        if operation == "publish":
            request = parse_publish(header, payload)
            waiter = Waiter(received.peer, number)
            outcome = self._publisher.publish(request, waiter)
            return None if outcome is None else self._published(waiter, outcome)
        if operation == "unstage":
            return answer(number, dropped=self._staging.drop(*parse_unstage(header, payload)))
        raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")

    def step(self, now: float, stopping: bool) -> None:
        """One turn: takes the result of a job, begins the next, and appends a chunk."""
        # A clock that is set forward must not make batches older.
        time_ms = min(now_ms(), int(self._store.retention.clock.now_s() * 1000))
        self._publisher.turn(now, time_ms, self._answer)
        if stopping:
            return
        if self._store.retention.full is not None:
            self._publisher.pause(now)
            return
        bytes_max = self._store.log.request_bytes_max
        request = self._publisher.next_append(now, bytes_max, self._answer)
        if request is not None:
            self._append([request], now)
            self._publisher.appended(request, now, self._answer)

    def _answer(self, waiter: Waiter, outcome: Outcome | MqError) -> None:
        if isinstance(outcome, MqError):
            self._server.send(waiter.peer, refusal(waiter.request_id, outcome))
        else:
            self._server.send(waiter.peer, self._published(waiter, outcome))

    def _published(self, waiter: Waiter, outcome: Outcome) -> Header:
        return answer(
            waiter.request_id,
            already=outcome.already,
            records=outcome.records,
            bytes=outcome.bytes,
            epoch=self._store.epoch,
        )

    def close(self) -> None:
        """Ends the thread. Publications that have begun go on at the next start."""
        self._publisher.close(self._answer)
