"""Sends batches: gathers what waits, learns a topic's queues, repeats and splits what was refused.

`SendCoalescer` has the messages that threads or tasks of one client send at one moment go as one
batch. A message does not linger: it goes at once, or, while UNDER_WAY_MAX batches have no answer
yet, with all others that came meanwhile. Each caller gets a receipt, or an error, of its own.
`BatchSender` sends a batch, whoever gathered it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic

from keelog.client.results import Receipt
from keelog.client.send.record_batch import (
    BatchRequest,
    EncodedMessage,
    EntryBatch,
    RecordBatch,
    Results,
    WriteQueues,
    error_of,
    in_queue,
    request_of,
)
from keelog.client.transport import exchange
from keelog.client.transport.direct import Reply
from keelog.client.transport.io_thread import CALLS_MAX, Action, IoThread
from protocol.errors import BadRequest, ClientClosed, MqError, NodeBusy, RefusedError, UnknownTopic
from protocol.record.encode import ANY_QUEUE

TOPICS_TIMEOUT_S = 2.0
UNDER_WAY_MAX = 2
"""Batches of waiting sends without an answer; what comes meanwhile goes together."""
SEND_RECORDS_MAX = 1_000
SEND_BYTES_MAX = 256_000
"""Of one batch; a single message may be larger."""
HELD_S_MAX = 0.05
"""A message waits for no other batch any longer."""

Done = Callable[[Receipt | MqError], None]
"""Learns the outcome, once, on any thread; the `slot` of an entry."""
_Kind = tuple[str | None, float, bool, bool]
"""Messages of one batch share it: the field `wait`, the timeout in seconds, whether the node
chooses the queue, whether the client has to know the topic's queues. So no message waits for a
table of topics that only others need. It is a plain tuple because one is made for each message."""


class BatchSender:
    """One for each client. All but `send` and `carry` runs on the I/O thread."""

    def __init__(self, io: IoThread, once: bool = False) -> None:
        """`once`: the node is asked to store each unique key once."""
        self._io = io
        self.once = once
        self._queues = WriteQueues()
        self._waiting: deque[tuple[RecordBatch, Action | None]] = deque()
        self._is_asking = False

    def send(self, batch: RecordBatch) -> None:
        """Sends the batch, after those that came before it. It fails when the client is closed."""
        if not self._io.post(lambda: self.start(batch)):
            batch.fail(ClientClosed())

    def carry(self, batch: RecordBatch, carry: Callable[[exchange.Call], bool]) -> bool:
        """Sends a batch that is one request by `carry`, on the caller's thread; what follows a
        refusal is done on the I/O thread.

        False, at once, when the batch has to be sent by `send`; nothing was done then.
        """
        batch.once |= self.once
        if not self._queues.know(batch.open_topics()):
            return False
        request, *others = batch.requests(self._queues)
        return not others and carry(request.call(batch, partial(self._settle, batch, request)))

    def placed(self, entry: EncodedMessage) -> EncodedMessage | None:
        """A message with an ordering key, in its queue; None where the topic's queues must be
        learned first. On any thread."""
        if not self._queues.know({entry.topic}):
            return None
        return in_queue(entry, self._queues.queue_for(entry.topic, entry.order_by))

    def take_up(
        self, entry: EncodedMessage, placed: EncodedMessage, wait: str | None, deadline: float,
        reply: Reply,
    ) -> Receipt:  # fmt: skip
        """Goes on with a message, `placed` in its queue, of which the caller's thread has carried
        the first attempt: that was the reply. Waits for the receipt, or raises the error."""
        arrival: exchange.Arrival[Receipt] = exchange.Arrival()
        entries = (entry._replace(slot=arrival),)
        batch = EntryBatch(wait, deadline, _deliver, True, entries, once=self.once)
        request = request_of(entries, placed.record, (placed.queue_id,))
        call = request.call(batch, partial(self._settle, batch, request))
        decision = call.ended(*reply, self._io.retry, monotonic())
        if isinstance(decision, exchange.RepeatAfter):
            self._io.resume(call, decision.delay)
        else:
            call.done(decision)
        return arrival.wait()

    def _settle(self, batch: RecordBatch, request: BatchRequest, outcome: exchange.Outcome) -> None:
        if isinstance(outcome, RefusedError) and self._io.post(
            lambda: self._answered(batch, request, None, outcome)
        ):
            return
        batch.end(request, outcome)

    def start(self, batch: RecordBatch, then: Action | None = None) -> None:
        """As `send`, on the I/O thread; `then` is done when the batch has ended.

        Batches keep their order, also while one of them waits for the topics.
        """
        batch.once |= self.once
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
        self._io.start(
            exchange.Call(exchange.NodeRole.WRITER, "topics", {}, deadline, done=self._learned)
        )

    def _learned(self, outcome: exchange.Outcome) -> None:
        """Goes on with the batches that wait. Those that need the answer fail with its error."""
        self._is_asking = False
        if isinstance(outcome, exchange.NodeAnswer):
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
        self,
        batch: RecordBatch,
        request: BatchRequest,
        then: Action | None,
        outcome: exchange.Outcome,
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


class _KindGroup:
    """Messages of one kind that have not gone yet, oldest first, and the batches under way."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[EncodedMessage, float]] = deque()
        self.under_way = 0
        self.has_timer = False

    def take(self) -> tuple[list[EncodedMessage], float]:
        """Removes and returns the messages of the next batch, and the deadline of the oldest."""
        waiting = self.waiting
        entry, deadline = waiting.popleft()
        taken, size = [entry], len(entry.record)
        while waiting and len(taken) < SEND_RECORDS_MAX:
            size += len(waiting[0][0].record)
            if size > SEND_BYTES_MAX:
                break
            taken.append(waiting.popleft()[0])
        return taken, deadline


