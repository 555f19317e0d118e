"""The records of timer messages: found in the log, judged, and made ready for their delivery.

`LoadedSecond` has the messages of a second that comes next, as numbers: which of them is due when.
Values in, values out; `gateway.tasks.timers` owns it.
"""

import asyncio
import heapq
import logging
from itertools import starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keelog.gateway.sending.stored_properties import own_properties, real_place_of
from keelog.gateway.system_queue import RETRY_S, Delivery
from keelog.gateway.tasks import timer_files
from node.runtime.event_log import fields
from node.runtime.process import met_damage
from node.runtime.settings import Settings
from node.store.opening import RunningStore
from protocol.derived.file_layouts import TIMER_DELETE, TIMER_ROLL
from protocol.errors import MqError, NotFound, StoreDamaged
from protocol.names import TIMER_TOPIC
from protocol.record import properties as props
from protocol.record import waiting
from protocol.record.codec import Record
from protocol.record.java_hash import java_hash
from protocol.record.waiting import PRECISION_MS, TIMER_PLACE, RealPlace
from protocol.remoting.java_json import INT32_MAX

log = logging.getLogger("keelog.tasks")

NEVER_WAITED = 2**63 - 1
"""TIMER_ENQUEUE_MS of a message whose time had passed when it was read from the queue."""
_DEFAULT = 1
_CRC_ROOM = 32
_OUT, _DELETE, _TOPIC = map(
    str.encode, (props.TIMER_OUT_MS, props.TIMER_DELETE_KEY, props.REAL_TOPIC)
)
_ENQUEUE, _DEQUEUE = props.TIMER_ENQUEUE_MS.encode(), props.TIMER_DEQUEUE_MS.encode()
_ROLLS = props.TIMER_ROLL_TIMES.encode()


