"""Delivers the messages of one delay level, in order, each when it is due.

A message is read from the level's queue of the schedule topic, as any consumer would, and its copy
appended at its real place; only then the level moves on. So a crash repeats deliveries, and loses
none (RocketMQ: ScheduleMessageService).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from keelog.client.core import ClientCore
from keelog.gateway.sending.delayed import is_committed, own_properties, real_place_of
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.tasks.delay_offsets import DelayOffsets
from keelog.gateway.tasks.delivery import RETRY_S, Delivery, deliver_all
from keelog.gateway.tasks.waiting_queue import WaitingQueue
from node.runtime.event_log import fields
from node.runtime.stored_times import Arrivals, ClockSet, Moment, moment
from protocol.errors import MqError
from protocol.record.codec import Record
from protocol.record.properties import decode_raw_properties
from protocol.record.waiting import schedule_place

log = logging.getLogger("keelog.tasks")

LOOK_S_MAX = 5.0
"""Between two looks at where the queue ends: while the clock is odd, a delay is longer by that."""
ERROR_S = 10.0
"""Between two lines of the log about one trouble."""


class DelayLevel(NamedTuple):
    """A level, from 1 on, its delay, and how long a reader holds a pull of it."""

    level: int
    delay_ms: int
    wait_s: float


class _Waiting(NamedTuple):
    """A message, and when it is due, in ms of the steady clock."""

    record: Record
    due_ms: int


class DelayQueue:
    """The queue of one level. `now` returns this moment.

    A delay is counted by the steady clock from when its message came, as `Arrivals` knows it: a
    wall clock that is set, or was ahead when the message was stored, makes it neither shorter nor
    longer.
    """

    def __init__(
        self,
        level: DelayLevel,
        core: ClientCore,
        link: WriterLink,
        offsets: DelayOffsets,
        sets: Sequence[ClockSet] = (),
        now: Callable[[], Moment] = moment,
    ) -> None:
        self._level = level
        self._queue = WaitingQueue(core, schedule_place(level.level), level.wait_s)
        self._link = link
        self._offsets = offsets
        self._now = now
        self._arrivals = Arrivals(level.delay_ms, now(), sets)
        self.delivered = 0
        self._told_at = -ERROR_S

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        while True:
            try:
                waiting = await self._pull()
                while waiting:
                    await self._sleep_until(waiting[0].due_ms)
                    await self._deliver(self._due(waiting))
            except MqError as error:
                self._tell("delayed messages wait", error)
                await asyncio.sleep(RETRY_S)

    async def _pull(self) -> deque[_Waiting]:
        """The next messages, none after a while without one. Raises what a reader refuses."""
        level = self._level.level
        offset = self._offsets.get(level)
        found = await self._queue.pull(offset)
        if not found.records and found.next_offset != offset:
            self._offsets.note(level, found.next_offset)
        now = self._now()
        self._arrivals.look(max(found.max_offset, found.next_offset), now)
        return deque(_Waiting(record, self._due_ms(record, now)) for record in found.records)

    def _due_ms(self, record: Record, now: Moment) -> int:
        head = record.head
        age_ms = self._arrivals.age_ms(head.queue_offset, head.store_timestamp, now)
        return now.steady_ms + self._level.delay_ms - age_ms

    async def _sleep_until(self, due_ms: int) -> None:
        """Meanwhile it looks for messages that come, so that it knows when each of them came."""
        while (left_s := (due_ms - self._now().steady_ms) / 1000) > 0:
            await asyncio.sleep(min(left_s, LOOK_S_MAX))
            if left_s > LOOK_S_MAX:
                self._arrivals.look(await self._queue.end(), self._now())

    def _due(self, waiting: deque[_Waiting]) -> list[Record]:
        """Takes out those that are due."""
        found: list[Record] = []
        steady_ms = self._now().steady_ms
        while waiting and waiting[0].due_ms <= steady_ms:
            found.append(waiting.popleft().record)
        return found

    async def _deliver(self, records: list[Record]) -> None:
        """Delivers all of them, as often as it takes, and notes that."""
        self.delivered += await deliver_all(self._link, map(_delivery, records), self._warn)
        self._offsets.note(self._level.level, records[-1].head.queue_offset + 1)

    def _warn(self, error: MqError) -> None:
        self._tell("delayed messages wait", error)

    def _tell(self, event: str, error: MqError) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._told_at + ERROR_S:
            self._told_at = now
            log.warning(event, extra=fields(level=self._level.level, why=error))


def _delivery(record: Record) -> Delivery:
    properties = own_properties(record)
    place = real_place_of(decode_raw_properties(properties))
    return Delivery(record, place, properties, is_inner=is_committed(record))
