"""Sends batches: learns how many queues a topic has, repeats and splits what was refused."""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from keelog.client.send.record_batch import BatchRequest, RecordBatch, WriteQueues
from keelog.client.transport.io_thread import IoThread
from keelog.client.transport.request import Call, NodeAnswer, NodeRole, Outcome
from keelog.client.transport.timers import Action
from protocol.errors import BadRequest, ClientClosed, MqError, RefusedError, UnknownTopic

TOPICS_TIMEOUT_S = 2.0


class BatchSender:
    """One for each client. All but `send` and `carry` runs on the I/O thread."""

    def __init__(self, io: IoThread, once: bool = False) -> None:
        """`once`: the node is asked to store each unique key once."""
        self._io = io
        self._once = once
        self._queues = WriteQueues()
        self._waiting: deque[tuple[RecordBatch, Action | None]] = deque()
        self._is_asking = False

    def send(self, batch: RecordBatch) -> None:
        """Sends the batch, after those that came before it. It fails when the client is closed."""
        if not self._io.post(lambda: self.start(batch)):
            batch.fail(ClientClosed())

    def carry(self, batch: RecordBatch, carry: Callable[[Call], bool]) -> bool:
        """Sends a batch that is one request by `carry`, on the caller's thread; what follows a
        refusal is done on the I/O thread.

        False, at once, when the batch has to be sent by `send`; nothing was done then.
        """
        batch.once |= self._once
        request = batch.lone_request()
        if request is None:
            if not self._queues.know(batch.open_topics()):
                return False
            request, *others = batch.requests(self._queues)
            if others:
                return False
        settle = partial(self._settle, batch, request)
        return carry(request.call(batch, settle))

    def _settle(self, batch: RecordBatch, request: BatchRequest, outcome: Outcome) -> None:
        if isinstance(outcome, RefusedError) and self._io.post(
            lambda: self._answered(batch, request, None, outcome)
        ):
            return
        batch.end(request, outcome)

    def start(self, batch: RecordBatch, then: Action | None = None) -> None:
        """As `send`, on the I/O thread; `then` is done when the batch has ended.

        Batches keep their order, also while one of them waits for the topics.
        """
        batch.once |= self._once
        if self._waiting or not self._queues.know(batch.open_topics()):
            self._waiting.append((batch, then))
            self._ask()
        else:
            self._submit(batch, then)

    def _ask(self) -> None:
        if self._is_asking:
            return
        self._is_asking = True
        deadline = max(monotonic() + TOPICS_TIMEOUT_S, self._waiting[0][0].deadline)
        self._io.start(Call(NodeRole.WRITER, "topics", {}, deadline, done=self._learned))

    def _learned(self, outcome: Outcome) -> None:
        """Goes on with the batches that wait. Those that need the answer fail with its error."""
        self._is_asking = False
        if isinstance(outcome, NodeAnswer):
            self._queues.learn(outcome.header["topics"])
        waiting, self._waiting = self._waiting, deque()
        for batch, then in waiting:
            if isinstance(outcome, MqError) and not self._queues.know(batch.open_topics()):
                batch.fail(outcome)
                if then is not None:
                    then()
            else:
                # A topic that is still unknown will be made by the node.
                self._submit(batch, then)

    def _submit(self, batch: RecordBatch, then: Action | None) -> None:
        requests = batch.requests(self._queues)
        for request in requests:
            last = then if request is requests[-1] else None
            answered = partial(self._answered, batch, request, last)
            self._io.start(request.call(batch, answered))

    def _answered(
        self, batch: RecordBatch, request: BatchRequest, then: Action | None, outcome: Outcome
    ) -> None:
        if isinstance(outcome, RefusedError) and self._tries_again(batch, request, then, outcome):
            return
        batch.end(request, outcome)
        if then is not None:
            then()

    def _tries_again(
        self, batch: RecordBatch, request: BatchRequest, then: Action | None, error: RefusedError
    ) -> bool:
        """A refusal has stored nothing, so what may help is tried."""
        self._queues.expire()
        if isinstance(error, BadRequest | UnknownTopic) and not batch.has_relearned:
            again = batch.relearned(request)
            if again.open_topics():
                # Perhaps the topic has other queues than it had.
                self.start(again, then)
                return True
        smaller = batch.smaller(request, error)
        if smaller:
            self._in_turn(smaller, then)
        return bool(smaller)

    def _in_turn(self, batches: Sequence[RecordBatch], then: Action | None) -> None:
        """One batch after the other, so that the order within each queue stays."""
        first, *rest = batches
        self._submit(first, partial(self._in_turn, rest, then) if rest else then)
