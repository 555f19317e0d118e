"""Delivers the messages of one delay level, in order, each when it is due.

A message is read from the level's queue of the schedule topic, as any consumer would, and its copy
appended at its real place; only then the level moves on. So a crash repeats deliveries, and loses
none (RocketMQ: ScheduleMessageService).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from client.core import ClientCore
from gateway.sending.delayed import is_committed, own_properties, real_place_of
from gateway.sending.writer_link import WriterLink
from gateway.tasks.delay_offsets import DelayOffsets
from gateway.tasks.delivery import RETRY_S, Delivery, deliver_all
from gateway.tasks.waiting_queue import WaitingQueue
from node.runtime.event_log import fields
from protocol.errors import MqError
from protocol.record.codec import Record
from protocol.record.properties import decode_raw_properties
from protocol.record.scheduled import schedule_place

log = logging.getLogger("keelog.tasks")

LOOK_S_MAX = 5.0
"""The longest sleep before a due time: the clock may be set."""
ERROR_S = 10.0
"""Between two lines of the log about one trouble."""


class DelayLevel(NamedTuple):
    """A level, from 1 on, its delay, and how long a reader holds a pull of it."""

    level: int
    delay_ms: int
    wait_s: float


class DelayQueue:
    """The queue of one level. `now_ms` returns the wall clock."""

    def __init__(
        self,
        level: DelayLevel,
        core: ClientCore,
        link: WriterLink,
        offsets: DelayOffsets,
        now_ms: Callable[[], int],
    ) -> None:
        self._level = level
        self._queue = WaitingQueue(core, schedule_place(level.level), level.wait_s)
        self._link = link
        self._offsets = offsets
        self._now_ms = now_ms
        self.delivered = 0
        self._told_at = -ERROR_S

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        while True:
            try:
                records = await self._pull()
                while records:
                    await self._sleep_until_due(records[0])
                    await self._deliver(self._due(records))
            except MqError as error:
                self._tell("delayed messages wait", error)
                await asyncio.sleep(RETRY_S)

    async def _pull(self) -> deque[Record]:
        """The next messages, none after a while without one. Raises what a reader refuses."""
        level = self._level.level
        offset = self._offsets.get(level)
        found = await self._queue.pull(offset)
        if not found.records and found.next_offset != offset:
            self._offsets.note(level, found.next_offset)
        return deque(found.records)

    def _due_ms(self, record: Record) -> int:
        """When a message is due: never later than its level's delay from now."""
        delay = self._level.delay_ms
        return min(record.head.store_timestamp, self._now_ms()) + delay

    async def _sleep_until_due(self, record: Record) -> None:
        while (left_s := (self._due_ms(record) - self._now_ms()) / 1000) > 0:
            await asyncio.sleep(min(left_s, LOOK_S_MAX))

    def _due(self, records: deque[Record]) -> list[Record]:
        """Takes out those that are due."""
        found: list[Record] = []
        now = self._now_ms()
        while records and self._due_ms(records[0]) <= now:
            found.append(records.popleft())
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
