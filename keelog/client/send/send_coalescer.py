"""Waiting sends: messages that threads or tasks of one client send at one moment go as one batch.

A message does not linger: it goes at once, or, while UNDER_WAY_MAX batches have no answer yet, with
all others that came meanwhile. Each caller gets a receipt, or an error, of its own.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import get_ident
from time import monotonic

from keelog.client.results import Receipt
from keelog.client.send.batch_sender import BatchSender
from keelog.client.send.receipts import Results, error_of
from keelog.client.send.record_batch import EncodedMessage, EntryBatch
from keelog.client.transport.blocking_channel import ChannelPool
from keelog.client.transport.io_thread import CALLS_MAX, IoThread
from keelog.client.transport.request import no_waiting_here
from protocol.errors import ClientClosed, MqError, NodeBusy
from protocol.record.encode import ANY_QUEUE

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
    """The waiting sends of one client. All but `send…` runs on the I/O thread."""

    def __init__(self, io: IoThread, sender: BatchSender, direct: ChannelPool) -> None:
        self._io = io
        self._sender = sender
        self._direct = direct
        self._arrived: deque[tuple[_Kind, EncodedMessage, float]] = deque()
        self._told = False
        self._groups: dict[_Kind, _KindGroup] = {}

    def send(self, entry: EncodedMessage, wait: str | None, timeout: float) -> None:
        """Sends an entry whose slot is a Done. `wait`: the field of that name."""
        if len(self._arrived) >= CALLS_MAX:
            entry.slot(NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches"))
            return
        kind = wait, timeout, entry.queue_id == ANY_QUEUE, entry.order_by is not None
        self._arrived.append((kind, entry, monotonic() + timeout))
        if not self._told:
            # A thread that finds it set has appended before `_collect` looks.
            self._told = True
            if not self._io.post(self._collect):
                self._refuse_all()

    def send_here(self, entry: EncodedMessage, wait: str | None, timeout: float) -> None:
        """As `send`, for a thread that waits: it carries the request itself, unless sends of others
        go by the I/O thread."""
        if get_ident() == self._io.ident:
            raise no_waiting_here()
        if not self._groups and not self._arrived:
            batch = EntryBatch(wait, monotonic() + timeout, _deliver, True, (entry,))
            if self._sender.carry(batch, self._direct.carry):
                return
        self.send(entry, wait, timeout)

    def _refuse_all(self) -> None:
        self._told = False
        error = ClientClosed()
        with suppress(IndexError):  # another thread may refuse them just now
            while True:
                self._arrived.popleft()[1].slot(error)

    def _collect(self) -> None:
        self._told = False
        arrived, groups = self._arrived, self._groups
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
        if not group.under_way and self._groups.get(kind) is group:
            del self._groups[kind]

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
