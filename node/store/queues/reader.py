"""Reads one queue: its units on disk, and after them those derived from the log."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from node.store.file_cache import FileVanished
from node.store.queues.files import NO_UNITS, QueueFiles, Units, count_real, is_filler
from protocol.derived.queue_unit import QUEUE_UNIT, QueueUnit
from protocol.ids import Queue

_FIRST_STEP_UNITS = 8
_STEP_UNITS = 1024
_SAMPLE_PARTS = 16
_SAMPLE_PART_UNITS = 256
"""An estimate reads some parts of a queue, and in each of them some units."""


class DerivedUnits(NamedTuple):
    """Units that the files lack, made from the log; `first` is the number of the first one."""

    first: int
    units: Units
    replaces_files: bool = False
    """True if the queue begins anew with them: the units in its files do not count."""


class FilePart(NamedTuple):
    """The numbers in one file of the queue: [`first`, `end`)."""

    first: int
    end: int


class QueueReader:
    """The units of one (topic, queue), with RocketMQ's minimum and maximum offset.

    The queue of a stopped store is fixed; in a running store `advance` moves its end.
    """

    def __init__(
        self,
        files: QueueFiles,
        end: int,
        log_start: Callable[[], int],
        derived: DerivedUnits | None = None,
    ) -> None:
        self._files = files
        self._disk_end = end
        self._log_start = log_start
        self._derived = derived if derived is not None and len(derived.units) else None
        self._min: tuple[int, int] | None = None
        self._seen_limit = -1

    @property
    def file_units(self) -> int:
        """The number of units in a full file."""
        return self._files.file_bytes // QUEUE_UNIT.size

    @property
    def queue(self) -> Queue:
        """The queue."""
        return self._files.queue

    def place(self, number: int) -> tuple[Path, int]:
        """The file that holds a unit, or would hold it, and the position in it."""
        return self._files.place(number)

    @property
    def first(self) -> int:
        """The number of the first unit that can be read, fillers included."""
        if self._files.is_empty and self._derived is not None:
            return self._derived.first
        return self._files.first

    @property
    def disk_end(self) -> int:
        """The number after the last unit in a file."""
        return self._disk_end

    @property
    def max_offset(self) -> int:
        """The number after the last unit; 0 when the queue never had one."""
        if self._derived is not None:
            return self._derived.first + len(self._derived.units)
        return self._disk_end

    @property
    def min_offset(self) -> int:
        """The first unit whose record the log still has (ConsumeQueue#correctMinOffset)."""
        start = self._log_start()
        if self._min is None or self._min[0] != start:
            try:
                self._min = start, self._correct_min_offset(start)
            except FileVanished:
                self._files.drop_vanished()
                self._min = start, self._correct_min_offset(start)
        return self._min[1]

    def units(self, start: int, count: int) -> Units:
        """Units from number `start` on; fewer where the queue ends, none before it begins."""
        start, stop = max(start, self.first), min(start + count, self.max_offset)
        if start >= stop:
            return NO_UNITS
        if self._derived is None or stop <= self._disk_end:
            return self._files.read(start, stop - start)
        first, tail = self._derived.first, self._derived.units
        answer = np.empty(stop - start, QUEUE_UNIT.dtype)
        split = max(min(self._disk_end, stop) - start, 0)
        if split:
            answer[:split] = self._files.read(start, split)
        answer[split:] = tail[max(start - first, 0) : stop - first]
        return answer

    def unit(self, number: int) -> QueueUnit | None:
        """One unit; None outside [`first`, `max_offset`)."""
        if number < self.first:
            return None
        found = self.units(number, 1)
        return QueueUnit(*found[0].tolist()) if len(found) else None

    def file_of(self, number: int) -> FilePart | None:
        """The file that holds a number, as far as it is filled; None outside the queue.

        A unit without a file counts as in the file that it would be in.
        """
        if not self.first <= number < self.max_offset:
            return None
        first = number - number % self.file_units
        return FilePart(first, min(first + self.file_units, self.max_offset))

    def file_parts(self) -> list[FilePart]:
        """All files, as far as they are filled."""
        step = self.file_units
        end = self.max_offset
        return [
            FilePart(first, min(first + step, end)) for first in range(self.first, end, step or 1)
        ]

    def advance(self, limit: int) -> None:
        """Running store: takes in units whose records end at or below log offset `limit`.

        Raises FileVanished if the queue's files were replaced: open the queue again.
        """
        if limit == self._seen_limit:
            return
        before = self._disk_end
        step = _FIRST_STEP_UNITS
        while True:
            units = self._files.read(self._disk_end, step)
            if not len(units):
                if not self._files.grow():
                    break
                continue
            count = count_real(units, limit)
            self._disk_end += count
            if count < len(units):
                break
            step = _STEP_UNITS
        if self._disk_end == before:
            self._files.check_linked(before)
        elif self._min is not None and self._min[1] >= before:
            self._min = None  # of units that are all gone the next one may be the first that is not
        self._seen_limit = limit

    def rewind(self, limit: int) -> None:
        """Running store: finds the end again; units above `limit` may have been replaced."""
        self._disk_end = self._files.end_below(limit)
        self._seen_limit = limit
        self._min = None

    def ends_below(self, horizon: int) -> bool:
        """Running store: True if no unit names a record at or above a removed topic's horizon."""
        return horizon > 0 and (
            self._disk_end <= self._files.first or self._log_offset(self._disk_end - 1) < horizon
        )

    def forget_files(self) -> None:
        """Running store: closes the files; do not use this reader again."""
        self._files.forget()

    def drop_vanished(self) -> None:
        """Running store: drops the files that retention has removed from the front."""
        self._files.drop_vanished()
        self._min = None

    def _correct_min_offset(self, log_start: int) -> int:
        """The broker's rules, case by case, but never the number of a filler."""
        end = self.max_offset
        if end == 0 or self.first >= end:
            return end
        if self._files.is_empty:
            # All units were made from the log: only a purge hides the first one's record.
            number = self._after_fillers(self.first, min(self.first + self.file_units, end))
            if number >= end or self._log_offset(number) >= log_start:
                return number
        if self._log_offset(end - 1) < log_start:
            return end
        if self.first == 0 and self._log_offset(0) >= log_start:
            return self._after_fillers(0, min(self.file_units, end))
        for part in self.file_parts():
            # A broker looks at the first file alone; it may be about to be removed.
            if self._log_offset(part.end - 1) >= log_start:
                return self._after_fillers(self._first_at_or_above(log_start, part), part.end)
        return end

    def _first_at_or_above(self, log_start: int, part: FilePart) -> int:
        """The broker's bisection in a file whose last unit names `log_start` or a higher offset."""
        low, high = part.first, part.end - 1
        while high - low > 1:
            middle = (low + high) // 2
            offset = self._log_offset(middle)
            if offset > log_start:
                high = middle
            elif offset == log_start:
                low = high = middle
            else:
                low = middle
        return low if self._log_offset(low) >= log_start else high

    def _log_offset(self, number: int) -> int:
        return int(self.units(number, 1)["physical_offset"][0])

    def _after_fillers(self, number: int, stop: int) -> int:
        units = self.units(number, 1)
        if not len(units) or not is_filler(units)[0]:
            return number
        filler = is_filler(self.units(number, stop - number))
        return stop if filler.all() else number + int(np.argmin(filler))


def bytes_of(reader: QueueReader) -> int:
    """The bytes of a queue's records in the log: their sum up to 4,096 messages, and above it the
    mean of as many, spread over the queue, times their number."""
    low, high = reader.min_offset, reader.max_offset
    count = high - low
    if count <= _SAMPLE_PARTS * _SAMPLE_PART_UNITS:
        return _record_bytes(reader.units(low, count))
    starts = [low + count * part // _SAMPLE_PARTS for part in range(_SAMPLE_PARTS)]
    seen = [reader.units(start, _SAMPLE_PART_UNITS) for start in starts]
    return sum(map(_record_bytes, seen)) * count // sum(map(len, seen))


def _record_bytes(units: Units) -> int:
    return int(units["size"][~is_filler(units)].sum(dtype=np.int64))
