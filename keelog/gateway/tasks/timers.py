"""Delivers timer messages, each at its time (RocketMQ: TimerMessageStore).

A message is read from the one queue of rmq_sys_wheel_timer, and gets a unit in the timer log. When
its second comes near, the units of that second are loaded; when it is due, its record is read and
a copy appended at its real place. A second is passed when all its messages have their outcome. So
a crash repeats the deliveries of a second or two, and loses none.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np

from keelog.gateway.sending.writer_link import WriterLink
from keelog.gateway.system_queue import RETRY_S, Delivery, WaitingQueue, deliver_all
from keelog.gateway.tasks import timer_records
from keelog.gateway.tasks.timer_files import AHEAD_MS, TimerFiles, WaitingUnit
from node.runtime import disk, run_files
from node.runtime.event_log import Seldom, fields
from node.runtime.settings import Settings
from node.runtime.stored_times import Arrivals, ClockSet, Moment, is_noted, moment, set_since
from protocol.derived.file_layouts import NO_TIMER_UNIT, TIMER_ROLL
from protocol.errors import MqError
from protocol.names import TIMER_CHECK_FILE
from protocol.record.codec import Record
from protocol.record.waiting import PRECISION_MS, TIMER_PLACE

log = logging.getLogger("keelog.tasks")

LEAD_MS = 500
"""How long before its begin a second is loaded."""
LOADED_MAX = 50_000
"""Messages of loaded seconds, as numbers; one second is loaded however many it has."""
SECONDS_AT_ONCE = 8
BATCH_MAX = 250
BATCHES_AT_ONCE = 8
"""Batches of messages that are read, and have no outcome yet."""
CHAIN_AT_ONCE = 5_000
"""Units that are followed before others get their turn."""
SAVE_S = 1.0
STOP_S = 3.0
"""How long a stop waits for deliveries that are under way."""
REMOVE_S = 30.0
LOOK_S_MAX = 0.5
NOTED_S = 3.0
"""How long the writer may take to note how the clock was set; a slow disk may hold it up."""
NOTED_LOOK_S = 0.05
ERROR_S = 10.0


class _ClockWasSet(Exception):
    """Since the files were opened, by more than AHEAD_MS."""


@dataclass(eq=False)
class TimerDeliverer:
    """The timer messages of one node. `_now` returns this moment; the check point is lowered to
    `_ends`."""

    _root: Path
    _link: WriterLink
    _settings: Settings
    _queue: WaitingQueue
    _ends: run_files.RecoveredEnds | None = None
    _sets: Sequence[ClockSet] = ()
    _now: Callable[[], Moment] = moment
    _closed_at: Moment | None = None
    """The clock of the files that this process closed last."""
    _opened: TimerFiles | None = None
    _seconds: dict[int, timer_records.LoadedSecond] = field(default_factory=dict)
    _loaded_to: int = 0
    """The first second that nobody has looked at."""
    _to_read: int | None = None
    """The end of the queue when the files were opened, None: unknown. Until all before it has
    units nothing is delivered: what takes a message back may come after it."""
    _batches: set[asyncio.Task[None]] = field(default_factory=set)
    _saving: asyncio.Future[None] | None = None
    delivered: int = 0
    _late_ms: int = 0
    """The latest delivery since the state was last shown."""

    def __post_init__(self) -> None:
        self._at = self._now()
        """The clock when it was last looked at: nobody had set it since the files were opened."""
        delay_ms_max = self._settings.timer_max_delay_sec * 1000
        self._arrivals = Arrivals(delay_ms_max, self._at, self._sets)
        self._window_ms = self._settings.timer_roll_window_slot * PRECISION_MS
        self._records = timer_records.TimerRecords(self._root, self._settings)
        self._changed = asyncio.Event()
        self._said = Seldom(ERROR_S)

    async def run(self) -> None:
        """Delivers until it is cancelled. Raises StoreMoved, and errors of the disk."""
        while True:
            try:
                await self._run_until_set()
            except _ClockWasSet:
                # The times in the files are of a clock that said otherwise.
                log.info("the clock was set: the files of timer messages are made anew")
                self._forget()

    async def _run_until_set(self) -> None:
        if (self._root / TIMER_CHECK_FILE).exists():
            await self._open()
        parts = [self._enqueue(), self._deliver_due(), self._save_now_and_then()]
        working = [asyncio.ensure_future(part) for part in parts]
        try:
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for task in working:
                task.cancel()
            if self._batches:
                await asyncio.wait(self._batches, timeout=STOP_S)
            for batch in self._batches:
                batch.cancel()
            if self._saving is not None:
                # Its thread cannot be cancelled, and would replace a later check point.
                await asyncio.wait([self._saving])

    def _forget(self) -> None:
        """Closes the files, so that they are opened by the clock as it is now."""
        if self._opened is not None:
            self._opened.close(self._delivered_ms(), self._at.wall_ms)
            self._opened, self._closed_at = None, self._at
        self._seconds.clear()
        self._batches.clear()

    async def _open(self) -> TimerFiles:
        """The files; made only for a node that has timer messages."""
        if self._opened is None:
            await self._records.wait_for_log()
            now = self._at = await self._noted()
            files = await asyncio.to_thread(
                TimerFiles,
                self._root,
                self._is_stored,
                lambda: now.wall_ms,
                message_at=self._records.message_at,
                queue_end=None if self._ends is None else self._ends.end_of(*TIMER_PLACE),
                set_since=lambda wall_ms: self._set_since(wall_ms, now),
            )
            self._ends = None
            self._loaded_to = files.read_second
            self._to_read = None
            self._opened = files
            self._changed.set()
        return self._opened

    async def _noted(self) -> Moment:
        """Now, by a clock that the writer has noted: a process that begins later knows of no other
        clock, and the check point has its time."""
        now = self._now()
        for _ in range(round(NOTED_S / NOTED_LOOK_S)):
            if is_noted(self._root, now, AHEAD_MS):
                break
            await asyncio.sleep(NOTED_LOOK_S)
            now = self._now()
        return now

    def _set_since(self, saved_ms: int, now: Moment) -> int:
        """By how much the clock was set since the check point was saved. The writer need not have
        seen a clock that this process has: it may be set twice between two of the writer's looks.
        """
        if self._closed_at is not None:
            return now.set_by_ms(self._closed_at)
        return set_since(self._root, saved_ms, now)

    def _is_stored(self, offset: int) -> int | None:
        if self._ends is not None and offset >= self._ends.log_end:
            return None  # it was lost: another message may be there now
        return self._records.queue_offset_of(offset)

    @property
    def is_lowered(self) -> bool:
        """Whether the ends, if there were any, were heeded."""
        return self._ends is None or not (self._root / TIMER_CHECK_FILE).exists()

    def close(self) -> None:
        self._forget()
        self._records.close()

    # From the queue to the log of units

    async def _enqueue(self) -> None:
        while True:
            try:
                if self._opened is not None and self._to_read is None:
                    self._to_read = await self._queue.end()
                    self._changed.set()
                offset = 0 if self._opened is None else self._opened.queue_offset
                found = await self._queue.pull(offset)
                self._look(max(found.max_offset, found.next_offset))
            except MqError as error:
                self._warn(error)
                await asyncio.sleep(RETRY_S)
                continue
            if found.records or found.next_offset != offset:
                files = await self._open()
                if files.queue_offset == offset:
                    await self._take_in(files, found.records, found.next_offset)

    def _look(self, queue_end: int | None = None) -> int:
        """Looks at the clock, and returns what it says. Raises _ClockWasSet."""
        now = self._now()
        if queue_end is not None:
            self._arrivals.look(queue_end, now)
        if self._opened is not None and abs(now.set_by_ms(self._at)) > AHEAD_MS:
            raise _ClockWasSet
        self._at = now
        return now.wall_ms

    async def _take_in(
        self, files: TimerFiles, records: Sequence[Record], next_offset: int
    ) -> None:
        waiting = [
            (record, self._followed(files, record, unit))
            for record in records
            if (unit := self._waiting_unit(files, record)) is not None
        ]
        while True:
            known, passed = files.known_below, files.read_second
            waiting = [
                (record, unit)
                for record, unit in waiting
                if unit.second >= passed or record.head.queue_offset >= known
            ]
            units = [files.within(unit) for _, unit in waiting]
            try:
                positions = files.add(units, next_offset)
            except OSError as error:
                if not disk.is_passing(error):
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                break
        for (record, _), unit, position in zip(waiting, units, positions.tolist(), strict=True):
            if unit.second < self._loaded_to:
                self._add_to_loaded(record, unit, position)
        self._changed.set()

    def _waiting_unit(self, files: TimerFiles, record: Record) -> WaitingUnit | None:
        head, wall_ms = record.head, self._at.wall_ms
        age_ms = self._arrivals.age_ms(head.queue_offset, head.store_timestamp, self._at)
        unit = timer_records.waiting_unit(record, wall_ms, self._window_ms, age_ms)
        if unit is not None and timer_records.is_moved(record, unit):
            files.moved.update(dict.fromkeys(timer_records.keys_of(record), unit.second))
        return unit

    def _followed(self, files: TimerFiles, record: Record, unit: WaitingUnit) -> WaitingUnit:
        """The unit where its message is; one that takes another back is where that was moved to."""
        if not (unit.takes_back and files.moved):
            return unit
        second = files.moved.get(timer_records.taken_back_by(record))
        return unit if second is None else unit.in_second(second)

    def _add_to_loaded(self, record: Record, unit: WaitingUnit, position: int) -> None:
        second = unit.second
        loaded = self._seconds.get(second)
        if loaded is None:
            loaded = self._seconds[second] = timer_records.LoadedSecond(second)
        if unit.takes_back:
            loaded.taken_back.add(timer_records.taken_back_by(record))
        else:
            due_ms = unit.slot_ms if unit.magic & TIMER_ROLL else unit.due_ms
            loaded.add(
                timer_records.DueUnit(
                    due_ms, position, unit.physical_offset, unit.written_ms, unit.magic
                )
            )

    # From the log of units to the real places

    async def _deliver_due(self) -> None:
        while True:
            files = self._opened
            if files is None or self._to_read is None or files.queue_offset < self._to_read:
                await self._sleep(None)
                continue
            now = self._look()
            await self._load(files, now)
            took = self._start_batch(now)
            self._pass(files, now)
            if len(self._batches) >= BATCHES_AT_ONCE:
                await asyncio.wait(self._batches, return_when=asyncio.FIRST_COMPLETED)
            elif took:
                await asyncio.sleep(0)
            else:
                await self._sleep(files)
            for batch in [one for one in self._batches if one.done()]:
                self._batches.discard(batch)
                batch.result()

    async def _load(self, files: TimerFiles, now: int) -> None:
        end = (now + LEAD_MS) // PRECISION_MS + 1
        while self._loaded_to < end:
            if self._is_full():
                return
            second = files.next_second(self._loaded_to, end)
            if second is None:
                self._loaded_to = end
                return
            loaded = self._seconds.setdefault(second, timer_records.LoadedSecond(second))
            loaded.is_loading = True
            self._loaded_to = second + 1
            last, positions = files.last_of(second), array("q")
            while last != NO_TIMER_UNIT:
                more, last = files.log.chain(last, CHAIN_AT_ONCE)
                positions.extend(more)
                if last != NO_TIMER_UNIT:
                    await asyncio.sleep(0)
            found = np.frombuffer(positions, np.int64) if positions else np.empty(0, np.int64)
            units = files.log.gather(found)
            markers = loaded.load(found, units, files.delivered_ms, files.delivered_end)
            if markers:
                await self._records.refresh()
            for marker in markers:
                record = self._records.at(marker)
                if record is not None:
                    loaded.taken_back.add(timer_records.taken_back_by(record))
            loaded.is_loading = False

    def _is_full(self) -> bool:
        """Whether no further second is loaded until messages of others are delivered."""
        waiting = sum(map(len, self._seconds.values()))
        return bool(waiting >= LOADED_MAX or len(self._seconds) >= SECONDS_AT_ONCE)

    def _start_batch(self, now: int) -> bool:
        """Takes messages that are due, of one second; False where none is."""
        for second in sorted(self._seconds):
            loaded = self._seconds[second]
            due = loaded.take(now, BATCH_MAX)
            if due:
                batch = asyncio.ensure_future(self._deliver(loaded, due))
                self._batches.add(batch)
                return True
        return False

    async def _deliver(
        self, loaded: timer_records.LoadedSecond, due: list[timer_records.DueUnit]
    ) -> None:
        deliveries: list[Delivery] = []
        await self._records.refresh()
        now = self._at.wall_ms
        for unit in due:
            record = self._records.at(unit.physical_offset)
            is_rolled = bool(unit.magic & TIMER_ROLL)
            if record is None:
                continue
            if not (is_rolled or loaded.taken_back.isdisjoint(timer_records.keys_of(record))):
                continue
            is_late = unit.due_ms <= unit.written_ms
            written_ms = (
                timer_records.NEVER_WAITED if is_late and not is_rolled else unit.written_ms
            )
            delivery = timer_records.delivery(record, written_ms, now, is_rolled)
            if delivery is not None:
                deliveries.append(delivery)
        self.delivered += await deliver_all(self._link, deliveries, self._warn)
        self._late_ms = max(self._late_ms, self._at.wall_ms - due[0].due_ms)
        loaded.delivered(due)
        self._changed.set()

    def _pass(self, files: TimerFiles, now: int) -> None:
        now_second = now // PRECISION_MS
        for second in sorted(self._seconds):
            if not self._seconds[second].is_done or second >= now_second:
                files.pass_to(second)
                return
            del self._seconds[second]
            files.pass_to(second + 1)
        files.pass_to(min(now_second, self._loaded_to))

    async def _sleep(self, files: TimerFiles | None) -> None:
        """Until the next message is due, a second has to be loaded, or something changes."""
        sleep_s = LOOK_S_MAX
        if files is not None:
            now = self._now().wall_ms
            events = [one.next_ms() for one in self._seconds.values()]
            if not self._is_full():
                events.append(self._loaded_to * PRECISION_MS - LEAD_MS)
            sleep_s = min([LOOK_S_MAX, *((at - now) / 1000 for at in events if at is not None)])
        self._changed.clear()
        if sleep_s > 0:
            try:
                await asyncio.wait_for(self._changed.wait(), sleep_s)
            except TimeoutError:
                return

    # Saving

    async def _save_now_and_then(self) -> None:
        remove_at = 0.0
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SAVE_S)
            files = self._opened
            if files is None:
                continue
            with disk.if_room():
                check = files.check_now(self._delivered_ms(), self._at.wall_ms)
                if check is not None:
                    self._saving = asyncio.ensure_future(asyncio.to_thread(files.save, check))
                    await asyncio.shield(self._saving)
                if loop.time() >= remove_at:
                    remove_at = loop.time() + REMOVE_S
                    files.log.remove_before(self._records.begin)
                late_ms, self._late_ms = self._late_ms, 0
                run_files.write_timer_state(
                    self._root, run_files.TimerState(files.pending, self.delivered, late_ms)
                )

    def _delivered_ms(self) -> int:
        """Until when all that was due and has a unit is delivered."""
        ends = [one.first_ms() for one in self._seconds.values() if not one.is_loading]
        begins = [one.second * PRECISION_MS for one in self._seconds.values() if one.is_loading]
        known = self._loaded_to * PRECISION_MS
        first = min([*begins, known, *(end for end in ends if end is not None)])
        return min(first - 1, self._at.wall_ms)

    def _warn(self, error: MqError) -> None:
        if self._said.is_due("", monotonic()):
            log.warning("timer messages wait", extra=fields(why=error))
