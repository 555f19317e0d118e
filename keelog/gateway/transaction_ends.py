"""37: a producer ends a transaction: its message is delivered, or nothing is.

The message is stored first, then the op message that resolves the half message. The rules and
their order are those of RocketMQ's EndTransactionProcessor.

Op messages have the offsets of half messages whose transactions have ended, gathered for a while
(`OpLog`; RocketMQ: TransactionalOpBatchService, TransactionalMessageServiceImpl#getOpMessage). A
gateway that is killed before it has written an end asks the producer again.

A gateway remembers transactions (`Chains`), so that none is committed twice while it lives. A half
message that is asked for is stored again, and its producer may end the older copy, the newer one,
or both: the first end counts. A gateway that is killed forgets this, as a broker does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from keelog.client.results import Receipt
from keelog.gateway.connection import Reply, Request, system_error
from keelog.gateway.guard import check_found
from keelog.gateway.sending import half as halves
from keelog.gateway.sending.sends import WAITING_BYTES_MAX
from keelog.gateway.sending.stored_properties import DelayRules, real_place_of
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.topics import Topics
from node.runtime.event_log import Seldom, fields
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from protocol import errors, ids, names
from protocol.record import encode
from protocol.record.codec import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Record
from protocol.record.properties import decode_raw_properties
from protocol.record.waiting import RealPlace
from protocol.remoting import codes, header_fields
from protocol.request_fields import WAIT_NONE

log = logging.getLogger("keelog.gateway")

REMEMBERED_MAX = 200_000
"""Ends, and half messages that were stored again; the oldest are forgotten."""

OFFSETS_MAX = 200_000
"""Ends that are not written; further ones are refused as busy."""
RETRY_S = 1.0
STOP_S = 2.0
_LOOK_S = 0.01


@dataclass(eq=False)
class Ends:
    """One for each gateway. `_look_up` returns the record at a log offset."""

    _link: WriterLink
    _topics: Topics
    _look_up: Callable[[int], Record]
    _settings: Settings
    _delays: DelayRules

    def __post_init__(self) -> None:
        self.chains = Chains()
        self.ops = OpLog(self._link, self._settings)

    def take(self, request: Request, wanted: header_fields.EndTransactionHeader) -> Reply | None:
        """37. Replies at once, or when the message is stored. Raises NodeBusy, StoreDamaged."""
        outcome = wanted.commit_or_rollback
        if outcome not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return Reply()  # the producer does not know yet
        try:
            half = self._look_up(wanted.commit_log_offset)
        except errors.NotFound:
            return system_error("Find prepared transaction message failed")
        check_found(request, half)
        refused = self._checked(half, wanted)
        if refused is not None:
            return refused
        self.ops.check_room()
        if self._link.waiting_bytes > WAITING_BYTES_MAX:
            raise errors.NodeBusy(f"{self._link.waiting_bytes} bytes wait for the writer")
        first = self.chains.first_of(half)
        if not self.chains.begin_end(first):
            return Reply()
        if outcome == TRANSACTION_ROLLBACK:
            self.finish(half, first)
            return Reply()
        try:
            self._deliver(request, half, first)
        except errors.MqError as error:
            self.chains.end(first, is_done=False)
            return system_error(error.reason)
        return None

    def _checked(self, half: Record, wanted: header_fields.EndTransactionHeader) -> Reply | None:
        """The refusal of an end that does not fit its half message."""
        if half.topic != names.HALF_TOPIC:
            return system_error("Find prepared transaction message failed")
        if not wanted.from_transaction_check:
            timeout_ms = self._settings.transaction_time_out
            immune = halves.immunity_ms(half, timeout_ms)
            age = now_ms() - half.head.born_timestamp
            if immune is not None and age > max(immune, timeout_ms):
                return Reply(codes.ResponseCode.ILLEGAL_OPERATION)
        if half.properties.get(halves.PRODUCER_GROUP) != wanted.producer_group:
            return system_error("The producer group wrong")
        if half.head.queue_offset != wanted.tran_state_table_offset:
            return system_error("The transaction state table offset wrong")
        if half.physical_offset != wanted.commit_log_offset:
            return system_error("The commit log offset wrong")
        return None

    def _deliver(self, request: Request, half: Record, first: halves.HalfPlace) -> None:
        """Raises NotFound, IllegalMessage and its kinds."""
        place = real_place_of(decode_raw_properties(half.properties_raw))
        if place is None:
            raise errors.NotFound("the half message names no topic and queue")
        place = self._fitting(place)
        properties = halves.committed_properties(half)
        properties, place, _ = self._delays.delayed(properties, place, now_ms())
        record = halves.committed(half, place, properties, self._link.crc)

        def done(outcome: Receipt | errors.MqError) -> None:
            if not isinstance(outcome, errors.MqError):
                self.finish(half, first)
                request.answer(Reply())
                return
            # Or nobody knows: the producer is asked later.
            self.chains.end(first, is_done=False)
            log.warning("a transaction was not committed", extra=fields(why=outcome))
            request.answer(system_error(outcome.reason))

        self._link.put(record, place, half.unique_key, done, WAIT_NONE, is_inner=True)

    def _fitting(self, place: RealPlace) -> RealPlace:
        """Any queue where the topic has fewer than it had."""
        topic = self._topics.find(place.topic)
        queues = 0 if topic is None else max(topic.read_queues, topic.write_queues)
        return place if place.queue_id < queues else place._replace(queue_id=encode.ANY_QUEUE)

    def finish(self, half: Record, first: halves.HalfPlace) -> None:
        """A transaction has ended: this half message, and the newest one, are resolved."""
        self.chains.end(first, is_done=True)
        places = [halves.place_of(half)]
        newest = first._replace(offset=self.chains.newest_of(first))
        if newest.offset > places[0].offset:
            places.append(newest)
        self.ops.note(places, ids.Host(half.head.store_ip, half.head.store_port))


class Chains:
    """All transactions, each by the place of its first half message."""

    def __init__(self) -> None:
        self._firsts: dict[halves.HalfPlace, halves.HalfPlace] = {}
        """Of a half message that was stored again: the first of its transaction."""
        self._newest: dict[halves.HalfPlace, int] = {}
        """By first half message: the offset of the newest."""
        self.ended: dict[halves.HalfPlace, None] = {}
        self.ending: set[halves.HalfPlace] = set()

    def first_of(self, half: Record) -> halves.HalfPlace:
        """The first half message of a transaction."""
        place = halves.place_of(half)
        offset = halves.number_in(half, halves.FIRST_OFFSET)
        return self._firsts.get(place, place if offset is None else place._replace(offset=offset))

    def newest_of(self, first: halves.HalfPlace) -> int:
        """The offset of the newest half message of a transaction."""
        return self._newest.get(first, first.offset)

    def stored_again(self, half: Record, offset: int) -> None:
        """A half message was stored again, at an offset of the same queue."""
        first = self.first_of(half)
        _remember(self._firsts, first._replace(offset=offset), first)
        _remember(self._newest, first, offset)

    def begin_end(self, first: halves.HalfPlace) -> bool:
        """False for a transaction that has ended, or ends right now."""
        if first in self.ended or first in self.ending:
            return False
        self.ending.add(first)
        return True

    def end(self, first: halves.HalfPlace, *, is_done: bool) -> None:
        """The end that has begun is done, or has failed."""
        self.ending.discard(first)
        if is_done:
            _remember(self.ended, first, None)


def _remember(table: dict[halves.HalfPlace, Any], key: halves.HalfPlace, value: Any) -> None:
    table.pop(key, None)
    if len(table) >= REMEMBERED_MAX:
        del table[next(iter(table))]
    table[key] = value


class OpLog:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, link: WriterLink, settings: Settings) -> None:
        self._link = link
        self._interval_s = settings.transaction_op_batch_interval / 1000
        self._bytes_max = settings.transaction_op_msg_max_size
        self._waiting: dict[int, deque[int]] = {}
        self._bytes = 0
        self._host = ids.Host(bytes(4), 0)
        self._timer: asyncio.TimerHandle | None = None
        self._said = Seldom(RETRY_S)
        self.under_way = 0
        """Offsets that the writer has not confirmed."""

    def __len__(self) -> int:
        """Ends that are not written."""
        return self.under_way + sum(map(len, self._waiting.values()))

    def check_room(self) -> None:
        """Raises NodeBusy."""
        if len(self) >= OFFSETS_MAX:
            raise errors.NodeBusy(f"{OFFSETS_MAX} ends of transactions wait for the writer")

    def note(self, places: Iterable[halves.HalfPlace], host: ids.Host) -> None:
        """The transaction of these half messages has ended. `host` is this broker's."""
        self._host = host
        for queue_id, offset in places:
            self._waiting.setdefault(queue_id, deque()).append(offset)
            self._bytes += len(str(offset)) + 1
        if self._bytes >= self._bytes_max:
            self._write()
        else:
            self._wake(self._interval_s)

    def _put_back(self, queue_id: int, offsets: list[int], error: errors.MqError) -> None:
        """They could not be written: they are tried again, and before the others."""
        self._waiting.setdefault(queue_id, deque()).extendleft(reversed(offsets))
        self._bytes += sum(len(str(offset)) + 1 for offset in offsets)
        if self._said.is_due("", monotonic()):
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
        some: list[int] = []
        size = 0
        while offsets and size < self._bytes_max:
            size += len(str(offsets[0])) + 1
            some.append(offsets.popleft())
        return some

    def _send(self, queue_id: int, some: list[int]) -> None:
        self.under_way += len(some)
        record = halves.ended(queue_id, some, now_ms(), self._host, self._link.crc)

        def done(outcome: Receipt | errors.MqError) -> None:
            self.under_way -= len(some)
            if isinstance(outcome, errors.MqError):
                self._put_back(queue_id, some, outcome)  # written twice they do no harm

        place = RealPlace(names.OP_TOPIC, queue_id)
        self._link.put(record, place, "", done, WAIT_NONE, is_inner=True)

    async def close(self) -> None:
        """Writes what waits, for STOP_S at most."""
        until = monotonic() + STOP_S
        self._write()
        while len(self) and monotonic() < until:
            await asyncio.sleep(_LOOK_S)
        if self._timer is not None:
            self._timer.cancel()
