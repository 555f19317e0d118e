"""Records on their way to the writer: those of one turn of the loop go as one request.

They go by the client's own way (`client.send.record_batch`), so that the writer has one way to
append. Used by the gateway and by the process that delivers delayed messages.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from keelog.client.core import ClientCore
from keelog.client.event_loop import AsyncioChannel
from keelog.client.results import Receipt
from keelog.client.send import record_batch
from keelog.client.send.record_batch import BatchReceipt, EncodedColumns, EncodedMessage
from keelog.client.send.sender import SEND_BYTES_MAX, SEND_RECORDS_MAX, UNDER_WAY_MAX
from keelog.gateway.connection import Gathering
from node.runtime.run_files import find_right
from node.runtime.settings import Settings
from protocol.errors import MqError
from protocol.record.waiting import RealPlace

if TYPE_CHECKING:
    from keelog.gateway.loop import AwakeSelector

BATCH_BYTES_UNDER_WAY_MAX = 2 * 1024 * 1024
"""Of batches that the writer has: single records queue after them. These share their next request
while they wait, so few requests of them are under way; batches share none."""
TIMEOUT_S = 10.0
"""How long the writer may take: clients give up after 3 s, and then ask again."""


RecordDone = Callable[[Receipt | MqError], object]
"""Takes the receipt of a record, or why it was not stored, or that nobody knows."""


class FutureSlot:
    """A slot whose outcome somebody awaits."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Receipt | MqError] = asyncio.get_running_loop().create_future()

    def __call__(self, outcome: Receipt | MqError) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


BatchDone = Callable[[BatchReceipt | MqError], None]


_Kind = tuple[str | None, bool, bool]
"""Records of one kind share a request: how long they wait, whether they are for the system's
topics, and whether the node stores each unique key once."""


