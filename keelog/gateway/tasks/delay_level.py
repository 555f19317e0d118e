"""Delivers the messages of one delay level, in order, each when it is due.

A message is read from the level's queue of the schedule topic, as any consumer would, and its copy
appended at its real place; only then the level moves on. So a crash repeats deliveries, and loses
none (RocketMQ: ScheduleMessageService).

`config/delayOffset.json` says up to where each level is delivered: an entry `level` has the offset
of the next message of the level's queue. The process that delivers holds the table and saves it; a
crash repeats the deliveries of about a second.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from keelog.gateway.sending.stored_properties import is_committed, own_properties, real_place_of
from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.system_queue import RETRY_S, Delivery, WaitingQueue, deliver_all
from node.runtime.event_log import Seldom, fields
from node.runtime.stored_times import Arrivals, ClockSet, Moment, moment
from node.store.config.config_table import ConfigTable
from protocol.errors import MqError
from protocol.names import DELAY_OFFSETS_FILE
from protocol.record.codec import Record
from protocol.record.properties import decode_raw_properties

log = logging.getLogger("keelog.tasks")

LOOK_S_MAX = 5.0
"""Between two looks at where the queue ends: while the clock is odd, a delay is longer by that."""
ERROR_S = 10.0
"""Between two lines of the log about one trouble."""


@dataclass(eq=False)
class DelayQueue:
    """The queue of one level, from 1 on. `_now` returns this moment. A delay is counted by the
    steady clock from when its message came, as `Arrivals` knows it: a wall clock that is set, or
    was ahead when the message was stored, makes it neither shorter nor longer."""

    _level: int
    _delay_ms: int
    _queue: WaitingQueue
    _link: WriterLink
    _offsets: "DelayOffsets"
    _sets: Sequence[ClockSet] = ()
    _now: Callable[[], Moment] = moment
    _said: Seldom = field(default_factory=lambda: Seldom(ERROR_S))
    delivered: int = 0

    def __post_init__(self) -> None:
        self._arrivals = Arrivals(self._delay_ms, self._now(), self._sets)

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        while True:
            try:
                waiting = await self._pull()
                while waiting:
                    await self._sleep_until(waiting[0][1])
                    await self._deliver(self._due(waiting))
            except MqError as error:
                self._warn(error)
                await asyncio.sleep(RETRY_S)

    async def _pull(self) -> deque[tuple[Record, int]]:
        """The next messages, each with the time when it is due, in ms of the steady clock; none
        after a while without one. Raises what a reader refuses."""
        offset = self._offsets.get(self._level)
        found = await self._queue.pull(offset)
        if not found.records and found.next_offset != offset:
            self._offsets.note(self._level, found.next_offset)
        now = self._now()
        self._arrivals.look(max(found.max_offset, found.next_offset), now)
        return deque((record, self._due_ms(record, now)) for record in found.records)

    def _due_ms(self, record: Record, now: Moment) -> int:
        head = record.head
        age_ms = self._arrivals.age_ms(head.queue_offset, head.store_timestamp, now)
        return now.steady_ms + self._delay_ms - age_ms

    async def _sleep_until(self, due_ms: int) -> None:
        """Meanwhile it looks for messages that come, so that it knows when each of them came."""
        while (left_s := (due_ms - self._now().steady_ms) / 1000) > 0:
            await asyncio.sleep(min(left_s, LOOK_S_MAX))
            if left_s > LOOK_S_MAX:
                self._arrivals.look(await self._queue.end(), self._now())

    def _due(self, waiting: deque[tuple[Record, int]]) -> list[Record]:
        found: list[Record] = []
        steady_ms = self._now().steady_ms
        while waiting and waiting[0][1] <= steady_ms:
            found.append(waiting.popleft()[0])
        return found

    async def _deliver(self, records: list[Record]) -> None:
        """Delivers all of them, as often as it takes, and notes that."""
        self.delivered += await deliver_all(self._link, map(_delivery, records), self._warn)
        self._offsets.note(self._level, records[-1].head.queue_offset + 1)

    def _warn(self, error: MqError) -> None:
        if self._said.is_due("", monotonic()):
            log.warning("delayed messages wait", extra=fields(level=self._level, why=error))


def _delivery(record: Record) -> Delivery:
    properties = own_properties(record)
    place = real_place_of(decode_raw_properties(properties))
    return Delivery(record, place, properties, is_inner=is_committed(record))


class DelayOffsets(ConfigTable):
    """Up to where each level is delivered: the table in memory. All methods are for one thread."""

    def __init__(self, root: Path, now_ms: Callable[[], int]) -> None:
        """Raises StoreDamaged."""
        super().__init__(root / DELAY_OFFSETS_FILE, "offsetTable", now_ms, of_objects=False)
        self.check_readable()

    def lower(self, ends: Callable[[int], int]) -> None:
        """No entry stays above the end of its level's queue, which `ends` returns: as after a power
        loss, the next messages get these offsets, and must not be passed over."""
        above = {
            level: end
            for level in self.entries
            if level.isdigit() and (end := ends(int(level))) < self.get(int(level))
        }
        if above:
            extra = fields(file=self.path, levels=",".join(sorted(above, key=int)))
            log.warning("what is delivered lies beyond the queues, and is lowered", extra=extra)
            self.entries.update(above)
            self.touch()
            self.save()

    def get(self, level: int) -> int:
        """The offset of the level's next message."""
        found = self.entries.get(str(level), 0)
        return found if type(found) is int and found >= 0 else 0

    def note(self, level: int, offset: int) -> None:
        """All messages of the level before this one are delivered."""
        if self.get(level) != offset:
            self.entries[str(level)] = offset
            self.touch()
