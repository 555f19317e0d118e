"""What a rebuild makes of the records of a range: units of queues and keys of the index, as files.

Units are at their queue offsets, put there by `pwrite` below a folder that is being made, so
writers of different ranges never meet in one place. They must not silently leave a place out,
or meet after all: each reports its runs, and the driver compares them.

Each range of the log leaves its keys in a file, in log order. Which entry of which index file a key
becomes depends on how many keys come before it, and that is known when all ranges have been read.
"""

import contextlib
import os
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keelog.pipeline.errors import JobFailed, StoreUnreadable
from keelog.pipeline.jobs.publication import ObjectFolder, OutFile
from node.runtime import disk
from protocol.derived import dispatch_request, file_layouts, index_build, queue_build
from protocol.derived.file_layouts import UNIT_BYTES, IndexGeometry, IndexHeader, KeyBatch
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.names import is_folder_name, next_index_file_name, offset_file_name
from protocol.record.columns import Ints

BATCH_ROWS = 1 << 16
"""This many units are gathered before they are sorted by queue: a few MiB."""
RUNS_MAX = 100_000
"""Of one range: more are not a log of a node or broker, and would only cost the driver memory."""
_TABLE_MAX = 1 << 16
OPEN_FILES_MAX = 512
_FILLERS_AT_ONCE = 1 << 16
KEY_DTYPE = np.dtype([("key_hash", "<i4"), ("physical_offset", "<i8"), ("store_timestamp", "<i8")])
WRITE_KEYS = 1 << 16
READ_KEYS = 1 << 20
"""So many keys of an index file are entered at once: 20 MB, and about 100 MB to sort them."""
OpenKeys = Callable[[str], IO[bytes]]
"""Opens a spilled file by its path."""
Spilled = Sequence[tuple[str, int]]
"""The ranges' keys in log order: where they are, and how many."""
_SLOTS_DTYPE = np.dtype(">i4")
_CHUNK_BYTES = 1 << 16
_COPY_BYTES = 1 << 20


class UnitRun(NamedTuple):
    """Units [`start`, `end`) of a queue, and the log offsets of the first and the last record."""

    start: int
    end: int
    first_offset: int
    last_offset: int


Runs = dict[Queue, list[UnitRun]]


class RebuiltRun(NamedTuple):
    """Units of consecutive queue offsets of one queue, from `start` on."""

    queue: Queue
    start: int
    units: NDArray[Any]


