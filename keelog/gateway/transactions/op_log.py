"""Op messages: the offsets of half messages whose transactions have ended, gathered for a while.

RocketMQ: TransactionalOpBatchService, TransactionalMessageServiceImpl#getOpMessage. A gateway that
is killed before it has written an end asks the producer again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from time import monotonic

from keelog.client.results import Receipt
from keelog.client.send.record_batch import EncodedMessage
from keelog.gateway.sending.half import HalfPlace, ended
from keelog.gateway.sending.writer_link import WriterLink
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from protocol.errors import MqError, NodeBusy
from protocol.ids import Host
from protocol.names import OP_TOPIC
from protocol.request_fields import WAIT_NONE

log = logging.getLogger("keelog.gateway")

OFFSETS_MAX = 200_000
"""Ends that are not written; further ones are refused as busy."""
RETRY_S = 1.0
STOP_S = 2.0
_LOOK_S = 0.01


class _Written:
    """Some ends on their way to the writer."""

    __slots__ = ("_log", "_offsets", "_queue_id")

    def __init__(self, log_: "OpLog", queue_id: int, offsets: list[int]) -> None:
        self._log, self._queue_id, self._offsets = log_, queue_id, offsets

    def stored(self, _: Receipt) -> None:
        """They are in the log."""
        self._log.under_way -= len(self._offsets)

    def refused(self, error: MqError) -> None:
        """They are not, or nobody knows: written twice they do no harm."""
        self._log.under_way -= len(self._offsets)
        self._log.put_back(self._queue_id, self._offsets, error)


class OpLog:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, link: WriterLink, settings: Settings) -> None:
        self._link = link
        self._interval_s = settings.transaction_op_batch_interval / 1000
        self._bytes_max = settings.transaction_op_msg_max_size
        self._waiting: dict[int, deque[int]] = {}
        self._bytes = 0
        self._host = Host(bytes(4), 0)
        self._timer: asyncio.TimerHandle | None = None
        self._told_at = -RETRY_S
        self.under_way = 0
        """Offsets that the writer has not confirmed."""

    def __len__(self) -> int:
        """Ends that are not written."""
        return self.under_way + sum(map(len, self._waiting.values()))

    def check_room(self) -> None:
        """Raises NodeBusy."""
        if len(self) >= OFFSETS_MAX:
            raise NodeBusy(f"{OFFSETS_MAX} ends of transactions wait for the writer")

    def note(self, places: Iterable[HalfPlace], host: Host) -> None:
        """The transaction of these half messages has ended. `host` is this broker's."""
        self._host = host
        for queue_id, offset in places:
            self._waiting.setdefault(queue_id, deque()).append(offset)
            self._bytes += len(str(offset)) + 1
        if self._bytes >= self._bytes_max:
            self._write()
        else:
            self._wake(self._interval_s)

    def put_back(self, queue_id: int, offsets: list[int], error: MqError) -> None:
        """They could not be written: they are tried again, and before the others."""
        self._waiting.setdefault(queue_id, deque()).extendleft(reversed(offsets))
        self._bytes += sum(len(str(offset)) + 1 for offset in offsets)
        if monotonic() >= self._told_at + RETRY_S:
            self._told_at = monotonic()
            log.warning("ends of transactions wait for the writer", extra=fields(why=error))
        self._wake(RETRY_S)

    def _wake(self, after_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._write)

    def _write(self) -> None:
        """Sends what waits, in messages of the greatest size."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        for queue_id, offsets in waiting.items():
            while offsets:
                self._send(queue_id, self._taken(offsets))

    def _taken(self, offsets: deque[int]) -> list[int]:
        """Takes out what goes into one message."""
        some: list[int] = []
        size = 0
        while offsets and size < self._bytes_max:
            size += len(str(offsets[0])) + 1
            some.append(offsets.popleft())
        return some

    def _send(self, queue_id: int, some: list[int]) -> None:
        self.under_way += len(some)
        record = ended(queue_id, some, now_ms(), self._host, self._link.crc)
        slot = _Written(self, queue_id, some)
        entry = EncodedMessage(record, OP_TOPIC, queue_id, None, "", slot)
        self._link.put(entry, WAIT_NONE, is_inner=True)

    async def close(self) -> None:
        """Writes what waits, for STOP_S at most."""
        until = monotonic() + STOP_S
        self._write()
        while len(self) and monotonic() < until:
            await asyncio.sleep(_LOOK_S)
        if self._timer is not None:
            self._timer.cancel()
