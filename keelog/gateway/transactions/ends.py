"""37: a producer ends a transaction: its message is delivered, or nothing is.

The message is stored first, then the op message that resolves the half message. The rules and
their order are those of RocketMQ's EndTransactionProcessor.
"""

import logging
from collections.abc import Callable

from keelog.client.results import Receipt
from keelog.client.send.record_batch import EncodedMessage
from keelog.gateway.connection import Reply, Request
from keelog.gateway.sending.delayed import DelayRules, delay_level_of
from keelog.gateway.sending.half import (
    PRODUCER_GROUP,
    HalfPlace,
    committed,
    committed_properties,
    immunity_ms,
    place_of,
    real_place,
)
from keelog.gateway.sending.sends import WAITING_BYTES_MAX
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.topics import Topics
from keelog.gateway.transactions.chains import Chains
from keelog.gateway.transactions.op_log import OpLog
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from protocol.errors import MqError, NodeBusy, NotFound
from protocol.ids import Host
from protocol.names import HALF_TOPIC
from protocol.record.codec import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, Record
from protocol.record.encode import ANY_QUEUE
from protocol.record.waiting import TIMER_PLACE, RealPlace, schedule_place, scheduled, timed
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import EndTransactionHeader, request_fields
from protocol.request_fields import WAIT_NONE

log = logging.getLogger("keelog.gateway")


class _Commit:
    """A commit, until its message is stored."""

    __slots__ = ("_ends", "_first", "_half", "_request")

    def __init__(self, ends: "Ends", request: Request, half: Record, first: HalfPlace) -> None:
        self._ends, self._request, self._half, self._first = ends, request, half, first

    def stored(self, _: Receipt) -> None:
        """The message is there."""
        self._ends.finish(self._half, self._first)
        self._request.answer(Reply())

    def refused(self, error: MqError) -> None:
        """It is not, or nobody knows: the producer is asked later."""
        self._ends.chains.end(self._first, is_done=False)
        log.warning("a transaction was not committed", extra=fields(why=error))
        self._request.answer(Reply(ResponseCode.SYSTEM_ERROR, remark=error.reason))


class Ends:
    """One for each gateway. `look_up` returns the record at a log offset."""

    def __init__(
        self,
        link: WriterLink,
        topics: Topics,
        look_up: Callable[[int], Record],
        settings: Settings,
        delays: DelayRules,
    ) -> None:
        self.chains = Chains()
        self.ops = OpLog(link, settings)
        self._link = link
        self._topics = topics
        self._look_up = look_up
        self._timeout_ms = settings.transaction_time_out
        self._delays = delays

    def take(self, request: Request) -> Reply | None:
        """37. Replies at once, or when the message is stored. Raises NodeBusy, StoreDamaged."""
        wanted: EndTransactionHeader = request_fields(request.header)
        outcome = wanted.commit_or_rollback
        if outcome not in (TRANSACTION_COMMIT, TRANSACTION_ROLLBACK):
            return Reply()  # the producer does not know yet
        try:
            half = self._look_up(wanted.commit_log_offset)
        except NotFound:
            return _refusal("Find prepared transaction message failed")
        refused = self._checked(half, wanted)
        if refused is not None:
            return refused
        self.ops.check_room()
        if self._link.waiting_bytes > WAITING_BYTES_MAX:
            raise NodeBusy(f"{self._link.waiting_bytes} bytes wait for the writer")
        first = self.chains.first_of(half)
        if not self.chains.begin_end(first):
            return Reply()
        if outcome == TRANSACTION_ROLLBACK:
            self.finish(half, first)
            return Reply()
        try:
            self._deliver(request, half, first)
        except MqError as error:
            self.chains.end(first, is_done=False)
            return _refusal(error.reason)
        return None

    def _checked(self, half: Record, wanted: EndTransactionHeader) -> Reply | None:
        """The refusal of an end that does not fit its half message."""
        properties = half.properties
        if half.topic != HALF_TOPIC:
            return _refusal("Find prepared transaction message failed")
        if not wanted.from_transaction_check:
            immune = immunity_ms(half, self._timeout_ms)
            age = now_ms() - half.head.born_timestamp
            if immune is not None and age > max(immune, self._timeout_ms):
                return Reply(ResponseCode.ILLEGAL_OPERATION)
        if properties.get(PRODUCER_GROUP) != wanted.producer_group:
            return _refusal("The producer group wrong")
        if half.head.queue_offset != wanted.tran_state_table_offset:
            return _refusal("The transaction state table offset wrong")
        if half.physical_offset != wanted.commit_log_offset:
            return _refusal("The commit log offset wrong")
        return None

    def _deliver(self, request: Request, half: Record, first: HalfPlace) -> None:
        """Raises NotFound, IllegalMessage and its kinds."""
        place = real_place(half)
        if place is None:
            raise NotFound("the half message names no topic and queue")
        place = self._fitting(place)
        properties = committed_properties(half)
        level = delay_level_of(properties, self._delays.level_max)
        if level:
            properties, place = scheduled(properties, place, level), schedule_place(level)
        elif later := timed(properties, place, now_ms(), self._delays.timer_ms_max):
            properties, place = later.properties, TIMER_PLACE
        record = committed(half, place, properties, self._link.crc)
        slot = _Commit(self, request, half, first)
        entry = EncodedMessage(record, *place, None, half.unique_key, slot)
        self._link.put(entry, WAIT_NONE, is_inner=True)

    def _fitting(self, place: RealPlace) -> RealPlace:
        """Any queue where the topic has fewer than it had."""
        topic = self._topics.find(place.topic)
        queues = 0 if topic is None else max(topic.read_queues, topic.write_queues)
        return place if place.queue_id < queues else place._replace(queue_id=ANY_QUEUE)

    def finish(self, half: Record, first: HalfPlace) -> None:
        """A transaction has ended: this half message, and the newest one, are resolved."""
        self.chains.end(first, is_done=True)
        places = [place_of(half)]
        newest = first._replace(offset=self.chains.newest_of(first))
        if newest.offset > places[0].offset:
            places.append(newest)
        self.ops.note(places, Host(half.head.store_ip, half.head.store_port))

    async def close(self) -> None:
        """Writes the ends that wait."""
        await self.ops.close()


def _refusal(why: str) -> Reply:
    return Reply(ResponseCode.SYSTEM_ERROR, remark=why)
