"""The units of queues that a range of the log calls for: as runs that must join, and as files.

Units are at their queue offsets, put there by `pwrite` below a folder that is being made, so
writers of different ranges never meet in one place. They must not silently leave a place out,
or meet after all: each reports its runs, and the driver compares them.
"""

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keelog.pipeline.errors import JobFailed
from node.runtime import disk
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.queue_build import filler_units
from protocol.derived.removed import NOTHING_REMOVED, Removed
from protocol.ids import Queue
from protocol.names import is_folder_name, offset_file_name
from protocol.record.columns import Ints

BATCH_ROWS = 1 << 16
"""This many units are gathered before they are sorted by queue: a few MiB."""
RUNS_MAX = 100_000
"""Of one range: more are not a log of a node or broker, and would only cost the driver memory."""
_TABLE_MAX = 1 << 16
_QUEUE_BITS = 32
_QUEUE_MASK = (1 << _QUEUE_BITS) - 1
OPEN_FILES_MAX = 512
_FILLERS_AT_ONCE = 1 << 16


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
        self._queues: dict[tuple[str, int], int] = {}
        self._names: list[Queue] = []
        self._batches: list[tuple[Ints, Ints, NDArray[Any]]] = []
        self._rows = self._runs = 0
        self.runs: Runs = {}

    def add(
        self, requests: DispatchRequests, removed: Removed = NOTHING_REMOVED
    ) -> Iterator[RebuiltRun]:
        """Takes a window's records; gives rows when enough have been gathered."""
        columns = removed.dispatched(requests.columns)
        if columns is not requests.columns:
            requests = DispatchRequests(columns, requests.delay_levels_ms)
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

    def _queue_numbers(self, requests: DispatchRequests, rows: Ints) -> Ints:
        """Each row's queue, as a number among those met; -1 for none."""
        topic_id, queue_id = requests.topic_id[rows], requests.columns.queue_id[rows]
        low, high = int(queue_id.min()), int(queue_id.max())
        count = high - low + 1
        if len(requests.topics) * count > _TABLE_MAX:
            pairs = (topic_id << _QUEUE_BITS) | (queue_id & _QUEUE_MASK)
            found, where = np.unique(pairs, return_inverse=True)
            known = [self._number(requests.topics, pair) for pair in found.tolist()]
            spread: Ints = np.array(known, np.int64)[where]
            return spread
        # Queue ids are few: a table is ten times faster than sorting.
        places = topic_id * count + (queue_id - low)
        numbers = np.full(len(requests.topics) * count, -1, np.int64)
        for place in np.flatnonzero(np.bincount(places)).tolist():
            topic, queue = divmod(place, count)
            pair = topic << _QUEUE_BITS | (queue + low) & _QUEUE_MASK
            numbers[place] = self._number(requests.topics, pair)
        chosen: Ints = numbers[places]
        return chosen

    def _number(self, topics: Sequence[str], pair: int) -> int:
        """The queue's number among those met; -1 for none."""
        topic, queue_id = topics[pair >> _QUEUE_BITS], pair & _QUEUE_MASK
        if queue_id >= 1 << (_QUEUE_BITS - 1):
            queue_id -= 1 << _QUEUE_BITS
        if not (self._every or is_folder_name(topic)):
            return -1
        known = self._queues.setdefault((topic, queue_id), len(self._names))
        if known == len(self._names):
            self._names.append(Queue(topic, queue_id))
        return known

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
        small = len(self._names) <= np.iinfo(np.uint16).max
        order = np.argsort(key.astype(np.uint16) if small else key, kind="stable")
        key, offset, units = key[order], offset[order], units[order]
        breaks = np.flatnonzero((np.diff(key) != 0) | (np.diff(offset) != 1)) + 1
        starts = [0, *breaks.tolist()] if len(key) else []
        for start, stop in zip(starts, [*starts[1:], len(key)], strict=True):
            rows = RebuiltRun(self._names[int(key[start])], int(offset[start]), units[start:stop])
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
            self.write(queue, start, filler_units(count))
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
