"""`timerlog/`: one unit for each timer message that has waited (RocketMQ: TimerLog).

Positions count on through the files. A file never changes its length, and closes with a blank.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.runtime import disk
from protocol.derived.file_layouts import (
    NO_TIMER_UNIT,
    TIMER_BLANK_MAGIC,
    TIMER_LOG_FILE_BYTES,
    TIMER_UNIT,
    TIMER_UNIT_BYTES,
    TIMER_UNIT_HEAD,
    timer_units_of_file,
)
from protocol.names import offset_file_name, parse_offset_file_name

Units = NDArray[Any]
Positions = NDArray[np.int64]
_BLANK = struct.Struct(">iqi")
_MAGICS = 16
"""A magic is below: a sum of ROLL, DELETE and 1."""


class _TimerLogFile:
    """One open file."""

    def __init__(self, path: Path, file_bytes: int) -> None:
        self.path = path
        self.descriptor = disk.open_file(path, create=True, own=True)
        if os.fstat(self.descriptor).st_size != file_bytes:
            disk.set_length(self.descriptor, file_bytes)
        self.map = mmap.mmap(self.descriptor, file_bytes, prot=mmap.PROT_READ)
        self.units: Units = np.frombuffer(self.map, TIMER_UNIT, timer_units_of_file(file_bytes))

    def close(self) -> None:
        self.units = np.empty(0, TIMER_UNIT)
        with suppress(BufferError):  # somebody still holds units: the system unmaps it later
            self.map.close()
        os.close(self.descriptor)


class TimerLog:
    """The files, for their one writing process. `file_bytes`: the length of each."""

    def __init__(self, folder: Path, file_bytes: int = TIMER_LOG_FILE_BYTES) -> None:
        """Opens what is there, and cuts off the bytes after the last whole unit."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._per_file = timer_units_of_file(file_bytes)
        self._files: dict[int, _TimerLogFile] = {}
        self._unsynced: set[int] = set()
        disk.make_durable_dir(folder)
        starts = sorted(
            start
            for path in folder.iterdir()
            if (start := parse_offset_file_name(path.name)) is not None and start % file_bytes == 0
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
        """Forgets all units."""
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
                blank = _BLANK.pack(left, 0, TIMER_BLANK_MAGIC)
                disk.write_all(file.descriptor, blank, self.end - start)
                self.end = start + self._file_bytes

    def files(self) -> Iterator[tuple[Positions, Units]]:
        """The units of each file, and their positions."""
        for start, file in sorted(self._files.items()):
            count = min(self._per_file, max(0, self.end - start) // TIMER_UNIT_BYTES)
            yield start + np.arange(count, dtype=np.int64) * TIMER_UNIT_BYTES, file.units[:count]

    def unit_at(self, position: int) -> Any:
        """One unit; None where the log has none any more."""
        file = self._files.get(position // self._file_bytes * self._file_bytes)
        if file is None or position >= self.end:
            return None
        return file.units[position % self._file_bytes // TIMER_UNIT_BYTES]

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
        file_bytes, files, head = self._file_bytes, self._files, TIMER_UNIT_HEAD.unpack_from
        position = last
        while 0 <= position < self.end and len(found) < count_max:
            file = files.get(position // file_bytes * file_bytes)
            if file is None:
                break
            size, previous, _ = head(file.map, position % file_bytes)
            if size != TIMER_UNIT_BYTES:
                break
            found.append(position)
            if previous >= position:
                break
            position = previous
        else:
            if 0 <= position < self.end:
                return found, position
        return found, NO_TIMER_UNIT

    def gather(self, positions: Positions) -> Units:
        """The units at these positions, which must be there."""
        found = np.empty(len(positions), TIMER_UNIT)
        starts = positions // self._file_bytes * self._file_bytes
        for start in np.unique(starts).tolist():
            rows = np.flatnonzero(starts == start)
            found[rows] = self._files[start].units[(positions[rows] - start) // TIMER_UNIT_BYTES]
        return found

    def remove_before(self, log_offset: int) -> None:
        """Deletes files whose messages all stood below this log offset."""
        for start in sorted(self._files)[:-1]:
            last = self._files[start].units[self._per_file - 1]
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
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _count_in(self, start: int) -> int:
        """The units of a file before the first other bytes."""
        units = self._files[start].units
        magic = units["magic"]
        bad = (units["size"] != TIMER_UNIT_BYTES) | (magic < 0) | (magic >= _MAGICS)
        return int(bad.argmax()) if bad.any() else len(units)

    def _open(self, start: int) -> _TimerLogFile:
        path = self._folder / offset_file_name(start)
        is_new = not path.exists()
        file = self._files[start] = _TimerLogFile(path, self._file_bytes)
        if is_new:
            disk.sync_dir(self._folder)
        return file

    def _remove(self, start: int) -> None:
        file = self._files.pop(start)
        self._unsynced.discard(start)
        file.close()
        disk.unlink(file.path, missing_ok=True)
