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
from typing import Generic, TypeVar

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
T = TypeVar("T")

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
        if isinstance(decision, exchange.GOES_ON):
            self._io.resume(call, decision)
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


class SendGroup(Generic[T]):
    """Waiting sends that may go together, oldest first, and their requests under way.

    They go at once, or, while UNDER_WAY_MAX requests have no answer yet, with all others that come
    meanwhile; but none waits longer than HELD_S_MAX. So a request that gets no answer delays no
    other message. Threads and event loops drive it in the same way.
    """

    def __init__(
        self, send: Callable[["SendGroup[T]"], object], at: Callable[[float, Action], object]
    ) -> None:
        """`send` takes at least the first of `waiting`, and counts requests in `under_way`; `at`
        runs an action at a time."""
        self.waiting: deque[tuple[T, float]] = deque()
        """With the time at which each goes, come what may."""
        self.under_way = 0
        self._send = send
        self._at = at
        self._has_timer = False

    def push(self) -> None:
        """Sends what waits, as far as it may go; the oldest of the rest goes soon."""
        while self.waiting:
            due = self.waiting[0][1]
            if self.under_way >= UNDER_WAY_MAX and monotonic() < due:
                if not self._has_timer:
                    self._has_timer = True
                    self._at(due, self._push_late)
                return
            self._send(self)

    def _push_late(self) -> None:
        self._has_timer = False
        self.push()


class SendCoalescer:
    """The waiting sends of one client. All but `send` runs on the I/O thread."""

    def __init__(self, io: IoThread, sender: BatchSender) -> None:
        self._io = io
        self._sender = sender
        self.arrived: deque[tuple[_Kind, EncodedMessage, float]] = deque()
        self._is_notified = False
        self.groups: dict[_Kind, SendGroup[EncodedMessage]] = {}

    def send(self, entry: EncodedMessage, wait: str | None, timeout: float) -> None:
        """Sends an entry whose slot is a Done. `wait`: the field of that name."""
        if len(self.arrived) >= CALLS_MAX:
            entry.slot(NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches"))
            return
        kind = wait, timeout, entry.queue_id == ANY_QUEUE, entry.order_by is not None
        self.arrived.append((kind, entry, monotonic()))
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
        changed: dict[_Kind, SendGroup[EncodedMessage]] = {}
        while self.arrived:
            kind, entry, since = self.arrived.popleft()
            group = self.groups.get(kind)
            if group is None:
                group = self.groups[kind] = SendGroup(partial(self._send, kind), self._io.at)
            group.waiting.append((entry, since + HELD_S_MAX))
            changed[kind] = group
        for group in changed.values():
            group.push()

    def _send(self, kind: _Kind, group: SendGroup[EncodedMessage]) -> None:
        """Sends the next batch. It has the deadline of its oldest message."""
        waiting = group.waiting
        entry, due = waiting.popleft()
        entries, size = [entry], len(entry.record)
        while waiting and len(entries) < SEND_RECORDS_MAX:
            size += len(waiting[0][0].record)
            if size > SEND_BYTES_MAX:
                break
            entries.append(waiting.popleft()[0])
        group.under_way += 1
        unanswered = len(entries)

        def deliver(answered: Sequence[EncodedMessage], results: Results) -> None:
            nonlocal unanswered
            _deliver(answered, results)
            unanswered -= len(answered)
            if not unanswered:
                group.under_way -= 1
                group.push()
                if not group.under_way and self.groups.get(kind) is group:
                    del self.groups[kind]

        wait, timeout, *_ = kind
        deadline = due - HELD_S_MAX + timeout
        self._sender.start(EntryBatch(wait, deadline, deliver, True, entries))


def _deliver(entries: Sequence[EncodedMessage], results: Results) -> None:
    if isinstance(results, MqError):
        for entry in entries:
            entry.slot(error_of(results, entry.topic, entry.unique_key))
    else:
        for entry, receipt in zip(entries, results, strict=True):
            entry.slot(receipt)
