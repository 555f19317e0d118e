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

from client import operations
from client.aio.run import run
from client.core import ClientCore
from client.results import Receipt
from client.send.record_batch import EncodedMessage
from gateway.delayed import delivered, is_committed, real_place_of
from gateway.tasks.delay_offsets import DelayOffsets
from gateway.transactions.queue_pages import records_of
from gateway.writer_link import WriterLink
from node.runtime.event_log import fields
from protocol.errors import BadRequest, MessageDamaged, MqError, RefusedError
from protocol.record.codec import Record
from protocol.record.encode import ANY_QUEUE
from protocol.record.scheduled import RealPlace, schedule_place

log = logging.getLogger("keelog.tasks")

WAIT_S_MAX = 30.0
"""How long a reader holds a pull of a level without messages, if `long_polling_ms_max` lets it."""
PULL_BYTES_MAX = 256 * 1024
PULL_MESSAGES_MAX = 1_000
"""What a level holds in memory."""
LOOK_S_MAX = 5.0
"""The longest sleep before a due time: the clock may be set."""
RETRY_S = 1.0
ERROR_S = 10.0
"""Between two lines of the log about one trouble."""
_HELD = ("OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE")
"""The outcomes for which a reader holds a pull."""


class DelayLevel(NamedTuple):
    """A level, from 1 on, its delay, and how long a reader holds a pull of it."""

    level: int
    delay_ms: int
    wait_s: float


class _Outcome:
    """Where the outcome of a delivery goes."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: asyncio.Future[MqError | None] = asyncio.get_running_loop().create_future()

    def stored(self, _: Receipt) -> None:
        """It is delivered."""
        if not self.done.done():
            self.done.set_result(None)

    def refused(self, error: MqError) -> None:
        """It is not, or nobody knows."""
        if not self.done.done():
            self.done.set_result(error)


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
        self._core = core
        self._link = link
        self._offsets = offsets
        self._now_ms = now_ms
        self._place = schedule_place(level.level)
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
        level, wait_s = self._level.level, self._level.wait_s
        offset = self._offsets.get(level)
        fields_ = {
            "topic": self._place.topic,
            "queue": self._place.queue_id,
            "offset": offset,
            "max_messages": PULL_MESSAGES_MAX,
            "max_bytes": PULL_BYTES_MAX,
        }
        try:
            found = await run(self._core, operations.pull(fields_, wait_s, 2 * WAIT_S_MAX))
        except MessageDamaged as damage:
            why = fields(level=level, why=damage)
            log.error("a delayed message is damaged, and not delivered", extra=why)  # noqa: TRY400
            self._offsets.note(level, damage.next_offset)
            return deque()
        if not found.count:
            if found.next_begin_offset != offset:
                # Retention took the messages in between, or the table is of another log.
                extra = fields(level=level, before=offset, now=found.next_begin_offset)
                log.warning("a delay level goes on elsewhere", extra=extra)
                self._offsets.note(level, found.next_begin_offset)
            elif wait_s < RETRY_S or found.status not in _HELD:
                await asyncio.sleep(RETRY_S)
        return deque(records_of(found))

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
        left = [(record, real_place_of(record)) for record in records]
        while left:
            outcomes = [self._put(record, place) for record, place in left]
            errors = await asyncio.gather(*outcomes)
            again: list[tuple[Record, RealPlace | None]] = []
            for (record, place), error in zip(left, errors, strict=True):
                if error is None:
                    self.delivered += 1
                elif isinstance(error, BadRequest) and place and place.queue_id != ANY_QUEUE:
                    # The topic has fewer queues than it had.
                    again.append((record, place._replace(queue_id=ANY_QUEUE)))
                elif isinstance(error, RefusedError):
                    self._give_up(record, error)
                else:
                    self._tell("delayed messages wait", error)
                    again.append((record, place))
            if len(again) == len(left):
                await asyncio.sleep(RETRY_S)
            left = again
        self._offsets.note(self._level.level, records[-1].head.queue_offset + 1)

    async def _put(self, record: Record, place: RealPlace | None) -> MqError | None:
        if place is None:
            return BadRequest("it names no real topic and queue")
        outcome = _Outcome()
        copy = delivered(record, place, self._link.routes.crc)
        entry = EncodedMessage(copy, *place, None, record.unique_key, outcome)
        self._link.put(entry, is_inner=is_committed(record))
        return await outcome.done

    def _give_up(self, record: Record, error: MqError) -> None:
        """A message that no node takes must not hold up those behind it: it stays in the log."""
        extra = fields(
            msg_id=record.message_id, topic=record.properties.get("REAL_TOPIC", ""), why=error
        )
        log.error("a delayed message cannot be delivered", extra=extra)

    def _tell(self, event: str, error: MqError) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._told_at + ERROR_S:
            self._told_at = now
            log.warning(event, extra=fields(level=self._level.level, why=error))
