"""The ConsumeQueue files of one worker: found, cut, read, written, synced, watched.

Positions count units from queue offset 0 of the queue. Files are sparse and written by `pwrite`.

A file that somebody removes stays open, and a worker would go on in it, unseen by readers. So each
look checks of a bounded number of files whether they are still where they were.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from node.runtime.disk import NO_DESCRIPTORS, write_all
from node.store.file_sizes import sorted_entries
from protocol import names
from protocol.derived.file_layouts import FILLER_SIZE, QUEUE_UNIT, UNIT_BYTES, QueueUnit
from protocol.derived.queue_build import QueueEnd
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from workers.sparse_file import Unsynced, make_file, zero_from

CHECKED_FILES_MAX = 3
"""Without progress the newest files of a queue are looked through, as many as RocketMQ does."""

FIRST_UNIT = QueueUnit(0, FILLER_SIZE, 0)

IsLogged = Callable[[Queue, int, QueueUnit], bool]
"""Whether the log has the record that a unit at a position of a queue names."""

OPEN_LOOKS_MAX = 512
"""Queues whose open file is looked at, a microsecond each."""
FOLDER_LOOKS_MAX = 16
"""Queues whose folder is listed."""


class QueueBrokenError(Exception):
    """The files of one queue are not what this worker wrote; the queue must be rebuilt."""

    def __init__(self, queue: Queue, why: str) -> None:
        super().__init__(f"{queue.topic}-{queue.queue_id}: {why}")
        self.queue = queue
        self.why = why


class _File(NamedTuple):
    queue: Queue
    base: int


class QueueWriter:
    """All queue files below one store. One thread writes; `sync` may run in another."""

    def __init__(self, root: Path, file_bytes: int, temp: Path, open_max: int) -> None:
        assert file_bytes % UNIT_BYTES == 0
        self.root = root / names.CONSUME_QUEUE_DIR
        self.units_per_file = file_bytes // UNIT_BYTES
        self._file_bytes = file_bytes
        self._temp = temp
        self._open_max = open_max
        self._open: OrderedDict[_File, int] = OrderedDict()
        self._unsynced: Unsynced[_File] = Unsynced(self._path)

    def make_root(self) -> None:
        """Makes the folder of all queues: a missing one means that somebody deleted the queues."""
        if not self.root.is_dir():
            disk.make_dir(self.root)
            self._unsynced.add_folders(self.root.parent)

    # Finding

    def queues(self) -> list[Queue]:
        found = []
        for topic in sorted_entries(self.root):
            if names.is_folder_name(topic.name):
                found += [
                    Queue(topic.name, int(folder.name))
                    for folder in sorted_entries(topic)
                    if folder.name.removeprefix("-").isdecimal() and folder.is_dir()
                ]
        return found

    def bases(self, queue: Queue) -> list[int]:
        """The first position of each file of a queue.

        Raises QueueBrokenError for a file of another length or a gap between files.
        """
        folder = self._folder(queue)
        found: list[int] = []
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            start = names.parse_offset_file_name(path.name)
            if start is None:
                continue
            if path.stat().st_size != self._file_bytes:
                raise QueueBrokenError(queue, f"{path.name} has {path.stat().st_size} bytes")
            base, rest = divmod(start, UNIT_BYTES)
            if (
                rest
                or base % self.units_per_file
                or (found and base != found[-1] + self.units_per_file)
            ):
                raise QueueBrokenError(queue, f"{path.name} does not follow the file before it")
            found.append(base)
        return found

    # Cutting

    def cut(self, queue: Queue, limit: int, is_logged: IsLogged) -> tuple[QueueEnd, int]:
        """Drops every unit whose record begins at `limit` or above, and zeroes its place.

        Returns the queue's end, and the position that its first file begins at.
        The units below must be whole and in order, as after a sync that vouches for them. After
        them may be anything, a unit of which only some bytes reached the disk, too: the last
        one kept must be `is_logged`.
        """
        bases = self.bases(queue)
        first = bases[0] if bases else 0
        while bases:
            end = self._end_below(queue, bases[-1], limit)
            while end > bases[-1] and not (
                self._is_in_order(queue, first, end - 1, limit)
                and is_logged(queue, end - 1, self.unit(queue, end - 1))
            ):
                end -= 1
            if end > bases[-1]:
                self._zero(queue, bases[-1], end)
                return QueueEnd(end, _physical_end(self.unit(queue, end - 1))), first
            self._drop_file(queue, bases.pop())
        self._drop_folder(queue)
        return QueueEnd(), 0

    def _end_below(self, queue: Queue, base: int, limit: int) -> int:
        """A position in a file that a unit below `limit` precedes and none follows at once."""
        if not self._is_below(queue, base, limit):
            return base
        low, high = base, base + self.units_per_file
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_below(queue, middle, limit) else (low, middle)
        return high

    def _is_in_order(self, queue: Queue, first: int, position: int, limit: int) -> bool:
        unit = self.unit(queue, position)
        before = self.unit(queue, position - 1) if position > first else FIRST_UNIT
        is_new = unit.physical_offset >= _physical_end(before)
        return is_new and self._is_below(queue, position, limit)

    def last_good(self, queue: Queue, limit: int) -> QueueEnd:
        """Where the queue's believable units end, without progress to vouch for them.

        Units count while they are not empty, rise, and their records end at `limit` or below.
        Only the newest files are looked through; with nothing believable in them there is no end.
        """
        state = QueueEnd()
        for base in self.bases(queue)[-CHECKED_FILES_MAX:]:
            units = self.read(queue, base, self.units_per_file)
            ends = units["physical_offset"].astype(np.int64) + units["size"]
            filler = (units["physical_offset"] == 0) & (units["size"] == FILLER_SIZE)
            ends[filler] = 0
            good = (units["size"] > 0) & (ends <= limit)
            good[1:] &= (ends[1:] > ends[:-1]) | filler[1:]
            good[0] &= filler[0] or int(ends[0]) > state.physical_end
            count = len(good) if good.all() else int(np.argmin(good))
            if count:
                state = QueueEnd(base + count, max(int(ends[count - 1]), state.physical_end))
            if count < len(good):
                break
        return state

    def trim(self, queue: Queue, min_offset: int) -> None:
        """Deletes files whose last record begins below `min_offset`, oldest first, never the last.

        RocketMQ: MappedFileQueue#deleteExpiredFileByOffset. Raises QueueBrokenError.
        """
        bases = self.bases(queue)
        for base in bases[:-1]:
            last = self.unit(queue, base + self.units_per_file - 1)
            if last.size <= 0 or last.physical_offset >= min_offset:
                break
            self._drop_file(queue, base)

    def remove(self, queue: Queue) -> None:
        """Deletes all files of a queue, whatever they are. Raises StoreDamaged for a folder."""
        folder = self._folder(queue)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir():
                hint = "move it away, as by: keelog store repair DIR"
                raise StoreDamaged(str(path), 0, "is a folder among a queue's files", hint)
        for file in [file for file in self._open if file.queue == queue]:
            os.close(self._open.pop(file))
        # In order: what is left has no gap, and ends with the queue's last unit.
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            disk.unlink(path)
        self._drop_folder(queue)

    # Whether they are in place

    def is_unlinked(self, queue: Queue, position: int) -> bool:
        """Whether the file of a position is open, and has no name any more."""
        descriptor = self._open.get(_File(queue, self._base(position)))
        return descriptor is not None and not os.fstat(descriptor).st_nlink

    def is_replaced(self, queue: Queue, position: int) -> bool:
        """Whether the file of a position is open, and its name is not that of the open one."""
        file = _File(queue, self._base(position))
        descriptor = self._open.get(file)
        if descriptor is None:
            return False
        try:
            return not os.path.samestat(os.fstat(descriptor), self._path(file).stat())
        except FileNotFoundError:
            return True

    # Reading and writing

    def unit(self, queue: Queue, position: int) -> QueueUnit:
        base = self._base(position)
        descriptor = self._descriptor(_File(queue, base))
        return QUEUE_UNIT.read(os.pread(descriptor, UNIT_BYTES, (position - base) * UNIT_BYTES))

    def read(self, queue: Queue, start: int, count: int) -> NDArray[Any]:
        """Units from position `start` on, within one file or across files."""
        units = np.zeros(count, QUEUE_UNIT.dtype)
        done = 0
        while done < count:
            base = self._base(start + done)
            part = min(base + self.units_per_file - start - done, count - done)
            data = os.pread(
                self._descriptor(_File(queue, base)),
                part * UNIT_BYTES,
                (start + done - base) * UNIT_BYTES,
            )
            units[done : done + part] = QUEUE_UNIT.view(data)
            done += part
        return units

    def write(self, queue: Queue, start: int, units: NDArray[Any]) -> None:
        """Writes units in one run a file, making files where there are none.

        Raises OSError (a full disk among them) with the run written in part; the same call again
        completes it. Raises QueueBrokenError when a file has vanished.
        """
        data = units.view(np.uint8).data
        while len(data):
            file = _File(queue, self._base(start))
            place = (start - file.base) * UNIT_BYTES
            part = data[: self._file_bytes - place]
            self._write_part(file, place, part)
            data, start = data[len(part) :], start + len(part) // UNIT_BYTES

    def write_unit(self, queue: Queue, position: int, unit: bytes) -> None:
        """As `write`, of one unit."""
        base = self._base(position)
        self._write_part(_File(queue, base), (position - base) * UNIT_BYTES, memoryview(unit))

    def _write_part(self, file: _File, place: int, part: memoryview) -> None:
        if place:
            write_all(self._descriptor(file), part, place)
        else:
            try:
                write_all(self._descriptor(file), part, 0)
            except FileNotFoundError:
                self._keep(file, self._make(file, part))
                folder = self._folder(file.queue)
                folders = (folder, folder.parent, self.root, self.root.parent)
                self._unsynced.add_folders(*folders)
        self._unsynced.add(file)

    def _make(self, file: _File, part: memoryview) -> int:
        try:
            return make_file(self._path(file), self._file_bytes, 0, part, self._temp)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self.close()  # ours are free for the next try
            raise

    def sync(self) -> None:
        """Makes durable all that `write`, `cut` and `remove` did before the call."""
        self._unsynced.sync()

    def close(self) -> None:
        """Closes all files; syncs nothing."""
        while self._open:
            os.close(self._open.popitem()[1])

    # Inside

    def _folder(self, queue: Queue) -> Path:
        assert names.is_folder_name(queue.topic), queue
        return self.root / queue.topic / str(queue.queue_id)

    def _path(self, file: _File) -> Path:
        return self._folder(file.queue) / names.offset_file_name(file.base * UNIT_BYTES)

    def _base(self, position: int) -> int:
        return position - position % self.units_per_file

    def _descriptor(self, file: _File) -> int:
        descriptor = self._open.get(file)
        if descriptor is not None:
            self._open.move_to_end(file)
            return descriptor
        while True:
            try:
                return self._keep(file, disk.open_file(self._path(file)))
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS or not self._open:
                    raise
                # No descriptor is free but those of our own.
                os.close(self._open.popitem(last=False)[1])

    def _keep(self, file: _File, descriptor: int) -> int:
        self._open[file] = descriptor
        if len(self._open) > self._open_max:
            os.close(self._open.popitem(last=False)[1])
        return descriptor

    def _is_below(self, queue: Queue, position: int, limit: int) -> bool:
        unit = self.unit(queue, position)
        return unit.size > 0 and unit.physical_offset < limit

    def _zero(self, queue: Queue, base: int, position: int) -> None:
        file = _File(queue, base)
        start = (position - base) * UNIT_BYTES
        if zero_from(self._descriptor(file), start, self._file_bytes):
            self._unsynced.add(file)

    def _drop_file(self, queue: Queue, base: int) -> None:
        file = _File(queue, base)
        descriptor = self._open.pop(file, None)
        if descriptor is not None:
            os.close(descriptor)
        disk.unlink(self._path(file), missing_ok=True)
        self._unsynced.add_folders(self._folder(queue))

    def _drop_folder(self, queue: Queue) -> None:
        """Removes a queue's empty folder, and its topic's: RocketMQ takes a folder for a queue."""
        for folder in (self._folder(queue), self._folder(queue).parent):
            try:
                disk.remove_dir(folder)
            except OSError:
                # Not empty, or gone: the topic's folder is also the other workers'.
                return
            self._unsynced.add_folders(folder.parent)


def _physical_end(unit: QueueUnit) -> int:
    """Log offset after a unit's record; fillers have none."""
    return -1 if unit.size == FILLER_SIZE else unit.physical_offset + unit.size


