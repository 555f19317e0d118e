"""Asks producers for transactions that are open for long (39), round after round.

RocketMQ: TransactionalMessageServiceImpl#check. A round goes through the half messages from where
the last one ended. One that is resolved, as the op messages say (`OpView`), is passed. One that is
not is stored again, at the end of the queue, and its producer is asked; then it is passed as well.
So the place of a round, an offset of the group CID_RMQ_SYS_TRANS, is all that a restart needs, here
as at a broker.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from time import monotonic

from keelog.client import operations
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.client.results import Receipt
from keelog.gateway import system_queue, topics, transaction_ends
from keelog.gateway.connection import RemotingConnection
from keelog.gateway.sending import half as halves
from keelog.gateway.sending.writer_link import FutureSlot, WriterLink
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from node.runtime.stored_times import Arrivals, ClockSet, Moment, moment
from protocol import errors, names
from protocol.access.needs import topic_that_counts
from protocol.record.codec import Record
from protocol.record.waiting import RealPlace
from protocol.remoting import codes, headers, java_json
from protocol.request_fields import WAIT_NONE

log = logging.getLogger("keelog.gateway")

OPS_MAX = 200_000
"""Op messages that a round reads; if there are more, a transaction may be asked for in vain."""
RESOLVED_MAX = 1_000_000
"""Offsets from a round's begin on: it ends after them, and knows which of them are resolved."""
ROUND_S_MAX = 60.0
"""A round that takes longer goes on as the next one."""
PUTS_AT_ONCE = 100
"""Half messages that are stored again together."""
PASS_AT_ONCE = 10_000
"""Resolved half messages that are passed without a pause for clients."""
REQUEST_S = 10.0
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class OpView:
    """The ends from the op queue's `offset` on, for half messages from `first` on."""

    queue_id: int
    offset: int
    first: int
    resolved: set[int] = field(default_factory=set)
    earlier: set[int] = field(default_factory=set)
    """Half messages before `first`: newer copies of them may be open."""
    _ops: list[tuple[int, int, int]] = field(default_factory=list)
    """Of each op message: its offset, its place in the log, and the last half message that it
    resolves."""

    @property
    def limit(self) -> int:
        """The offset at which the round ends."""
        return self.first + RESOLVED_MAX

    async def read(self, core: ClientCore) -> None:
        """Reads the queue to its end. Raises what a reader refuses."""
        following = self.offset
        while len(self._ops) < OPS_MAX:
            page = await system_queue.read_page(core, names.OP_TOPIC, self.queue_id, following)
            if page.is_end:
                return
            if not self._ops:
                # Retention took what was there before.
                self.offset = page.records[0].head.queue_offset if page.records else following
            for record in page.records:
                self._take(record)
            following = page.next_offset
            if not self._ops:
                self.offset = following

    def _take(self, record: Record) -> None:
        offsets = halves.ended_offsets(record)
        for offset in offsets:
            if self.first <= offset < self.limit:
                self.resolved.add(offset)
            elif offset < self.first and len(self.earlier) < RESOLVED_MAX:
                self.earlier.add(offset)
        head = record.head
        self._ops.append((head.queue_offset, head.physical_offset, max(offsets, default=-1)))

    def done_offset(self, half_offset: int, half_physical: int | None) -> int:
        """The offset of the first op message that the next round needs, which begins at a half
        message; `half_physical`: its place in the log, None at the end of the queue.

        A newer copy of a half message may refer to it: an op message counts until all half
        messages before it are passed.
        """
        done = self.offset
        for offset, physical, last in self._ops:
            is_passed = half_physical is None or physical < half_physical
            if last >= half_offset or not is_passed:
                break
            done = offset + 1
        return done


class HalfVerdict(Enum):
    """The fate of a half message that no op message resolves."""

    STOP = auto()
    """The round ends before it."""
    PASS = auto()
    ASK = auto()
    IMMUNE = auto()
    """It is stored again, and nobody is asked."""
    GIVE_UP = auto()