class WriterLink:
    """The way to the writer, in the thread of the loop. `run_dir` has the right of the node."""

    def __init__(
        self, core: ClientCore, run_dir: Path, settings: Settings, gathering: Gathering
    ) -> None:
        self._core = core
        self._gathering = gathering
        self._run_dir = run_dir
        self._right = ""
        # As the writer, which has the same settings; the routes would say so too, but later.
        self.crc = settings.enabled_append_prop_crc
        self.body_bytes_max = settings.max_message_size
        self._loop = asyncio.get_running_loop()
        self._link = AsyncioChannel(core.io, self._loop, self)
        core.adopt(self._link)
        self._waiting: dict[_Kind, deque[EncodedMessage]] = {}
        self._batches: deque[tuple[EncodedColumns, BatchDone, bool]] = deque()
        self._batch_bytes_under_way = 0
        self.waiting_bytes = 0
        """Of all records that have no outcome yet."""
        self._under_way = 0
        self._is_due = False
        self._taking = 0
        """How deep what the writer says is being taken: no look for more of it then."""
        self.selector: AwakeSelector | None = None
        """Of a loop whose clients may wait for each reply; its owner sets it."""
        self.on_request: Callable[[], object] = lambda: None
        self.on_outcome: Callable[[], object] = lambda: None
        """Called when a request goes, and when one has its outcome; its owner sets both."""
        self._waits_long = settings.is_sync_flush or settings.waits_for_followers

    @property
    def is_answered_soon(self) -> bool:
        """Whether an answer of the writer comes with the news of the next records: one is due, and
        waits for no disk and no follower."""
        is_due = self._under_way or self._batch_bytes_under_way
        return bool(is_due) and not self._waits_long

    def __enter__(self) -> None:
        """Around what the writer says of requests: what follows of it goes together."""
        self._taking += 1
        self._gathering.__enter__()

    def __exit__(self, *raised: Any) -> None:
        try:
            self._gathering.__exit__(*raised)
        finally:
            self._taking -= 1

    def put(
        self,
        record: bytes,
        place: RealPlace,
        key: str,
        done: RecordDone,
        wait: str | None = None,
        is_inner: bool = False,
        once: bool = False,
    ) -> None:
        """Takes a record, which goes at the end of the turn. `key` is its unique key."""
        entry = EncodedMessage(record, *place, None, key, done)
        self._waiting.setdefault((wait, is_inner, once), deque()).append(entry)
        self.waiting_bytes += len(record)
        if not self._is_due:
            self._is_due = True
            self._gathering.at_end(self._go)

    def put_batch(self, columns: EncodedColumns, done: BatchDone, once: bool) -> None:
        """Takes records of one queue, which are stored together or not at all. It shares no
        request, so it goes at once: the writer stores it while the next one is made."""
        self._batches.append((columns, done, once))
        self.waiting_bytes += len(columns.encoded.records)
        self._send_batches()

    def _send_batches(self) -> None:
        while self._batches and self._batch_bytes_under_way < BATCH_BYTES_UNDER_WAY_MAX:
            self._send_batch(*self._batches.popleft())

    def _go(self) -> None:
        """Sends what waits, unless enough is under way: the next answer does it then."""
        while self._waiting and self._under_way < UNDER_WAY_MAX:
            self._under_way += 1
            kind, waiting = next(iter(self._waiting.items()))
            entries = _next_request(waiting)
            if not waiting:
                del self._waiting[kind]
            self._send(entries, *kind)
        self._is_due = bool(self._waiting)

    def _in_loop(self, take: Callable[..., None], *found: Any) -> None:
        if self._link.is_here():
            take(*found)
            return
        with suppress(RuntimeError):  # the loop is closed: so are all connections
            self._loop.call_soon_threadsafe(take, *found)

    def _send_batch(self, columns: EncodedColumns, done: BatchDone, once: bool) -> None:
        size = len(columns.encoded.records)

        def take(found: BatchReceipt | MqError) -> None:
            self.waiting_bytes -= size
            self._batch_bytes_under_way -= size
            done(found)
            self._send_batches()
            self.on_outcome()

        self._batch_bytes_under_way += size
        deadline = monotonic() + TIMEOUT_S
        taken = partial(self._in_loop, take)
        self._carry(record_batch.ColumnBatch(None, deadline, columns, taken, once=once))

    def _carry(self, batch: record_batch.RecordBatch) -> None:
        self.on_request()
        sender = self._core.sender
        if not sender.carry(batch, self._link.carry):
            sender.send(batch)

    def _send(
        self, entries: list[EncodedMessage], wait: str | None, is_inner: bool, once: bool
    ) -> None:
        left = len(entries)
        is_lone = left == 1 and self._under_way == 1 and not self._batch_bytes_under_way

        def take(some: Sequence[EncodedMessage], results: record_batch.Results) -> None:
            nonlocal left
            left -= len(some)
            for row, entry in enumerate(some):
                self.waiting_bytes -= len(entry.record)
                entry.slot(results if isinstance(results, MqError) else results[row])
            if not left:
                self._under_way -= 1
                self._go()
                self.on_outcome()
                if is_lone and self.selector is not None and not self._under_way:
                    self.selector.look_once()

        deadline = monotonic() + TIMEOUT_S
        right = self.own_right() if is_inner else None
        deliver = partial(self._in_loop, take)
        lasting = wait, deadline, deliver, True
        self._carry(record_batch.EntryBatch(*lasting, entries, right=right, once=once))
        awake = self.selector is not None and self.selector.is_awake
        if is_lone and awake and not self._waiting and not self._taking:
            self._link.look_awake()

    def own_right(self) -> str:
        """The right by which the node's own processes write what is the system's."""
        if not self._right:
            self._right = find_right(self._run_dir)
        return self._right

    def close(self) -> None:
        """Ends it. Records without an outcome fail."""
        self._core.drop(self._link)


def _next_request(waiting: deque[EncodedMessage]) -> list[EncodedMessage]:
    """Takes out what goes as one request: at least one."""
    entries = [waiting.popleft()]
    size = len(entries[0].record)
    while waiting and len(entries) < SEND_RECORDS_MAX:
        size += len(waiting[0].record)
        if size > SEND_BYTES_MAX:
            break
        entries.append(waiting.popleft())
    return entries