class QueueWatch:
    """Of one worker's queues. Call `look` between turns, about once a second."""

    def __init__(self, files: QueueWriter) -> None:
        self._files = files
        self._root: tuple[int, int] | None = None
        self._listed_at = 0
        self._firsts: dict[Queue, int] = {}
        self._open = _Rotation(OPEN_LOOKS_MAX)
        self._folders = _Rotation(FOLDER_LOOKS_MAX)

    def begin(self) -> None:
        """From now on the files that are there are to stay."""
        status = self._files.root.stat()
        self._root, self._listed_at = (status.st_dev, status.st_ino), 0
        self.trimmed()

    def trimmed(self) -> None:
        """The worker may have deleted first files of queues."""
        self._firsts = {}

    def look(self, ends: Mapping[Queue, QueueEnd]) -> dict[Queue, str]:
        """Which of these queues have lost files, and what is missing."""
        try:
            return self._look(ends)
        except FileNotFoundError:
            if self._files.root.is_dir():
                return {}  # somebody removes files right now: the next look sees which are gone
            return dict.fromkeys(ends, f"{self._files.root} is gone")

    def _look(self, ends: Mapping[Queue, QueueEnd]) -> dict[Queue, str]:
        """Raises FileNotFoundError for what goes in this moment."""
        root = self._files.root
        status = root.stat()
        if (status.st_dev, status.st_ino) != self._root:
            return dict.fromkeys(ends, f"{root} is another folder")
        lost: dict[Queue, str] = {}
        if status.st_mtime_ns != self._listed_at:
            self._listed_at = status.st_mtime_ns
            topics = {entry.name for entry in root.iterdir()}
            for queue in ends:
                if queue.topic not in topics:
                    lost[queue] = f"{root / queue.topic} is gone"
        for queue in self._open.some(ends):
            if self._files.is_unlinked(queue, _last(ends[queue])):
                lost[queue] = "its last file is gone"
        for queue in self._folders.some(ends):
            if why := self._missing(queue, _last(ends[queue])):
                lost[queue] = why
        return lost

    def _missing(self, queue: Queue, last: int) -> str:
        try:
            bases = self._files.bases(queue)
            if not bases or not bases[0] <= last < bases[-1] + self._files.units_per_file:
                return "its last file is gone"
            if self._files.is_replaced(queue, last):
                return "its last file is another one"
        except QueueBrokenError as error:
            return error.why
        first = self._firsts.setdefault(queue, bases[0])
        return "its first file is gone" if bases[0] > first else ""


class _Rotation:
    """Goes round through the queues, some with each call."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._left: list[Queue] = []

    def some(self, ends: Mapping[Queue, QueueEnd]) -> list[Queue]:
        """The next ones that have units."""
        if not self._left:
            self._left = list(ends)
        some = [self._left.pop() for _ in range(min(self._count, len(self._left)))]
        return [queue for queue in some if queue in ends and ends[queue].end]


def _last(end: QueueEnd) -> int:
    assert end.end is not None
    return end.end - 1
