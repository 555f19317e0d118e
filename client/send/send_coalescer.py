"""Waiting sends: what the threads or tasks of one client send at one moment goes as one request.

There is no linger: a message goes at once, or, while UNDER_WAY_MAX requests have no answer yet,
with all others that came meanwhile. Each caller gets a receipt, or an error, of its own; a refusal
has stored nothing, so the good are sent again without the bad.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from time import monotonic

from client.results import Receipt
from client.send.record_batch import EncodedMessage, RequestPart, lone_part, read_receipts, smaller
from client.transport.blocking_channel import ChannelPool
from client.transport.io_thread import CALLS_MAX, IoThread
from client.transport.request import Call, NodeRole, Outcome, no_waiting_here
from protocol.errors import (
    BadRequest,
    ClientClosed,
    IllegalMessage,
    MqError,
    NodeBusy,
    RefusedError,
)
from protocol.record.encode import ANY_QUEUE

UNDER_WAY_MAX = 2
"""Requests of waiting sends without an answer; what comes meanwhile goes together."""
SEND_RECORDS_MAX = 1_000
SEND_BYTES_MAX = 256_000
"""Of one request; a single message may be larger."""
LONE_FAULTS = IllegalMessage, BadRequest
"""Refusals that one message of several may have brought about: itself, or the queue it names."""
HELD_S_MAX = 0.05
"""A message waits for no other request any longer."""

Done = Callable[[Receipt | MqError], None]
"""Learns the outcome, once, on any thread; the `slot` of an entry."""


_Kind = tuple[str | None, float]
"""What messages of one request have in common: the field `wait`, and the timeout in seconds. A
plain tuple: one is made for each message."""


class _KindGroup:
    """Messages of one kind that have not gone yet, oldest first, and the requests under way."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[EncodedMessage, float]] = deque()
        self.under_way = 0
        self.has_timer = False

    def take(self) -> tuple[list[EncodedMessage], float]:
        """What goes as one request, and its deadline: that of the oldest."""
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

    def __init__(self, io: IoThread, direct: ChannelPool) -> None:
        self._io = io
        self._direct = direct
        self._arrived: deque[tuple[_Kind, EncodedMessage, float]] = deque()
        self._told = False
        self._groups: dict[_Kind, _KindGroup] = {}

    def send(self, entry: EncodedMessage, wait: str | None, timeout: float) -> None:
        """Sends an entry whose slot is a Done; its queue is given, or the node chooses one."""
        if len(self._arrived) >= CALLS_MAX:
            entry.slot(NodeBusy(f"{CALLS_MAX} messages wait to be sent", "send in batches"))
            return
        self._arrived.append(((wait, timeout), entry, monotonic() + timeout))
        if not self._told:
            # Whoever finds it set has appended before `_collect` looks.
            self._told = True
            if not self._io.post(self._collect):
                self._refuse_all()

    def send_here(self, entry: EncodedMessage, wait: str | None, timeout: float) -> None:
        """As `send`, for who waits: on its own thread when no other goes by the I/O thread."""
        if get_ident() == self._io.ident:
            raise no_waiting_here()
        if not self._groups and not self._arrived:
            part = lone_part(entry)
            call = _call(part, wait, monotonic() + timeout, partial(_deliver, part))
            if self._direct.carry(call):
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

        So a request that gets no answer delays no other message, and each keeps its deadline.
        """
        while group.waiting:
            left_s = group.waiting[0][1] - kind[1] + HELD_S_MAX - monotonic()
            if group.under_way >= UNDER_WAY_MAX and left_s > 0:
                self._push_later(kind, group, left_s)
                return
            entries, deadline = group.take()
            self._submit(kind, group, entries, deadline)
        if not group.under_way and self._groups.get(kind) is group:
            del self._groups[kind]

    def _push_later(self, kind: _Kind, group: _KindGroup, left_s: float) -> None:
        def push() -> None:
            group.has_timer = False
            self._push(kind, group)

        if not group.has_timer:
            group.has_timer = True
            self._io.at(monotonic() + left_s, push)

    def _submit(
        self, kind: _Kind, group: _KindGroup, entries: Sequence[EncodedMessage], deadline: float
    ) -> None:
        for part in _parts(entries):
            group.under_way += 1
            done = partial(self._answered, kind, group, part, deadline)
            self._io.start(_call(part, kind[0], deadline, done))

    def _answered(
        self, kind: _Kind, group: _KindGroup, part: RequestPart, deadline: float, outcome: Outcome
    ) -> None:
        group.under_way -= 1
        if isinstance(outcome, RefusedError):
            groups = smaller(part.entries, outcome, LONE_FAULTS)
            for entries in groups:
                self._submit(kind, group, entries, deadline)
            if groups:
                return
        _deliver(part, outcome)
        self._push(kind, group)


def _call(
    part: RequestPart, wait: str | None, deadline: float, done: Callable[[Outcome], None]
) -> Call:
    return Call(
        NodeRole.WRITER, "append", part.fields(wait), deadline,
        payload=part.records, repeatable=False, done=done,
    )  # fmt: skip


def _deliver(part: RequestPart, outcome: Outcome) -> None:
    results = outcome if isinstance(outcome, MqError) else read_receipts(part, outcome)
    if isinstance(results, MqError):
        for entry in part.entries:
            entry.slot(results)
    else:
        for entry, receipt in zip(part.entries, results, strict=True):
            entry.slot(receipt)


def _parts(entries: Sequence[EncodedMessage]) -> list[RequestPart]:
    """One request for each topic whose queue the node shall choose, one for all other entries."""
    by_topic: dict[str | None, list[EncodedMessage]] = {}
    for entry in entries:
        topic = entry.topic if entry.queue_id == ANY_QUEUE else None
        by_topic.setdefault(topic, []).append(entry)
    parts = []
    for topic, group in by_topic.items():
        records = [entry.record for entry in group]
        queue = None if topic is None else ANY_QUEUE
        queue_ids = [entry.queue_id for entry in group]
        parts.append(
            RequestPart(group, queue_ids, b"".join(records), list(map(len, records)), queue)
        )
    return parts
