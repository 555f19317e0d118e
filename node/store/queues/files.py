"""The files of one queue: units by number, and the number of real ones."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.store.file_cache import OpenFile, OpenFiles
from node.store.log.segment_list import Listing
from protocol.derived.queue_unit import FILLER_SIZE, QUEUE_UNIT, UNIT_BYTES
from protocol.ids import Queue
from protocol.names import offset_file_name

Bools = NDArray[np.bool_]
Units = NDArray[Any]
"""Rows of QUEUE_UNIT.dtype."""

NO_UNITS: Units = np.empty(0, QUEUE_UNIT.dtype)
FEW_UNITS_MAX = 40
_STEP_UNITS = 4096
_LAST_UNITS = 200
"""About a page of them."""
_UNIT = QUEUE_UNIT.struct.unpack


def is_real(units: Units, limit: int) -> Bools:
    """Marks units that name a record below log offset `limit`, and fillers."""
    offset, size = units["physical_offset"], units["size"]
    below = offset + size.astype(np.int64) <= limit
    answer: Bools = (offset >= 0) & (size > 0) & (below | is_filler(units))
    return answer


def is_filler(units: Units) -> Bools:
    """Marks units that only fill the file before a queue's first one (fillPreBlank)."""
    answer: Bools = (units["physical_offset"] == 0) & (units["size"] == FILLER_SIZE)
    return answer


def count_real(units: Units, limit: int) -> int:
    """The number of units before the first that is not real. A few are faster one by one."""
    if len(units) > FEW_UNITS_MAX:
        real = is_real(units, limit)
        return len(units) if real.all() else int(np.argmin(real))
    count = 0
    for offset, size, _ in units.tolist():
        is_blank = offset == 0 and size == FILLER_SIZE
        if offset < 0 or size <= 0 or (offset + size > limit and not is_blank):
            break
        count += 1
    return count


class QueueFiles:
    """The files of one (topic, queue); numbers are queue offsets.

    Reads by `pread`: it sees at once what another process wrote, and a file that shrinks is an
    error.
    """

    def __init__(self, folder: Path, listing: Listing, files: OpenFiles) -> None:
        self.folder = folder
        self.file_bytes = listing.file_bytes
        self._files = files
        self._paths = dict(listing.files)
        self._starts = [start for start, _ in listing.files]

    @property
    def first(self) -> int:
        """The first file's first number; 0 without a file."""
        return self._starts[0] // UNIT_BYTES if self._starts else 0

    @property
    def capacity_end(self) -> int:
        """The number after the last file's last unit, written or not."""
        return (self._starts[-1] + self.file_bytes) // UNIT_BYTES if self._starts else 0

    @property
    def is_empty(self) -> bool:
        """True without any file."""
        return not self._starts

    def read(self, start: int, count: int) -> Units:
        """Units from number `start` on, real or not; fewer where the files end."""
        first, last = start * UNIT_BYTES, (start + count) * UNIT_BYTES
        parts: list[bytes] = []
        while first < last:
            file_start = first - first % self.file_bytes if self.file_bytes else first
            path = self._paths.get(file_start)
            if path is None:
                break
            stop = min(last, file_start + self.file_bytes)
            file = self._files.get(path, self.file_bytes)
            parts.append(file.read(first - file_start, stop - first))
            first = stop
        return QUEUE_UNIT.view(parts[0] if len(parts) == 1 else b"".join(parts))

    @property
    def queue(self) -> Queue:
        """The queue, by the names of the folders."""
        return Queue(self.folder.parent.name, int(self.folder.name))

    def place(self, number: int) -> tuple[Path, int]:
        """The file that holds a unit, or would hold it, and the position in it."""
        position = number * UNIT_BYTES
        start = position - position % self.file_bytes if self.file_bytes else 0
        return self.folder / offset_file_name(start), position - start

    def grow(self) -> bool:
        """Takes in the file after the last one; False if it does not exist yet."""
        start = self.capacity_end * UNIT_BYTES
        path = self.folder / offset_file_name(start)
        if not path.exists():
            return False
        self._paths[start] = path
        self._starts.append(start)
        return True

    def check_linked(self, number: int) -> None:
        """Raises FileVanished when the open file that would hold a number was removed."""
        start = number * UNIT_BYTES
        path = self._paths.get(start - start % self.file_bytes)
        if path is not None:
            self._files.get(path, self.file_bytes).check_linked()

    def forget(self) -> None:
        """Closes the files that are open: their names may lead to others by now."""
        for path in self._paths.values():
            self._files.forget(path)

    def drop_vanished(self) -> None:
        """Forgets files that retention has removed from the front."""
        while len(self._starts) > 1 and not self._paths[self._starts[0]].exists():
            self._files.forget(self._paths.pop(self._starts.pop(0)))

    def end_below(self, limit: int, thorough: bool = False) -> int:
        """The number after the last real unit below log offset `limit`.

        Bisects from the last file backwards: units rise, and nothing follows them. If the units
        right before the end that it finds are not all real, somebody changed bytes after the end;
        then it reads every unit of the last three files. `thorough` does that at once, as a
        broker's recovery does: after a power loss a page may be missing in their middle.
        """
        if thorough:
            return self._end_by_walk(limit)
        for file_start in reversed(self._starts):
            file = self._files.get(self._paths[file_start], self.file_bytes)
            count = _count_real(file, self.file_bytes // UNIT_BYTES, limit)
            if count:
                end = file_start // UNIT_BYTES + count
                last = min(count, _LAST_UNITS)
                is_sure = is_real(self.read(end - last, last), limit).all()
                return end if is_sure else self._end_by_walk(limit)
        return self.first

    def _end_by_walk(self, limit: int) -> int:
        position = self._starts[-3:][0] // UNIT_BYTES if self._starts else 0
        while True:
            units = self.read(position, _STEP_UNITS)
            real = is_real(units, limit)
            if not real.all():
                return position + int(np.argmin(real))
            if not len(units):
                return position
            position += len(units)


def _count_real(file: OpenFile, count: int, limit: int) -> int:
    """The number of real units at the file's head, by bisection."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        offset, size, _ = _UNIT(file.read(middle * UNIT_BYTES, UNIT_BYTES))
        is_blank = offset == 0 and size == FILLER_SIZE
        if is_blank or (offset >= 0 and size > 0 and offset + size <= limit):
            low = middle + 1
        else:
            high = middle
    return low
