"""The files of timer messages together: log, wheel and check point (RocketMQ: TimerMessageStore).

The log of units says all; the wheel is made of it anew at each start, so that no crash makes the
two disagree.

`timerlog/` has one unit for each timer message that has waited (RocketMQ: TimerLog). Positions
count on through the files. A file never changes its length, and closes with a blank.
"""

import logging
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from node.runtime.event_log import fields
from node.runtime.store_paths import read_bounded
from protocol import names
from protocol.derived import file_layouts as layouts
from protocol.derived.file_layouts import TIMER_DELETE, TIMER_ROLL, TIMER_UNIT_BYTES, TimerCheck
from protocol.record.waiting import PRECISION_MS
from protocol.remoting.java_json import INT32_MAX

log = logging.getLogger("keelog.tasks")

Units = NDArray[Any]
Positions = NDArray[np.int64]
_BLANK = struct.Struct(">iqi")
_MAGICS = 16
"""A magic is below: a sum of ROLL, DELETE and 1."""
GONE = -1
"""In place of a queue offset: retention has deleted the message."""
AHEAD_MS = 5_000
"""The clock that wrote the files may be ahead by so much, as after a promotion."""
_AT_ONCE = 10_000
"""Units that are made again together."""


class WaitingUnit(NamedTuple):
    """A message that begins to wait. `slot_ms` is in the second of its slot."""

    slot_ms: int
    magic: int
    written_ms: int
    physical_offset: int
    record_bytes: int
    topic_hash: int
    due_ms: int

    @property
    def second(self) -> int:
        return self.slot_ms // PRECISION_MS

    @property
    def takes_back(self) -> bool:
        """Whether its message only takes another one back."""
        return bool(self.magic & TIMER_DELETE) and not self.magic & TIMER_ROLL

    def in_second(self, second: int) -> "WaitingUnit":
        """The same with the slot of another second, and not due before that: what was due in
        earlier ones counts as delivered."""
        slot_ms = second * PRECISION_MS
        written_ms = min(max(self.written_ms, slot_ms - INT32_MAX), slot_ms + INT32_MAX)
        due_ms = max(self.due_ms, slot_ms)
        return self._replace(slot_ms=slot_ms, written_ms=written_ms, due_ms=due_ms)


class TimerMessage(NamedTuple):
    """What the message of a unit says: the delay that it asks for, None: another time; its own
    unique keys, as messages that take it back name it; and the one that it takes back."""

    delay_ms: int | None
    keys: tuple[str, ...]
    takes_back: str