class TimerRecords:
    """Reads the log of a running store."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._root = root
        self._settings = settings
        self._opened: RunningStore | None = None

    async def wait_for_log(self) -> None:
        """Returns when the writer has said where the log ends."""
        while True:
            try:
                if self._opened is None:
                    self._opened = RunningStore(self._root, 0, self._settings)
                self._opened.refresh()
            except (MqError, OSError) as error:
                log.warning("timer messages wait", extra=fields(why=error))
            else:
                if self._opened.knows_log:
                    return
            await asyncio.sleep(RETRY_S / 10)

    @property
    def _store(self) -> RunningStore:
        assert self._opened is not None, "wait_for_log comes first"
        return self._opened

    async def refresh(self) -> None:
        """Takes in how far the log has grown; waits while its files change."""
        while True:
            try:
                self._store.refresh()
            except StoreDamaged as error:
                log.warning("timer messages wait", extra=fields(why=error))
                await asyncio.sleep(RETRY_S)
            else:
                return

    @property
    def begin(self) -> int:
        return self._store.log.min_offset

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def queue_offset_of(self, offset: int) -> int | None:
        """The queue offset of the timer message at a log offset; None without one, GONE where the
        log begins later. As `is_stored` of the files of timer messages."""
        if offset < self.begin:
            return timer_files.GONE
        try:
            record = self._store.log.record_at(offset)
        except NotFound:
            return None
        except StoreDamaged as damage:
            met_damage.note(damage)
            return None
        return record.head.queue_offset if record.topic == TIMER_TOPIC else None

    def at(self, offset: int) -> Record | None:
        """The timer message at a log offset; None, and a line in the log, without one."""
        try:
            record = self._store.log.record_at(offset)
            if record.topic == TIMER_TOPIC:
                return record
            why: object = f"a message of {record.topic} is there"
        except (NotFound, StoreDamaged) as error:
            if isinstance(error, StoreDamaged):
                met_damage.note(error)
            why = error
        extra = fields(offset=offset, why=why)
        log.error("a timer message is gone, and not delivered", extra=extra)
        return None

    def message_at(self, offset: int) -> timer_files.TimerMessage | None:
        """What the timer message at a log offset says; None without one."""
        try:
            record = self._store.log.record_at(offset)
        except (NotFound, StoreDamaged):
            return None
        delay_ms = waiting.delay_of(props.decode_raw_properties(record.properties_raw))
        return timer_files.TimerMessage(delay_ms, keys_of(record), taken_back_by(record))


def taken_back_by(record: Record) -> str:
    """The key of the message that this one takes back."""
    return record.properties.get(props.TIMER_DELETE_KEY, "")


def is_moved(record: Record, unit: timer_files.WaitingUnit) -> bool:
    """Whether a message waits in another second than those that take it back would name."""
    out_ms = int(record.properties[props.TIMER_OUT_MS])
    return not unit.magic & (TIMER_ROLL | TIMER_DELETE) and unit.second != out_ms // PRECISION_MS


def keys_of(record: Record) -> tuple[str, ...]:
    """How other messages name this one to take it back: its key may come with the topic."""
    key, topic = record.unique_key, record.properties.get(props.REAL_TOPIC, "")
    return (key, f"{topic}+{key}") if key else ()


def delivery(record: Record, written_ms: int, now_ms: int, is_rolled: bool) -> Delivery | None:
    """The delivery of a message that is due; None for one that only takes another back.
    `is_rolled`: it waits on (TimerMessageStore#convert)."""
    raw = own_properties(record)
    properties = props.decode_raw_properties(raw)
    if _DELETE in properties and not is_rolled:
        return None
    place: RealPlace | None = TIMER_PLACE if is_rolled else real_place_of(properties)
    properties[_ENQUEUE] = b"%d" % written_ms
    if is_rolled:
        before = properties.get(_ROLLS, b"0")
        properties[_ROLLS] = b"%d" % (int(before) + 1 if before.isdigit() else 1)
    properties[_DEQUEUE] = b"%d" % now_ms
    longer = waiting.joined_properties(properties)
    fits = len(longer) + _CRC_ROOM <= props.PROPERTIES_BYTES_MAX
    return Delivery(record, place, longer if fits else raw, is_rolled)


def waiting_unit(
    record: Record, now_ms: int, window_ms: int, age_ms: int | None = None
) -> timer_files.WaitingUnit | None:
    """The unit of a message that begins to wait; None for one that does not say when it is due.

    `age_ms`: how long ago it was stored; None: as its store time says. A delay counts from then.

    One that is due later than `window_ms` from now waits for a shorter time first
    (TimerMessageStore#doEnqueue).
    """
    properties = props.decode_raw_properties(record.properties_raw)
    text = properties.get(_OUT, b"")
    if not text.isdigit() or len(text) > len(str(NEVER_WAITED)):
        extra = fields(msg_id=record.message_id, why=f"its {props.TIMER_OUT_MS} is {text[:40]!a}")
        log.error("a timer message is not delivered", extra=extra)
        return None
    out_ms, stored_ms = int(text), record.head.store_timestamp
    delay_ms = waiting.delay_of(properties)
    if delay_ms is not None and age_ms is not None:
        asked_ms = now_ms - age_ms + delay_ms
        if abs(asked_ms - out_ms) > timer_files.AHEAD_MS:
            # The clock was set since, or was ahead.
            out_ms = (asked_ms - 1) // PRECISION_MS * PRECISION_MS
            stored_ms = asked_ms - delay_ms
    slot_ms = out_ms
    written_ms = now_ms // PRECISION_MS * PRECISION_MS
    magic = _DEFAULT
    left_ms = out_ms - written_ms
    if left_ms >= window_ms:
        magic |= TIMER_ROLL
        is_near = left_ms - window_ms < window_ms // PRECISION_MS // 3 * PRECISION_MS
        half_ms = window_ms // PRECISION_MS // 2 * PRECISION_MS
        slot_ms = written_ms + (half_ms if is_near else window_ms)
    if _DELETE in properties:
        magic |= TIMER_DELETE
    topic = properties.get(_TOPIC, b"").decode("utf-8", "replace")
    written_ms = min(written_ms, slot_ms + INT32_MAX)
    message = record.head.physical_offset, record.size, java_hash(topic)
    due_ms = waiting.due_ms(properties, out_ms, stored_ms)
    return timer_files.WaitingUnit(slot_ms, magic, written_ms, *message, due_ms)


class DueUnit(NamedTuple):
    """A message that is due. `written_ms`: when its unit was written."""

    due_ms: int
    position: int
    physical_offset: int
    written_ms: int
    magic: int


class LoadedSecond:
    """One second: its messages in the order in which they are due."""

    def __init__(self, second: int) -> None:
        self.second = second
        self.taken_back: set[str] = set()
        """The keys of messages that are not to be delivered."""
        self.under_way: dict[int, int] = {}
        """How many messages were taken, and have no outcome yet, by the time when the first of
        those that were taken with them was due."""
        self.is_loading = False
        self._due = self._positions = np.empty(0, np.int64)
        self._units: timer_files.Units | None = None
        self._at = 0
        self._late: list[DueUnit] = []
        """A heap of those that came after it was loaded."""

    def __len__(self) -> int:
        """The messages that nobody has taken."""
        return len(self._due) - self._at + len(self._late)

    def load(
        self,
        positions: timer_files.Positions,
        units: timer_files.Units,
        delivered_ms: int = 0,
        delivered_end: int = 0,
    ) -> list[int]:
        """Takes the units of the second, without those below `delivered_end` that were due by
        `delivered_ms`; returns the log offsets of those that take others back."""
        magic = units["magic"]
        is_marker = ((magic & TIMER_DELETE) != 0) & ((magic & TIMER_ROLL) == 0)
        markers: list[int] = units["physical_offset"][is_marker].tolist()
        positions, units = positions[~is_marker], units[~is_marker]
        due = timer_files.effective_due(units, self.second)
        left = np.flatnonzero((due > delivered_ms) | (positions >= delivered_end))
        due, positions, units = due[left], positions[left], units[left]
        order = np.lexsort((positions, due))
        self._due, self._positions, self._units = due[order], positions[order], units[order]
        self._at = 0
        return markers

    def add(self, unit: DueUnit) -> None:
        heapq.heappush(self._late, unit)

    def next_ms(self) -> int | None:
        """When the next message is due; None without one."""
        first = int(self._due[self._at]) if self._at < len(self._due) else None
        if self._late and (first is None or self._late[0].due_ms < first):
            return self._late[0].due_ms
        return first

    def take(self, now_ms: int, count_max: int) -> list[DueUnit]:
        """Takes messages that are due, `count_max` at most."""
        end = min(int(np.searchsorted(self._due, now_ms, "right")), self._at + count_max)
        found: list[DueUnit] = []
        if end > self._at and self._units is not None:
            rows, part = slice(self._at, end), self._units[self._at : end]
            names = ("physical_offset", "written_ms", "magic")
            numbers = (self._due[rows], self._positions[rows], *(part[name] for name in names))
            found = list(starmap(DueUnit, zip(*map(np.ndarray.tolist, numbers), strict=True)))
            self._at = end
        while self._late and self._late[0].due_ms <= now_ms and len(found) < count_max:
            found.append(heapq.heappop(self._late))
        found.sort()
        if found:
            due_ms = found[0].due_ms
            self.under_way[due_ms] = self.under_way.get(due_ms, 0) + len(found)
        return found

    def delivered(self, units: list[DueUnit]) -> None:
        """These, which were taken together, have their outcome."""
        due_ms = units[0].due_ms
        self.under_way[due_ms] -= len(units)
        if not self.under_way[due_ms]:
            del self.under_way[due_ms]

    def first_ms(self) -> int | None:
        """When the first message was or is due that has no outcome; None without one."""
        next_ms = self.next_ms()
        waiting = [*self.under_way, *([] if next_ms is None else [next_ms])]
        return min(waiting, default=None)

    @property
    def is_done(self) -> bool:
        """Whether all its messages have their outcome."""
        return not (self.is_loading or self.under_way or len(self))