def judge(half: Record, settings: Settings, age_ms: int, is_fresh: bool) -> HalfVerdict:
    """What a round does with an open half message that was born `age_ms` ago. Pure. `is_fresh`: it
    was stored after the round began."""
    times, timeout_ms = halves.number_in(half, halves.CHECK_TIMES), settings.transaction_time_out
    is_worn = (times or 0) >= settings.transaction_check_max
    if is_worn or age_ms > settings.file_reserved_time * _HOUR_MS:
        return HalfVerdict.GIVE_UP
    if is_fresh:
        return HalfVerdict.STOP
    immune = halves.immunity_ms(half, timeout_ms)
    if immune is None:
        return HalfVerdict.STOP if age_ms <= timeout_ms else HalfVerdict.ASK
    return HalfVerdict.IMMUNE if age_ms <= immune else HalfVerdict.ASK


@dataclass(eq=False)
class Checks:
    """One for each gateway. `_producer` finds a connection of a group of producers, to which
    messages of a topic may be shown; `_clock_sets` returns how the clock was set until then, as far
    as anybody knows."""

    _core: ClientCore
    _link: WriterLink
    _topics: topics.Topics
    _ends: transaction_ends.Ends
    _producer: Callable[[str, str], RemotingConnection | None]
    _broker: str
    _settings: Settings
    _clock_sets: Callable[[Moment], Sequence[ClockSet]]
    asked: int = 0
    """Questions that were sent."""
    open: int = 0
    """Half messages that the last round left open."""
    _left_open: int = 0
    """By the round that is under way."""
    _opaque: int = 0

    def __post_init__(self) -> None:
        self._arrivals: defaultdict[int, Arrivals] = defaultdict(self._new_arrivals)
        """By queue: when half messages came, by their first copies."""

    def _new_arrivals(self) -> Arrivals:
        began = moment()
        age_ms_max = self._settings.file_reserved_time * _HOUR_MS
        return Arrivals(age_ms_max, began, self._clock_sets(began))

    async def run(self) -> None:
        """Checks until it is cancelled."""
        while True:
            await asyncio.sleep(self._settings.transaction_check_interval / 1000)
            try:
                topic = self._topics.find(names.HALF_TOPIC)
                self._left_open = 0
                for queue_id in range(topic.read_queues if topic else 0):
                    await self._round(queue_id)
                self.open = self._left_open
            except errors.MqError as error:
                log.warning("transactions were not checked", extra=fields(why=error))

    async def _round(self, queue_id: int) -> None:
        until = monotonic() + ROUND_S_MAX
        first = await self._place(names.HALF_TOPIC, queue_id)
        ops = OpView(queue_id, await self._place(names.OP_TOPIC, queue_id), first)
        before = ops.offset
        if self._topics.find(names.OP_TOPIC) is not None:
            await ops.read(self._core)
        offset, physical = await self._walk(ops, until)
        if offset != first:
            await self._note(names.HALF_TOPIC, queue_id, offset)
        done = ops.done_offset(offset, physical)
        if done != before:
            await self._note(names.OP_TOPIC, queue_id, done)

    async def _place(self, topic: str, queue_id: int) -> int:
        asked = operations.cursor_places(topic, names.TRANSACTIONS_GROUP, monotonic() + REQUEST_S)
        return (await run(self._core, asked)).get(queue_id, 0)

    async def _note(self, topic: str, queue_id: int, offset: int) -> None:
        places, deadline = {queue_id: offset}, monotonic() + REQUEST_S
        right, group = self._link.own_right(), names.TRANSACTIONS_GROUP
        asked = operations.commit_cursor(topic, group, places, deadline, right=right)
        await run(self._core, asked)

    async def _walk(self, ops: OpView, until: float) -> tuple[int, int | None]:
        """Goes through half messages; returns the offset before which all are passed, and where
        the message there is in the log. None: at the end of the queue."""
        offset = ops.first
        end: int | None = None
        while True:
            offset = await self._passed(offset, ops)
            page = await system_queue.read_page(self._core, names.HALF_TOPIC, ops.queue_id, offset)
            if end is None:
                # What comes from now on, stored by this round too, is for the next one.
                end = page.max_offset
                self._arrivals[ops.queue_id].look(end, moment())
            if page.is_end:
                return offset, None
            if page.damage is not None:
                why = fields(queue=ops.queue_id, why=page.damage)
                log.error("a half message is damaged, its producer is not asked", extra=why)
            for at in range(0, len(page.records), PUTS_AT_ONCE):
                some = page.records[at : at + PUTS_AT_ONCE]
                stop: Record | None = some[0]
                if monotonic() < until and some[0].head.queue_offset < ops.limit:
                    stop = await self._deal_with(some, ops, end)
                if stop is not None:
                    is_fresh = stop.head.queue_offset >= end
                    return stop.head.queue_offset, None if is_fresh else stop.physical_offset
            offset = page.next_offset

    async def _passed(self, offset: int, ops: OpView) -> int:
        """The first offset from this one on that is not resolved."""
        begin = offset
        while offset in ops.resolved:
            offset += 1
            if (offset - begin) % PASS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return offset

    async def _deal_with(self, some: Sequence[Record], ops: OpView, end: int) -> Record | None:
        """Returns the half message before which the round ends; None where it goes on."""
        puts: list[tuple[Record, HalfVerdict, asyncio.Future[Receipt | errors.MqError]]] = []
        stop: Record | None = None
        now = moment()
        for half in some:
            verdict = self._verdict(half, ops, end, now)
            if verdict is HalfVerdict.STOP:
                stop = half
                break
            if verdict is not HalfVerdict.PASS:
                puts.append((half, verdict, self._put(half, verdict).done))
        failed: Record | None = None
        outcomes = await asyncio.gather(*(done for _, _, done in puts))
        for (half, verdict, _), outcome in zip(puts, outcomes, strict=True):
            if isinstance(outcome, errors.IllegalMessage):
                extra = fields(msg_id=half.message_id, why=outcome)
                log.error("a half message cannot be stored again", extra=extra)
            elif isinstance(outcome, errors.MqError):
                log.warning("transactions wait for the writer", extra=fields(why=outcome))
                failed = failed or half
            else:
                self._stored(half, verdict, outcome)
        return failed or stop

    def _verdict(self, half: Record, ops: OpView, end: int, now: Moment) -> HalfVerdict:
        offset, chains = half.head.queue_offset, self._ends.chains
        first = chains.first_of(half)
        before = halves.number_in(half, halves.FIRST_OFFSET)
        if offset in ops.resolved or first in chains.ended:
            return HalfVerdict.PASS
        if before is not None and (before in ops.resolved or before in ops.earlier):
            return HalfVerdict.PASS
        if chains.newest_of(first) > offset:
            return HalfVerdict.PASS  # it was stored again before the writer lost where a round was
        if first in chains.ending:
            return HalfVerdict.STOP
        arrivals, born_ms = self._arrivals[ops.queue_id], half.head.born_timestamp
        age_ms = arrivals.age_ms(first.offset, born_ms, now)
        return judge(half, self._settings, age_ms, offset >= end)

    def _put(self, half: Record, verdict: HalfVerdict) -> FutureSlot:
        crc, place = self._link.crc, RealPlace(names.HALF_TOPIC, half.head.queue_id)
        if verdict is HalfVerdict.ASK:
            record = halves.asked_again(half, crc)
        elif verdict is HalfVerdict.IMMUNE:
            record = halves.immune_again(half, crc)
        else:
            record, place = halves.undecided(half, crc), RealPlace(names.UNDECIDED_TOPIC, 0)
        slot = FutureSlot()
        self._link.put(record, place, half.unique_key, slot, WAIT_NONE, is_inner=True)
        return slot

    def _stored(self, half: Record, verdict: HalfVerdict, receipt: Receipt) -> None:
        """A half message was stored again, or moved where those are that nobody decided."""
        if verdict is HalfVerdict.GIVE_UP:
            extra = fields(msg_id=half.message_id, unique_key=half.unique_key)
            log.error("a transaction was given up", extra=extra)
            return
        self._left_open += 1
        self._ends.chains.stored_again(half, receipt.queue_offset)
        if verdict is HalfVerdict.ASK:
            self._ask(half, receipt)

    def _ask(self, half: Record, again: Receipt) -> None:
        """39: nobody waits for the answer, which is an end of the transaction (37)."""
        group = half.properties.get(halves.PRODUCER_GROUP, "")
        connection = self._producer(group, topic_that_counts(half.topic, half.properties_raw))
        if connection is None:
            log.warning("no producer can be asked", extra=fields(group=group))
            return
        ext, body = halves.question(half, again, self._broker)
        self._opaque = (self._opaque + 1) % java_json.INT32_MAX
        code = codes.RequestCode.CHECK_TRANSACTION_STATE
        connection.send(headers.RemotingHeader(code, self._opaque, headers.ONE_WAY, ext), body)
        self.asked += 1