class TimerFiles:
    """The files of one store, for their one writing process."""

    def __init__(
        self,
        root: Path,
        is_stored: Callable[[int], int | None],
        now_ms: Callable[[], int],
        file_bytes: int = layouts.TIMER_LOG_FILE_BYTES,
        message_at: Callable[[int], TimerMessage | None] = lambda _: None,
        queue_end: int | None = None,
        set_since: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`is_stored`: the queue offset of the timer message at a log offset; None without one,
        GONE where the log begins later. `message_at`: what that message says. `queue_end`: where
        the queue ended before new messages came; None where the check point is known to agree.
        `set_since`: by how much the clock was set since it showed a time, in ms.

        Units at the end whose message the log has not got, as after a power loss, are cut off.
        Raises OSError.
        """
        self._now_ms = now_ms
        self._check_path = root / names.TIMER_CHECK_FILE
        disk.make_durable_dir(self._check_path.parent)
        self._check = self._saved = _read_check(self._check_path, queue_end)
        self.log = TimerLog(root / names.TIMER_LOG_DIR, file_bytes)
        self.known_below = 0
        """Messages of the queue below this offset are delivered if their second is passed."""
        if self.log.end < self._check.flushed:
            # A restored backup has no units: they are made anew from the queue.
            self.log.clear()
            self.known_below = self._check.queue_offset
            self._check = self._check._replace(queue_offset=0)
        self.queue_offset = self._resumed(is_stored)
        """The next message of the timer queue that gets a unit."""
        path, slots = root / names.TIMER_WHEEL_FILE, layouts.WHEEL_SLOTS
        self._wheel = _MappedFile(path, layouts.WHEEL_BYTES, layouts.WHEEL_SLOT, slots, anew=True)
        self.delivered_ms = self._check.delivered_ms
        self.delivered_end = min(self.log.end, self._check.flushed)
        """Of the units below this position, all that were due by `delivered_ms` are delivered."""
        self.read_second = self._check.read_ms // PRECISION_MS
        """All that is due in earlier seconds is delivered."""
        if not self.read_second:
            self.read_second = now_ms() // PRECISION_MS
        self.moved: dict[str, int] = {}
        """The second to which a message was moved, by its keys: who takes it back follows."""
        self._waiting = 0
        set_by_ms = set_since(self._check.timestamp)
        is_ahead = self.read_second * PRECISION_MS > now_ms() + AHEAD_MS
        if is_ahead or abs(set_by_ms) > AHEAD_MS:
            self._begin_anew(now_ms(), set_by_ms, message_at)
            return
        self._rebuild_wheel()
        if self.log.end < self._check.flushed and not self.known_below:
            self._save_now()

    def _save_now(self, delivered_ms: int = 0, now_ms: int | None = None) -> None:
        check = self.check_now(delivered_ms, now_ms)
        if check is not None:
            self.save(check)

    def _resumed(self, is_stored: Callable[[int], int | None]) -> int:
        """Cuts off units without a message; returns the offset after the last one that has."""
        log, was_cut = self.log, False
        while log.end:
            last = log.before(log.end)
            unit = log.unit_at(last)
            offset = GONE if unit is None else is_stored(int(unit["physical_offset"]))
            if offset == GONE:
                break
            if offset is not None:
                return offset + 1 if was_cut else max(offset + 1, self._check.queue_offset)
            was_cut = True
            log.truncate(last)
        return self._check.queue_offset

    def _begin_anew(
        self, now_ms: int, set_by_ms: int, message_at: Callable[[int], TimerMessage | None]
    ) -> None:
        """Makes the units anew: the clock was set, or was ahead, when the check point was saved.
        Its `read_second` cannot say any more what is delivered, so that this has no unit from now
        on. Delays take their time: they end by the clock as it is now."""
        waiting = self._moved(self._undelivered(), now_ms, set_by_ms, message_at)
        # A crash from here on finds too few units, and takes them from the queue again.
        self.save(self._check._replace(flushed=self.log.end + TIMER_UNIT_BYTES))
        self.log.clear()
        self.read_second = min(self.read_second, now_ms // PRECISION_MS)
        self._rebuild_wheel()
        for start in range(0, len(waiting), _AT_ONCE):
            self.add(list(map(self.within, waiting[start : start + _AT_ONCE])), self.queue_offset)
        self.delivered_ms, self.delivered_end = 0, 0
        self._save_now()

    def _undelivered(self) -> list[WaitingUnit]:
        found: list[WaitingUnit] = []
        for positions, units in self.log.files():
            seconds = (units["written_ms"] + units["delay_ms"]) // PRECISION_MS
            due = effective_due(units, seconds)
            is_known = (due <= self.delivered_ms) & (positions < self.delivered_end)
            is_marker = (units["magic"] & TIMER_DELETE) != 0
            left = (seconds >= self.read_second) & (~is_known | is_marker)
            found += map(_waiting_of, units[left])
        return found

    def _moved(
        self,
        waiting: list[WaitingUnit],
        now_ms: int,
        set_by_ms: int,
        message_at: Callable[[int], TimerMessage | None],
    ) -> list[WaitingUnit]:
        """Delays move as the clock was set, and none is longer than its message asked for; what
        takes them back follows."""
        moved: list[WaitingUnit] = []
        for unit in waiting:
            said = None if unit.takes_back else message_at(unit.physical_offset)
            if said is not None and said.delay_ms is not None and not unit.magic & TIMER_ROLL:
                due_ms = min(unit.due_ms + set_by_ms, now_ms + said.delay_ms)
                if due_ms != unit.due_ms:
                    unit = unit.in_second((due_ms - 1) // PRECISION_MS)._replace(due_ms=due_ms)
                    second = max(unit.second, min(self.read_second, now_ms // PRECISION_MS))
                    self.moved.update(dict.fromkeys(said.keys, second))
            moved.append(unit)
        if not self.moved:
            return moved
        for number, unit in enumerate(moved):
            said = message_at(unit.physical_offset) if unit.takes_back else None
            if said is not None and said.takes_back in self.moved:
                moved[number] = unit.in_second(self.moved[said.takes_back])
        return moved

    def _rebuild_wheel(self) -> None:
        slots = np.zeros(layouts.WHEEL_SLOTS, layouts.WHEEL_SLOT)
        for positions, units in self.log.files():
            seconds = (units["written_ms"] + units["delay_ms"]) // PRECISION_MS
            waiting = np.flatnonzero(seconds >= self.read_second)
            self._enter(slots, seconds[waiting], positions[waiting], units["magic"][waiting])
        used = np.flatnonzero(slots["second"])
        for run in np.split(used, np.flatnonzero(np.diff(used) != 1) + 1) if len(used) else ():
            first = int(run[0])
            data = slots[first : first + len(run)].tobytes()
            disk.write_all(self._wheel.descriptor, data, first * layouts.WHEEL_SLOT_BYTES)
        self._waiting = int(slots["count"].sum())

    @staticmethod
    def _enter(
        slots: NDArray[Any], seconds: NDArray[np.int64], positions: Positions, magic: Any
    ) -> None:
        """Adds units, in the order of the log, to a table of slots."""
        order = np.argsort(seconds, kind="stable")
        seconds, positions = seconds[order], positions[order]
        counts = np.where(magic[order] & TIMER_DELETE, -1, 1)
        if not len(seconds):
            return
        begins = np.flatnonzero(np.r_[True, seconds[1:] != seconds[:-1]])
        ends = np.r_[begins[1:], len(seconds)]
        places = seconds[begins] % layouts.WHEEL_SLOTS
        is_new = slots["second"][places] != seconds[begins]
        slots["first"][places] = np.where(is_new, positions[begins], slots["first"][places])
        before = np.where(is_new, 0, slots["count"][places])
        slots["count"][places] = before + np.add.reduceat(counts, begins)
        slots["last"][places] = positions[ends - 1]
        slots["second"][places] = seconds[begins]

    @property
    def pending(self) -> int:
        """Messages that wait, without those that are taken back."""
        return max(0, self._waiting)

    # The wheel

    def last_of(self, second: int) -> int:
        """The position of the last unit of a second; NO_UNIT without one."""
        return self._slot(second)[1]

    def next_second(self, first: int, end: int) -> int | None:
        """The first second of [first, end) that has a unit."""
        end = min(end, first + layouts.WHEEL_SLOTS)
        while first < end:
            place = first % layouts.WHEEL_SLOTS
            count = min(end - first, layouts.WHEEL_SLOTS - place)
            seconds = self._wheel.rows["second"][place : place + count]
            found = np.flatnonzero(seconds == first + np.arange(count))
            if len(found):
                return first + int(found[0])
            first += count
        return None

    def within(self, unit: WaitingUnit) -> WaitingUnit:
        """In a second that the wheel has. Late ones wait in the first one, so that what takes
        it back does too; what is too far away, as overdue messages have its slot, waits on."""
        last = self.read_second + layouts.WHEEL_SLOTS - 1
        if unit.second > last:
            return unit.in_second(last)._replace(magic=unit.magic | TIMER_ROLL)
        return unit.in_second(max(unit.second, self.read_second))

    def add(self, waiting: list[WaitingUnit], queue_offset: int) -> Positions:
        """Gives messages their units; all of the queue before `queue_offset` has one then. Returns
        their positions. Raises OSError."""
        positions = self.log.positions(len(waiting))
        units: Units = np.zeros(len(waiting), layouts.TIMER_UNIT)
        changed: dict[int, list[int]] = {}
        previous: list[int] = []
        for unit, position in zip(waiting, positions.tolist(), strict=True):
            second = unit.slot_ms // PRECISION_MS
            slot = changed.get(second)
            if slot is None:
                slot = changed[second] = self._slot(second)
            previous.append(slot[1])
            if slot[0] == layouts.NO_TIMER_UNIT:
                slot[0] = position
            slot[1] = position
            slot[2] += -1 if unit.magic & TIMER_DELETE else 1
        if waiting:
            slot_ms, magic, written, physical, size, topic, due = zip(*waiting, strict=True)
            units["size"], units["previous"], units["magic"] = TIMER_UNIT_BYTES, previous, magic
            units["written_ms"] = written
            units["delay_ms"] = np.subtract(slot_ms, written)
            units["physical_offset"], units["record_bytes"] = physical, size
            units["topic_hash"], units["due_ms"] = topic, due
            self.log.append(units)
        for second, (first, last, count) in changed.items():
            self._put_slot(second, first, last, count)
        self.queue_offset = queue_offset
        return positions

    def _slot(self, second: int) -> list[int]:
        """First and last unit, and the number of messages, without those that are taken back."""
        slot = self._wheel.rows[second % layouts.WHEEL_SLOTS]
        if int(slot["second"]) != second:
            return [layouts.NO_TIMER_UNIT, layouts.NO_TIMER_UNIT, 0]
        return [int(slot["first"]), int(slot["last"]), int(slot["count"])]

    def _put_slot(self, second: int, first: int, last: int, count: int) -> None:
        self._waiting += count - self._slot(second)[2]
        slot = np.array([(second, first, last, count, 0)], layouts.WHEEL_SLOT)
        place = second % layouts.WHEEL_SLOTS * layouts.WHEEL_SLOT_BYTES
        disk.write_all(self._wheel.descriptor, slot.tobytes(), place)

    def pass_to(self, second: int) -> None:
        """All that is due before this second is delivered."""
        at: int | None = self.read_second
        while at is not None and (at := self.next_second(at, second)) is not None:
            self._waiting -= self._slot(at)[2]
            at += 1
        self.read_second = max(self.read_second, second)

    # The check point

    def check_now(self, delivered_ms: int = 0, now_ms: int | None = None) -> TimerCheck | None:
        """The check point as of now; None where the saved one says the same, or more.
        `delivered_ms`: all units that were due by then are delivered. `now_ms`: what the clock said
        then."""
        if self.queue_offset < self.known_below:
            return None
        check = self._check._replace(
            read_ms=self.read_second * PRECISION_MS,
            flushed=self.log.end,
            queue_offset=self.queue_offset,
            master_offset=self.queue_offset,
            delivered_ms=delivered_ms,
        )
        if check == self._saved:
            return None
        self._check = check._replace(timestamp=now_ms or self._now_ms(), counter=check.counter + 1)
        return self._check

    def save(self, check: TimerCheck) -> None:
        """Syncs the files, then saves a check point that was taken before. For any thread. Raises
        OSError."""
        self.log.sync()
        disk.sync(self._wheel.descriptor)
        disk.write_atomically(self._check_path, check.file())
        self._saved = check

    def close(self, delivered_ms: int = 0, now_ms: int | None = None) -> None:
        """As `check_now`, saves that, and closes the files. Raises OSError."""
        self._save_now(delivered_ms, now_ms)
        self.log.close()
        self._wheel.close()


def effective_due(units: Units, seconds: Any) -> NDArray[np.int64]:
    """When units of these seconds are due, in ms; those that are to wait on at the begin."""
    due = units["due_ms"].astype(np.int64)
    due = np.where(due == 0, (seconds + 1) * PRECISION_MS, due)  # a broker writes 0
    return np.where((units["magic"] & TIMER_ROLL) != 0, seconds * PRECISION_MS, due)


def _waiting_of(unit: Any) -> WaitingUnit:
    written_ms = int(unit["written_ms"])
    slot_ms = written_ms + int(unit["delay_ms"])
    # A broker writes 0: its messages are due when their second ends.
    due_ms = int(unit["due_ms"]) or (slot_ms // PRECISION_MS + 1) * PRECISION_MS
    offset, size = int(unit["physical_offset"]), int(unit["record_bytes"])
    magic, topic_hash = int(unit["magic"]), int(unit["topic_hash"])
    return WaitingUnit(slot_ms, magic, written_ms, offset, size, topic_hash, due_ms)


def _read_check(path: Path, queue_end: int | None) -> TimerCheck:
    """The saved check point, lowered to where the queue ended if that is known: the next messages
    get the offsets of lost ones, and must not be passed over."""
    check = TimerCheck()
    with suppress(FileNotFoundError):
        check = TimerCheck.parse(read_bounded(path, layouts.TIMER_CHECK_FILE_BYTES))
    if queue_end is not None and check.queue_offset > queue_end:
        extra = fields(file=path, before=check.queue_offset, now=queue_end)
        log.warning("what is delivered lies beyond its queue, and is lowered", extra=extra)
        check = check._replace(queue_offset=queue_end)
        disk.write_atomically(path, check.file())
    return check


class TimerLog:
    """The files, for their one writing process. `file_bytes`: the length of each."""

    def __init__(self, folder: Path, file_bytes: int = layouts.TIMER_LOG_FILE_BYTES) -> None:
        """Opens what is there, and cuts off the bytes after the last whole unit."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._per_file = layouts.timer_units_of_file(file_bytes)
        self._files: dict[int, _MappedFile] = {}
        self._unsynced: set[int] = set()
        disk.make_durable_dir(folder)
        starts = sorted(
            start
            for path in folder.iterdir()
            if (start := names.parse_offset_file_name(path.name)) is not None
            and start % file_bytes == 0
        )
        for start in starts:
            self._open(start)
        self.end = starts[0] if starts else 0
        while self.end in self._files:
            count = self._count_in(self.end)
            self.end += file_bytes if count == self._per_file else count * TIMER_UNIT_BYTES
            if count < self._per_file:
                break
        self.truncate(self.end)

    def truncate(self, end: int) -> None:
        """Forgets the units from a position on."""
        self.end = end
        keep = end // self._file_bytes * self._file_bytes
        for start in sorted(self._files, reverse=True):
            if start > keep:
                self._remove(start)
        found = self._files.get(keep)
        if found is not None:
            disk.set_length(found.descriptor, end - keep)
            disk.set_length(found.descriptor, self._file_bytes)
            self._unsynced.add(keep)

    def clear(self) -> None:
        for start in sorted(self._files):
            self._remove(start)
        self.end = 0

    def positions(self, count: int) -> Positions:
        """Where the next units go."""
        first = self.end // self._file_bytes * self._per_file
        first += self.end % self._file_bytes // TIMER_UNIT_BYTES
        numbers = np.arange(first, first + count, dtype=np.int64)
        in_file = numbers % self._per_file * TIMER_UNIT_BYTES
        return numbers // self._per_file * self._file_bytes + in_file

    def append(self, units: Units) -> None:
        """Writes units at the end: those of `positions`. Raises OSError."""
        while len(units):
            start = self.end // self._file_bytes * self._file_bytes
            file = self._files.get(start) or self._open(start)
            room = self._per_file - (self.end - start) // TIMER_UNIT_BYTES
            part, units = units[:room], units[room:]
            disk.write_all(file.descriptor, part.tobytes(), self.end - start)
            self._unsynced.add(start)
            self.end += len(part) * TIMER_UNIT_BYTES
            if len(part) == room:
                left = start + self._file_bytes - self.end
                blank = _BLANK.pack(left, 0, layouts.TIMER_BLANK_MAGIC)
                disk.write_all(file.descriptor, blank, self.end - start)
                self.end = start + self._file_bytes

    def files(self) -> Iterator[tuple[Positions, Units]]:
        for start, file in sorted(self._files.items()):
            count = min(self._per_file, max(0, self.end - start) // TIMER_UNIT_BYTES)
            yield start + np.arange(count, dtype=np.int64) * TIMER_UNIT_BYTES, file.rows[:count]

    def unit_at(self, position: int) -> Any:
        """One unit; None where the log has none any more."""
        file = self._files.get(position // self._file_bytes * self._file_bytes)
        if file is None or position >= self.end:
            return None
        return file.rows[position % self._file_bytes // TIMER_UNIT_BYTES]

    def before(self, position: int) -> int:
        """The position of the unit before another one in the log."""
        start = position // self._file_bytes * self._file_bytes
        if position > start:
            return position - TIMER_UNIT_BYTES
        return start - self._file_bytes + (self._per_file - 1) * TIMER_UNIT_BYTES

    def chain(self, last: int, count_max: int) -> tuple[list[int], int]:
        """The positions of units of one slot, from `last` backwards, `count_max` at most; and that
        of the next one, NO_UNIT without one."""
        found: list[int] = []
        file_bytes, files, head = self._file_bytes, self._files, layouts.TIMER_UNIT_HEAD.unpack_from
        position = last
        while 0 <= position < self.end and len(found) < count_max:
            file = files.get(position // file_bytes * file_bytes)
            if file is None:
                return found, layouts.NO_TIMER_UNIT
            size, previous, _ = head(file.map, position % file_bytes)
            if size != TIMER_UNIT_BYTES:
                return found, layouts.NO_TIMER_UNIT
            found.append(position)
            position = previous if previous < position else layouts.NO_TIMER_UNIT
        return found, position if 0 <= position < self.end else layouts.NO_TIMER_UNIT

    def gather(self, positions: Positions) -> Units:
        """The units at these positions, which must be there."""
        found = np.empty(len(positions), layouts.TIMER_UNIT)
        starts = positions // self._file_bytes * self._file_bytes
        for start in np.unique(starts).tolist():
            rows = np.flatnonzero(starts == start)
            found[rows] = self._files[start].rows[(positions[rows] - start) // TIMER_UNIT_BYTES]
        return found

    def remove_before(self, log_offset: int) -> None:
        """Deletes files whose messages all stood below this log offset."""
        for start in sorted(self._files)[:-1]:
            last = self._files[start].rows[self._per_file - 1]
            if int(last["physical_offset"]) >= log_offset:
                break
            self._remove(start)

    def sync(self) -> None:
        """Makes durable what was appended before the call."""
        unsynced, self._unsynced = self._unsynced, set()
        for start in unsynced:
            file = self._files.get(start)
            if file is not None:
                disk.sync_with_length(file.descriptor)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _count_in(self, start: int) -> int:
        units = self._files[start].rows
        magic = units["magic"]
        bad = (units["size"] != TIMER_UNIT_BYTES) | (magic < 0) | (magic >= _MAGICS)
        return int(bad.argmax()) if bad.any() else len(units)

    def _open(self, start: int) -> "_MappedFile":
        path = self._folder / names.offset_file_name(start)
        is_new = not path.exists()
        size, unit = self._file_bytes, layouts.TIMER_UNIT
        file = self._files[start] = _MappedFile(path, size, unit, self._per_file)
        if is_new:
            disk.sync_dir(self._folder)
        return file

    def _remove(self, start: int) -> None:
        file = self._files.pop(start)
        self._unsynced.discard(start)
        file.close()
        disk.unlink(file.path, missing_ok=True)


class _MappedFile:
    """A file of rows of one kind, written by its descriptor and read by its map. `anew`: without
    what it had."""

    def __init__(self, path: Path, size: int, kind: Any, count: int, anew: bool = False) -> None:
        self.path = path
        self.descriptor = disk.open_file(path, create=True, own=True)
        if anew:
            disk.set_length(self.descriptor, 0)
        if os.fstat(self.descriptor).st_size != size:
            disk.set_length(self.descriptor, size)
        self.map = mmap.mmap(self.descriptor, size, prot=mmap.PROT_READ)
        self.rows: NDArray[Any] = np.frombuffer(self.map, kind, count)

    def close(self) -> None:
        self.rows = self.rows[:0].copy()
        with suppress(BufferError):  # somebody still holds rows: the system unmaps it later
            self.map.close()
        os.close(self.descriptor)
