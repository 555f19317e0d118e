"""Reads the ConsumeQueue files, `consumequeue/<topic>/<queue id>/`.

`QueueFiles` has the units of one queue by number, and finds where the real ones end. Then come the
queues that have files, and last `QueueReader`: the units on disk, and after them those derived from
the log.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from node.store.file_cache import FileVanished, OpenFile, OpenFiles, list_entries
from node.store.log.segments import Listing, list_folder
from protocol.derived.file_layouts import FILLER_SIZE, QUEUE_UNIT, UNIT_BYTES, QueueUnit
from protocol.errors import StoreDamaged, StoreError
from protocol.ids import Queue
from protocol.names import BATCH_QUEUE_DIR, CONSUME_QUEUE_DIR, offset_file_name

Bools = NDArray[np.bool_]
Units = NDArray[Any]
"""Rows of QUEUE_UNIT.dtype."""
NO_UNITS: Units = np.empty(0, QUEUE_UNIT.dtype)
FEW_UNITS_MAX = 40
ANY_OFFSET = 2**63 - 1
"""A limit that no record reaches."""

_WALK_STEP_UNITS = 4096
_LAST_UNITS = 200
"""About a page of them."""
_UNIT = QUEUE_UNIT.struct.unpack
_FIRST_ADVANCE_UNITS = 8
_ADVANCE_STEP_UNITS = 1024
_SAMPLE_PARTS = 16
_SAMPLE_PART_UNITS = 256
"""An estimate reads some parts of a queue, and in each of them some units."""


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
        self.first = self._starts[0] // UNIT_BYTES if self._starts else 0
        """The first file's first number; 0 without a file."""

    @property
    def capacity_end(self) -> int:
        """The number after the last file's last unit, written or not."""
        return (self._starts[-1] + self.file_bytes) // UNIT_BYTES if self._starts else 0

    @property
    def is_empty(self) -> bool:
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
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return np.frombuffer(data, QUEUE_UNIT.dtype, len(data) // UNIT_BYTES)

    @cached_property
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
            self.first = self._starts[0] // UNIT_BYTES

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
            count = _bisect_real(file, self.file_bytes // UNIT_BYTES, limit)
            if count:
                end = file_start // UNIT_BYTES + count
                last = min(count, _LAST_UNITS)
                is_sure = is_real(self.read(end - last, last), limit).all()
                return end if is_sure else self._end_by_walk(limit)
        return self.first

    def _end_by_walk(self, limit: int) -> int:
        position = self._starts[-3:][0] // UNIT_BYTES if self._starts else 0
        while True:
            units = self.read(position, _WALK_STEP_UNITS)
            real = is_real(units, limit)
            if not real.all():
                return position + int(np.argmin(real))
            if not len(units):
                return position
            position += len(units)


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


def _bisect_real(file: OpenFile, count: int, limit: int) -> int:
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


def queue_folder(root: Path, queue: Queue) -> Path:
    """The folder of a queue's files."""
    return root / CONSUME_QUEUE_DIR / queue.topic / str(queue.queue_id)


def list_queues(root: Path) -> dict[Queue, Path]:
    """Every queue that has a folder, sorted. Raises StorePermission."""
    found = {
        Queue(topic.name, int(folder.name)): folder
        for topic in _folders(root / CONSUME_QUEUE_DIR)
        for folder in _folders(topic)
        if folder.name.isascii() and folder.name.isdigit()
    }
    return dict(sorted(found.items()))


def list_topics(root: Path) -> list[str]:
    """Every topic that has a folder, sorted. Raises StorePermission."""
    return sorted(topic.name for topic in _folders(root / CONSUME_QUEUE_DIR))


def list_queue_ids(root: Path, topic: str) -> list[int]:
    """The queues of one topic that have a folder, sorted. Raises StorePermission."""
    names = [folder.name for folder in _folders(root / CONSUME_QUEUE_DIR / topic)]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def refuse_batch_queues(root: Path) -> None:
    """Raises StoreError where a broker keeps queues with one unit for a batch (RocketMQ: BatchCQ).

    Queues with one unit for each message beside them would stop that broker's next start
    (ConsumeQueueStore#queueTypeShouldBe).
    """
    for topic in _folders(root / BATCH_QUEUE_DIR):
        raise StoreError(
            f"{topic} is a queue of batches (BatchCQ), which a node does not have",
            "serve this store with a broker; keelog store dump and export read its messages",
        )


def _folders(parent: Path) -> Iterator[Path]:
    return (entry.path for entry in list_entries(parent) if entry.is_folder)


def open_queue_files(folder: Path, file_bytes: int | None, files: OpenFiles) -> QueueFiles:
    """The files of one queue, of `file_bytes` each; None: of the length that they have.

    Raises StoreDamaged when they do not join, StorePermission.
    """
    listing = list_folder(folder, file_bytes)
    listing.check()
    return QueueFiles(folder, listing, files)


def is_of_removed(files: QueueFiles, horizon: int) -> bool:
    """True for files that hold no unit of a topic's records from log offset `horizon` on.

    A worker removes them whole before it writes the first unit of a new topic of that name. So the
    last unit shows it.
    """
    end = files.end_below(ANY_OFFSET)
    return end <= files.first or int(files.read(end - 1, 1)["physical_offset"][0]) < horizon


def no_queue_files(folder: Path, file_bytes: int, files: OpenFiles) -> QueueFiles:
    return QueueFiles(folder, Listing([], file_bytes, []), files)


def find_queue_file_bytes(folders: Iterator[Path], otherwise: int) -> int:
    """The length of a queue file, from the first queue that has one. Raises StoreDamaged."""
    for folder in folders:
        listing = list_folder(folder)
        if listing.file_bytes:
            if listing.file_bytes % UNIT_BYTES:
                found = f"has {listing.file_bytes} bytes, not a multiple of {UNIT_BYTES}"
                where = next((str(path) for _, path in listing.files), str(folder))
                raise StoreDamaged(
                    where, 0, found, "rebuild it with: keelog store rebuild --queues"
                )
            return listing.file_bytes
    return otherwise


def list_strangers(root: Path) -> list[Path]:
    """What is not a folder where only folders of topics and queues belong."""
    base = root / CONSUME_QUEUE_DIR
    parents = (base, *_folders(base))
    return sorted(
        entry.path for parent in parents for entry in list_entries(parent) if not entry.is_folder
    )


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
        self.files = files
        self.file_units = files.file_bytes // UNIT_BYTES
        """The number of units in a full file."""
        self.first = files.first
        """The number of the first unit that can be read, fillers included."""
        self.disk_end = self.max_offset = end
        """The number after the last unit in a file, and in the queue; 0 when it never had one."""
        self._log_start = log_start
        self._derived = derived if derived is not None and len(derived.units) else None
        if self._derived is not None:
            self.max_offset = self._derived.first + len(self._derived.units)
            self.first = self._derived.first if files.is_empty else files.first
        self._min: tuple[int, int] | None = None
        self.seen_limit = -1
        """Running store: up to where the log's units are taken in."""

    @property
    def queue(self) -> Queue:
        return self.files.queue

    @property
    def min_offset(self) -> int:
        """The first unit whose record the log still has (ConsumeQueue#correctMinOffset)."""
        start = self._log_start()
        if self._min is None or self._min[0] != start:
            try:
                self._min = start, self._correct_min_offset(start)
            except FileVanished:
                self.drop_vanished()
                self._min = start, self._correct_min_offset(start)
        return self._min[1]

    def units(self, start: int, count: int) -> Units:
        """Units from number `start` on; fewer where the queue ends, none before it begins."""
        start, stop = max(start, self.first), min(start + count, self.max_offset)
        if start >= stop:
            return NO_UNITS
        if self._derived is None or stop <= self.disk_end:
            return self.files.read(start, stop - start)
        first, tail = self._derived.first, self._derived.units
        answer = np.empty(stop - start, QUEUE_UNIT.dtype)
        split = max(min(self.disk_end, stop) - start, 0)
        if split:
            answer[:split] = self.files.read(start, split)
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
        before = self.disk_end
        step = _FIRST_ADVANCE_UNITS
        while True:
            units = self.files.read(self.disk_end, step)
            if not len(units):
                if not self.files.grow():
                    break
                continue
            count = count_real(units, limit)
            self.disk_end = self.max_offset = self.disk_end + count
            if count < len(units):
                break
            step = _ADVANCE_STEP_UNITS
        if self.disk_end == before:
            self.files.check_linked(before)
        elif self._min is not None and self._min[1] >= before:
            self._min = None  # of units that are all gone the next one may be the first that is not
        self.seen_limit = limit

    def rewind(self, limit: int) -> None:
        """Running store: finds the end again; units above `limit` may have been replaced."""
        self.disk_end = self.max_offset = self.files.end_below(limit)
        self.seen_limit = limit
        self._min = None

    def ends_below(self, horizon: int) -> bool:
        """Running store: True if no unit names a record at or above a removed topic's horizon."""
        return horizon > 0 and (
            self.disk_end <= self.first or self._log_offset(self.disk_end - 1) < horizon
        )

    def drop_vanished(self) -> None:
        """Running store: drops the files that retention has removed from the front."""
        self.files.drop_vanished()
        self.first = self.first if self.files.is_empty else self.files.first
        self._min = None

    def _correct_min_offset(self, log_start: int) -> int:
        """The broker's rules, case by case, but never the number of a filler."""
        end = self.max_offset
        if end == 0 or self.first >= end:
            return end
        if self.files.is_empty:
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