class UnitGatherer:
    """Takes dispatch requests in log order and gives them back as rows by queue.

    Records of topics that cannot be folders have no queue, as with the worker, unless `every`.
    """

    def __init__(self, every: bool = False) -> None:
        self._every = every
        self._queues: dict[Queue, int] = {}
        self._batches: list[tuple[Ints, Ints, NDArray[Any]]] = []
        self._rows = self._runs = 0
        self.runs: Runs = {}

    def add(
        self, requests: dispatch_request.DispatchRequests, removed: Removed = NOTHING_REMOVED
    ) -> Iterator[RebuiltRun]:
        """Takes a window's records; gives rows when enough have been gathered."""
        columns = removed.dispatched(requests.columns)
        if columns is not requests.columns:
            requests = dispatch_request.DispatchRequests(columns, requests.delay_levels_ms)
        if not len(columns):
            return
        rows = np.flatnonzero(requests.is_queued)
        if not len(rows):
            return
        key = self._queue_numbers(requests, rows)
        kept = key >= 0
        key, placed = key[kept], rows[kept]
        offsets = requests.columns.queue_offset[placed]
        self._batches.append((key, offsets, requests.units(placed)))
        self._rows += len(rows)
        if self._rows >= BATCH_ROWS:
            yield from self.flush()

    def _queue_numbers(self, requests: dispatch_request.DispatchRequests, rows: Ints) -> Ints:
        """Each row's queue, as a number among those met; -1 for none."""
        topic_id, queue_id = requests.topic_id[rows], requests.columns.queue_id[rows]
        low, high = int(queue_id.min()), int(queue_id.max())
        count = high - low + 1
        size = len(requests.topics) * count
        places = topic_id * count + (queue_id - low)
        # Queue ids are few: a table is ten times faster than sorting.
        is_table = size <= _TABLE_MAX
        met, where = (
            (np.flatnonzero(np.bincount(places)), places)
            if is_table
            else np.unique(places, return_inverse=True)
        )
        numbers = np.full(size if is_table else len(met), -1, np.int64)
        for at, place in enumerate(met.tolist()):
            queue = Queue(requests.topics[place // count], low + place % count)
            if self._every or is_folder_name(queue.topic):
                number = self._queues.setdefault(queue, len(self._queues))
                numbers[place if is_table else at] = number
        chosen: Ints = numbers[where]
        return chosen

    def flush(self) -> Iterator[RebuiltRun]:
        """Gives what is left, as runs of consecutive queue offsets, and notes them in `runs`.

        Rows of one queue that do not rise are runs of their own, in log order. Raises JobFailed.
        """
        batches, self._batches, self._rows = self._batches, [], 0
        if not batches:
            return
        key, offset = (np.concatenate([batch[at] for batch in batches]) for at in (0, 1))
        units = _joined([batch[2] for batch in batches])
        # Numbers of two bytes are sorted by counting them.
        small = len(self._queues) <= np.iinfo(np.uint16).max
        order = np.argsort(key.astype(np.uint16) if small else key, kind="stable")
        key, offset, units = key[order], offset[order], units[order]
        breaks = np.flatnonzero((np.diff(key) != 0) | (np.diff(offset) != 1)) + 1
        starts, queues = [0, *breaks.tolist()] if len(key) else [], list(self._queues)
        for start, stop in zip(starts, [*starts[1:], len(key)], strict=True):
            rows = RebuiltRun(queues[int(key[start])], int(offset[start]), units[start:stop])
            self._note(rows)
            yield rows

    def _note(self, rows: RebuiltRun) -> None:
        runs = self.runs.setdefault(rows.queue, [])
        first, last = (int(rows.units[at]["physical_offset"]) for at in (0, -1))
        end = rows.start + len(rows.units)
        if runs and runs[-1].end == rows.start:
            runs[-1] = runs[-1]._replace(end=end, last_offset=last)
        else:
            runs.append(UnitRun(rows.start, end, first, last))
            self._runs += 1
        if self._runs > RUNS_MAX:
            raise JobFailed(
                f"queue offsets are in no order: {rows.queue} has {rows.start} in the record at"
                f" {first}, behind {self._runs} breaks",
                "keelog store rebuild, which numbers units as a broker does",
            )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Not np.concatenate, which returns the machine's byte order."""
    joined = np.empty(sum(map(len, parts)), parts[0].dtype)
    at = 0
    for part in parts:
        joined[at : at + len(part)] = part
        at += len(part)
    return joined


def joined_runs(all_runs: Sequence[Mapping[Queue, Sequence[UnitRun]]]) -> Runs:
    """The runs of all ranges by queue, rising by queue offset."""
    joined: Runs = {}
    for runs in all_runs:
        for queue, found in runs.items():
            joined.setdefault(queue, []).extend(found)
    return {queue: sorted(joined[queue]) for queue in sorted(joined)}


def run_problems(runs: Runs) -> Iterator[str]:
    """Names every place where a queue's units are missing, doubled, or below 0."""
    for queue, found in runs.items():
        name, before = f"{queue.topic}/{queue.queue_id}", found[0]
        if before.start < 0:
            yield f"{name}: the queue offset is below 0"
        for run in found[1:]:
            if run.start > before.end:
                yield (
                    f"{name}: queue offsets {before.end} to {run.start - 1} are missing: the record"
                    f" at {before.last_offset} has {before.end - 1}, the one at {run.first_offset}"
                    f" {run.start}"
                )
            elif run.start < before.end:
                last = min(run.end, before.end) - 1
                yield (
                    f"{name}: queue offsets {run.start} to {last} are there twice: in records"
                    f" between {before.first_offset} and {before.last_offset}, and between"
                    f" {run.first_offset} and {run.last_offset}"
                )
            before = max(before, run, key=lambda one: one.end)


def unit_count(runs: Runs) -> int:
    """How many units all queues have."""
    return sum(run.end - run.start for found in runs.values() for run in found)


class UnitFiles:
    """Writes units of any queue. The same units may be written again, also by two at once."""

    def __init__(self, folder: Path, file_bytes: int, syncs: bool = False) -> None:
        """`folder` must be there. `syncs`: what was written is durable when `close` returns."""
        self._folder = folder
        self._file_bytes = file_bytes
        self._syncs = syncs
        self._open: OrderedDict[Path, int] = OrderedDict()

    def write(self, queue: Queue, start: int, units: NDArray[Any]) -> None:
        """Puts units from number `start` on. Raises OSError, also when `folder` has gone."""
        position = start * UNIT_BYTES
        view = units.view(np.uint8).data
        while len(view):
            base = position - position % self._file_bytes
            part = view[: base + self._file_bytes - position]
            disk.write_all(self._descriptor(queue, base), part, position - base)
            view, position = view[len(part) :], position + len(part)

    def fill(self, queue: Queue, first: int) -> None:
        """Puts the filler units before the queue's first one into the file that holds it."""
        start = first - first % (self._file_bytes // UNIT_BYTES)
        while start < first:
            count = min(_FILLERS_AT_ONCE, first - start)
            self.write(queue, start, queue_build.filler_units(count))
            start += count

    def close(self) -> None:
        """Closes all files."""
        while self._open:
            self._end(self._open.popitem()[1])

    def _descriptor(self, queue: Queue, base: int) -> int:
        folder = self._folder / queue.topic / str(queue.queue_id)
        path = folder / offset_file_name(base)
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._open.move_to_end(path)
            return descriptor
        try:
            descriptor = disk.open_file(path, create=True)
        except FileNotFoundError:
            # Never the folder of all: a late task of an earlier attempt must not bring it back.
            for part in (folder.parent, folder):
                make_one(part)
            descriptor = disk.open_file(path, create=True)
        if os.fstat(descriptor).st_size != self._file_bytes:
            disk.set_length(descriptor, self._file_bytes)
        self._open[path] = descriptor
        if len(self._open) > OPEN_FILES_MAX:
            self._end(self._open.popitem(last=False)[1])
        return descriptor

    def _end(self, descriptor: int) -> None:
        try:
            if self._syncs:
                disk.sync_with_length(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def whole_file(temporary: Path, target: Path, syncs: bool) -> Iterator[int]:
    """Gives the descriptor of a new file, which gets its name when the caller has filled it."""
    descriptor = disk.open_file(temporary, create=True, empty=True)
    try:
        yield descriptor
        if syncs:
            disk.sync_with_length(descriptor)
        disk.rename(temporary, target)
    finally:
        os.close(descriptor)
        disk.unlink(temporary, missing_ok=True)


def make_one(folder: Path) -> None:
    """Makes a folder, not those above it; another task may make it at this moment."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(disk.FOLDER_MODE)


class KeySlice(NamedTuple):
    """Keys [`start`, `stop`) of a spilled file."""

    path: str
    start: int
    stop: int


class KeySpill:
    """Gathers one range's keys, and gives them to `put`: bytes, and where in the file they go."""

    def __init__(self, with_tags: bool, put: Callable[[memoryview, int], object]) -> None:
        self._with_tags = with_tags
        self._put = put
        self._waiting: list[NDArray[Any]] = []
        self._written = 0
        self.count = 0

    def add(self, requests: dispatch_request.DispatchRequests) -> None:
        """Takes the keys of a window's records, as the index worker enters them."""
        keys = dispatch_request.key_batch(requests, self._with_tags)
        rows = np.empty(len(keys.key_hash), KEY_DTYPE)
        for name, column in zip(KeyBatch._fields, keys, strict=True):
            rows[name] = column
        self._waiting.append(rows)
        self.count += len(rows)
        if self.count - self._written >= WRITE_KEYS:
            self.flush()

    def flush(self) -> None:
        """Gives away what waits."""
        waiting, self._waiting = self._waiting, []
        for rows in waiting:
            self._put(rows.view(np.uint8).data, self._written * rows.itemsize)
            self._written += len(rows)


def key_slices(spilled: Spilled, start: int, stop: int) -> tuple[KeySlice, ...]:
    """The pieces that hold the keys [`start`, `stop`) of all that are `spilled`, in order."""
    pieces: list[KeySlice] = []
    before = 0
    for path, count in spilled:
        low, high = max(start - before, 0), min(stop - before, count)
        if low < high:
            pieces.append(KeySlice(path, low, high))
        before += count
    return tuple(pieces)


def open_keys(path: str) -> IO[bytes]:
    """A spilled file on a file system. Raises OSError."""
    return Path(path).open("rb")


def read_keys(pieces: Sequence[KeySlice], open_file: OpenKeys = open_keys) -> Iterator[KeyBatch]:
    """The keys of the pieces, in order, at most READ_KEYS at once. Raises OSError."""
    for path, start, stop in pieces:
        with open_file(path) as file:
            for first in range(start, stop, READ_KEYS):
                file.seek(first * KEY_DTYPE.itemsize)
                count = min(READ_KEYS, stop - first)
                rows = np.frombuffer(file.read(count * KEY_DTYPE.itemsize), KEY_DTYPE)
                if len(rows) != count:
                    raise OSError(f"{path} ends early")
                yield KeyBatch(
                    rows["key_hash"],
                    rows["physical_offset"].astype(np.int64),
                    rows["store_timestamp"].astype(np.int64),
                )


@dataclass(frozen=True, slots=True)
class IndexFilePlan:
    """One file: `header` as it is before the first key, `keys` where its keys are.

    In an object store `path` and the paths of `keys` are below the rebuild's folder.
    """

    path: str
    geometry: IndexGeometry
    header: IndexHeader
    keys: tuple[KeySlice, ...]


def plan_index_files(
    folder: str, geometry: IndexGeometry, spilled: Spilled, open_file: OpenKeys = open_keys
) -> list[IndexFilePlan]:
    """The files that the index worker makes of these keys, by its rules for rolling and names.

    Raises OSError.
    """
    total, room = sum(count for _, count in spilled), geometry.index_num - 1
    plans: list[IndexFilePlan] = []
    name, header = None, index_build.EMPTY_HEADER
    for start in range(0, total, room):
        stop = min(start + room, total)
        pieces = key_slices(spilled, start, stop)
        first, last = pieces[0], pieces[-1]
        name = next_index_file_name(_key(first.path, first.start, open_file)[1], name)
        plans.append(IndexFilePlan(f"{folder}/{name}", geometry, header, pieces))
        # The next file begins with what the last key of this one leaves in its header.
        offset, time = _key(last.path, last.stop - 1, open_file)
        header = index_build.rolled_header(
            index_build.EMPTY_HEADER._replace(end_timestamp=time, end_physical_offset=offset)
        )
    return plans


def _key(path: str, number: int, open_file: OpenKeys) -> tuple[int, int]:
    """Log offset and store time of one spilled key."""
    batch = next(read_keys([KeySlice(path, number, number + 1)], open_file))
    return int(batch.physical_offset[0]), int(batch.store_timestamp[0])


def write_index_file(folder: str, syncs: bool, plan: IndexFilePlan) -> int:
    """Makes the file, and gives it its name when it is whole; returns how many entries it has.

    It is filled in `folder`, on the same file system. Entries go straight to the file: of a full
    one of 420 MB only the slots, 20 MB, and a million keys are in memory.
    """
    temporary = Path(folder) / uuid.uuid4().hex
    with whole_file(temporary, Path(plan.path), syncs) as descriptor:
        return _fill(descriptor, plan, open_keys).index_count - 1


def write_index_object(folder: ObjectFolder, plan: IndexFilePlan) -> tuple[int, OutFile]:
    """The same in an object store, by a file of this task's: the header is known last.

    Raises StoreUnreadable, JobFailed.
    """
    with naming_spill(folder), tempfile.TemporaryFile() as scratch:
        header = _fill(scratch.fileno(), plan, folder.input)
        scratch.seek(0)
        chunks = iter(lambda: scratch.read(_COPY_BYTES), b"")
        return header.index_count - 1, folder.write(plan.path, chunks)


@contextlib.contextmanager
def naming_spill(folder: ObjectFolder) -> Iterator[None]:
    """Errors about keys in an object store, or of the file that they are put into, get a name."""
    try:
        yield
    except OSError as error:
        raise StoreUnreadable(
            f"index files for {folder.shown}: {error}",
            "room in the executors' TMPDIR for one index file; credentials",
        ) from None


def _fill(descriptor: int, plan: IndexFilePlan, open_file: OpenKeys) -> IndexHeader:
    """Writes the whole of an empty file, the header last; returns that."""
    disk.set_length(descriptor, plan.geometry.file_bytes)
    header, geometry = plan.header, plan.geometry
    slots = np.zeros(geometry.slot_count, _SLOTS_DTYPE)
    for batch in read_keys(plan.keys, open_file):
        planned = index_build.put_keys(header, geometry, slots, batch)
        assert planned.taken == len(batch.key_hash), "a file was planned with too many keys"
        position = geometry.entry_position(planned.first_entry)
        disk.write_all(descriptor, planned.entries.view(np.uint8).data, position)
        header = planned.header
    table = slots.view(np.uint8)
    for start in range(0, len(table), _CHUNK_BYTES):
        chunk = table[start : start + _CHUNK_BYTES]
        if chunk.any():  # a hole stays one
            disk.write_all(descriptor, chunk.data, geometry.slot_position(0) + start)
    assert file_layouts.INDEX_SLOT.size == _SLOTS_DTYPE.itemsize
    disk.write_all(descriptor, file_layouts.INDEX_HEADER.pack(header), 0)
    return header