class SendCoalescer:
    """The waiting sends of one client. All but `send` runs on the I/O thread."""

    def __init__(self, io: IoThread, sender: BatchSender) -> None:
        self._io = io
        self._sender = sender
        self.arrived: deque[tuple[_Kind, EncodedMessage, float]] = deque()
        self._is_notified = False
        self.groups: dict[_Kind, _KindGroup] = {}

    def send(self, entry: EncodedMessage, wait: str | None, timeout: float) -> None:
        """Sends an entry whose slot is a Done. `wait`: the field of that name."""
        if len(self.arrived) >= CALLS_MAX:
            entry.slot(NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches"))
            return
        kind = wait, timeout, entry.queue_id == ANY_QUEUE, entry.order_by is not None
        self.arrived.append((kind, entry, monotonic() + timeout))
        if not self._is_notified:
            # A thread that finds it set has appended before `_collect` looks.
            self._is_notified = True
            if not self._io.post(self._collect):
                self._refuse_all()

    def _refuse_all(self) -> None:
        self._is_notified = False
        error = ClientClosed()
        with suppress(IndexError):  # another thread may refuse them just now
            while True:
                self.arrived.popleft()[1].slot(error)

    def _collect(self) -> None:
        self._is_notified = False
        arrived, groups = self.arrived, self.groups
        changed: dict[_Kind, _KindGroup] = {}
        while arrived:
            kind, entry, deadline = arrived.popleft()
            group = groups.get(kind)
            if group is None:
                group = groups[kind] = _KindGroup()
            group.waiting.append((entry, deadline))
            changed[kind] = group
        for kind, group in changed.items():
            self._push(kind, group)

    def _push(self, kind: _Kind, group: _KindGroup) -> None:
        """Sends what waits, as far as it may go; the oldest of the rest goes soon, come what may.

        So a batch that gets no answer delays no other message, and each keeps its deadline.
        """
        while group.waiting:
            left_s = group.waiting[0][1] - kind[1] + HELD_S_MAX - monotonic()
            if group.under_way >= UNDER_WAY_MAX and left_s > 0:
                self._push_later(kind, group, left_s)
                return
            self._send(kind, group)
        if not group.under_way and self.groups.get(kind) is group:
            del self.groups[kind]

    def _push_later(self, kind: _Kind, group: _KindGroup, left_s: float) -> None:
        def push() -> None:
            group.has_timer = False
            self._push(kind, group)

        if not group.has_timer:
            group.has_timer = True
            self._io.at(monotonic() + left_s, push)

    def _send(self, kind: _Kind, group: _KindGroup) -> None:
        entries, deadline = group.take()
        group.under_way += 1
        unanswered = len(entries)

        def deliver(answered: Sequence[EncodedMessage], results: Results) -> None:
            nonlocal unanswered
            _deliver(answered, results)
            unanswered -= len(answered)
            if not unanswered:
                group.under_way -= 1
                self._push(kind, group)

        self._sender.start(EntryBatch(kind[0], deadline, deliver, True, entries))


def _deliver(entries: Sequence[EncodedMessage], results: Results) -> None:
    if isinstance(results, MqError):
        for entry in entries:
            entry.slot(error_of(results, entry.topic, entry.unique_key))
    else:
        for entry, receipt in zip(entries, results, strict=True):
            entry.slot(receipt)
