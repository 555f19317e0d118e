"""What the tasks of a rebuild do: read ranges of the log, write units of queues, keys of the index.

They put units at their queue offsets, by `pwrite` below a folder that is being made, so writers of
different ranges never meet in one place. Where files cannot be written so, units are sorted and
written as whole files: tasks read ranges and give their units as rows; Spark brings those of one
file together, in order. A task's report on its range travels as a row too, to a task that only
hands it on.

Each range of the log leaves its keys in a file, in log order. Which entry of which index file a key
becomes depends on how many keys come before it, and that is known when all ranges have been read.
"""

import itertools
import os
import pickle
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keelog.pipeline.errors import StoreUnreadable, naming_conditions, naming_engine_failures
from keelog.pipeline.jobs import scan
from keelog.pipeline.jobs.publication import ObjectFolder, OutFile
from keelog.pipeline.read.arrays import arrow_schema, numbers
from keelog.pipeline.stores import access, planned_store
from keelog.pipeline.tables import QUEUES, Column, ddl
from keelog.pipeline.task_spec import LogAt
from node.runtime import disk
from protocol.derived import dispatch_request, file_layouts, index_build, queue_build
from protocol.derived.file_layouts import UNIT_BYTES, IndexGeometry, IndexHeader, KeyBatch
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import next_index_file_name, offset_file_name
from protocol.record.columns import Bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS_DIR = "keys"
_COLUMNS = (
    *(column for column in QUEUES.columns if column.name != "node"),
    Column("file", "BIGINT", "number of the queue file"),
    Column("report", "BINARY", "of a range, in a row of its own"),
)
_ARROW = arrow_schema(_COLUMNS)
_FILE_KEY = ("topic", "queueId", "file")
_FileKey = tuple[str, int, int]
_BATCH_ROWS = 1 << 14
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


@contextmanager
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
    with suppress(FileExistsError):
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
        return _fill_index(descriptor, plan, open_keys).index_count - 1


def write_index_object(folder: ObjectFolder, plan: IndexFilePlan) -> tuple[int, OutFile]:
    """The same in an object store, by a file of this task's: the header is known last.

    Raises StoreUnreadable, JobFailed.
    """
    with naming_spill(folder), tempfile.TemporaryFile() as scratch:
        header = _fill_index(scratch.fileno(), plan, folder.input)
        scratch.seek(0)
        chunks = iter(lambda: scratch.read(_COPY_BYTES), b"")
        return header.index_count - 1, folder.write(plan.path, chunks)


@contextmanager
def naming_spill(folder: ObjectFolder) -> Iterator[None]:
    """Errors about keys in an object store, or of the file that they are put into, get a name."""
    try:
        yield
    except OSError as error:
        raise StoreUnreadable(
            f"index files for {folder.shown}: {error}",
            "room in the executors' TMPDIR for one index file; credentials",
        ) from None


def _fill_index(descriptor: int, plan: IndexFilePlan, open_file: OpenKeys) -> IndexHeader:
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


@dataclass(frozen=True, slots=True)
class RangeJob:
    """Where the log is, and where to write; None for what is not made, or made by others.

    `syncs`: a task makes durable what it wrote, as nobody else can on another machine. With `out`
    objects are written there; `queues` and `keys` are below it.
    """

    log: LogAt
    delay_levels_ms: tuple[int, ...]
    queue_file_bytes: int
    with_tags: bool
    queues: str | None
    keys: str | None
    syncs: bool
    out: ObjectFolder | None = None

    def keys_path(self, number: int) -> str:
        """Where a range leaves its keys."""
        return f"{self.keys}/{number:08d}"

    @contextmanager
    def spill(self, number: int) -> Iterator[KeySpill | None]:
        """For the keys of a range, which are there, whole, unless something is raised inside.

        None where no index is made. Raises OSError, JobFailed.
        """
        if self.keys is None:
            yield None
            return
        path = self.keys_path(number)
        with ExitStack() as stack:
            if self.out is not None:
                stream = stack.enter_context(closing(self.out.output(path)))
                spill = KeySpill(self.with_tags, lambda data, _: stream.write(data))
            else:
                temporary = Path(f"{path}.{uuid.uuid4().hex}")
                file = stack.enter_context(whole_file(temporary, Path(path), self.syncs))
                spill = KeySpill(self.with_tags, partial(disk.write_all, file))
            yield spill
            spill.flush()

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors of the store, and of an object store, become those that users see."""
        try:
            with naming_conditions():
                yield
        except StoreDamaged as error:
            if self.log.store.way is not access.Way.FILES:
                error.hint = "the same again, with a store at rest"
            raise
        except OSError as error:
            if self.out is None:
                raise
            raise StoreUnreadable(f"{self.out.shown}: {error}", "credentials; room") from None


@dataclass(frozen=True, slots=True)
class RangeReport:
    ends: scan.RangeEnds
    records: int
    runs: scan.Runs
    keys: int


class RangeUnits:
    """The units that a range's records call for, to iterate over once; its keys are spilled.

    Without those that have no place: the driver names these, from the runs. `report` says what was
    read, when all units are taken.
    """

    def __init__(self, job: RangeJob, span: scan.ScanRange) -> None:
        self._job = job
        self._span = span
        self.report: RangeReport

    def __iter__(self) -> Generator[scan.RebuiltRun, None, None]:
        job, span, gatherer, records = self._job, self._span, scan.UnitGatherer(), 0
        files = planned_store.task_files(job.log.store, maps=True)
        with closing(files), job.spill(span.number) as spill:
            walk = scan.RangeScan(job.log.open(files), span)
            for columns in walk:
                requests = dispatch_request.DispatchRequests(columns, job.delay_levels_ms)
                records += len(requests)
                if spill is not None:
                    spill.add(requests)
                if job.queues is not None:
                    found = gatherer.add(requests, job.log.removed)
                    yield from (rows for rows in found if rows.start >= 0)
            yield from (rows for rows in gatherer.flush() if rows.start >= 0)
        keys = 0 if spill is None else spill.count
        self.report = RangeReport(walk.ends(), records, gatherer.runs, keys)


def rebuild_range(job: RangeJob, span: scan.ScanRange) -> RangeReport:
    """Puts the range's units at their places and spills its keys. Raises MqError, OSError.

    Harmless when done twice: units of the same bytes at the same places, files by rename.
    """
    units = RangeUnits(job, span)
    with job.naming(), ExitStack() as stack:
        if job.queues is not None:
            target = UnitFiles(Path(job.queues), job.queue_file_bytes, job.syncs)
            files = stack.enter_context(closing(target))
        for rows in stack.enter_context(closing(iter(units))):
            files.write(*rows)
        return units.report


def shuffle_ranges(
    spark: "SparkSession", job: RangeJob, ranges: list[scan.ScanRange]
) -> tuple[list[RangeReport], list[OutFile]]:
    """As `rebuild_range` of each range, but queue files are written whole; returns objects too.

    Raises EngineFailed.
    """
    files = max(len(ranges), 2 * spark.sparkContext.defaultParallelism)
    spans = [(bytearray(pickle.dumps(span)),) for span in ranges]
    parallel = spark.sparkContext.parallelize(spans, max(len(spans), 1))
    rows = spark.createDataFrame(parallel, "span binary")
    units = rows.mapInArrow(partial(_units_of, job), ddl(_COLUMNS))
    sorted_units = units.repartition(files, *_FILE_KEY).sortWithinPartitions(
        *_FILE_KEY, "queueOffset", "physicalOffset"
    )
    with naming_engine_failures("rebuild failed"):
        reports = sorted_units.mapInArrow(partial(_files_of, job), "report binary").collect()
    found = [pickle.loads(bytes(row[0])) for row in reports]
    files_written = [one for one in found if isinstance(one, OutFile)]
    return [one for one in found if isinstance(one, RangeReport)], files_written


def _units_of(job: RangeJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads ranges: units as rows, and after them a row with the range's report."""
    for batch in batches:
        for span in batch.column(0).to_pylist():
            units = RangeUnits(job, pickle.loads(span))
            with job.naming(), closing(iter(units)) as runs:
                yield from _unit_rows(job, runs)
                arrays = [pa.nulls(1, field.type) for field in _ARROW]
                arrays[-1] = pa.array([pickle.dumps(units.report)], pa.binary())
                yield pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _unit_rows(job: RangeJob, found: Iterable[scan.RebuiltRun]) -> Iterator[pa.RecordBatch]:
    """The units as batches, each of about `_BATCH_ROWS`."""
    waiting: list[scan.RebuiltRun] = []
    for rows in found:
        waiting.append(rows)
        if sum(len(one.units) for one in waiting) >= _BATCH_ROWS:
            yield _unit_batch(job, waiting)
            waiting = []
    if waiting:
        yield _unit_batch(job, waiting)


def _unit_batch(job: RangeJob, runs: list[scan.RebuiltRun]) -> pa.RecordBatch:
    which = np.repeat(np.arange(len(runs)), [len(rows.units) for rows in runs])
    offsets = np.concatenate([np.arange(rows.start, rows.start + len(rows.units)) for rows in runs])
    units = {
        name: np.concatenate([rows.units[name] for rows in runs])
        for name in ("physical_offset", "size", "tags_code")
    }
    arrays = [
        pa.array([rows.queue.topic for rows in runs]).take(pa.array(which)),
        numbers(np.array([rows.queue.queue_id for rows in runs])[which], "i4"),
        numbers(offsets, "i8"),
        numbers(units["physical_offset"], "i8"),
        numbers(units["size"], "i4"),
        numbers(units["tags_code"], "i8"),
        numbers(offsets // (job.queue_file_bytes // UNIT_BYTES), "i8"),
        pa.nulls(len(offsets), pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _files_of(job: RangeJob, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Writes the files whose units come, sorted; hands on reports, and reports its objects."""
    key: _FileKey | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        reports = batch.column("report").drop_null()
        if len(reports):
            yield pa.RecordBatch.from_arrays([reports], names=["report"])
        for start, stop in _same_file(batch):
            piece = batch.slice(start, stop - start)
            if piece.column("report")[0].is_valid:
                continue
            found: _FileKey = tuple(piece.column(name)[0].as_py() for name in _FILE_KEY)
            if found != key and key is not None:
                yield from _write_file(job, key, parts)
                parts = []
            key = found
            parts.append(piece)
    if key is not None:
        yield from _write_file(job, key, parts)


def _same_file(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    """The stretches of rows that are of one file."""
    if not batch.num_rows:
        return []
    topic = batch.column("topic").dictionary_encode().indices.fill_null(-1).to_numpy()
    changes = np.diff(topic) != 0
    for name in ("queueId", "file"):
        changes |= np.diff(batch.column(name).fill_null(-1).to_numpy()) != 0
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    return list(itertools.pairwise(borders))


def _write_file(
    job: RangeJob, key: _FileKey, parts: list[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Writes one whole file; gives a row about it where it is an object."""
    topic, queue_id, number = key
    base = number * (job.queue_file_bytes // UNIT_BYTES)
    path = f"{job.queues}/{topic}/{queue_id}/{offset_file_name(base * UNIT_BYTES)}"
    rows = pa.Table.from_batches(parts)
    column = {name: rows.column(name).to_numpy() for name in _ARROW.names[2:6]}
    units = queue_build.unit_array(
        column["physicalOffset"], column["storeSize"], column["tagsCode"]
    )
    offset = column["queueOffset"]
    breaks = np.flatnonzero(np.diff(offset) != 1) + 1
    # Units that follow one another, from a byte of the file on.
    runs = [
        ((int(offset[start]) - base) * UNIT_BYTES, run.view(np.uint8))
        for run, start in zip(np.split(units, breaks), [0, *breaks.tolist()], strict=True)
    ]
    if job.out is not None:
        file = job.out.write(path, [_object_bytes(job.queue_file_bytes, runs).data])
        report = pa.array([pickle.dumps(file)], pa.binary())
        yield pa.RecordBatch.from_arrays([report], names=["report"])
        return
    target = Path(path)
    # Beside the folders of queues, from where it gets its name.
    temporary = target.parents[3] / KEYS_DIR / uuid.uuid4().hex
    with whole_file(temporary, target, job.syncs) as descriptor:
        disk.set_length(descriptor, job.queue_file_bytes)
        for position, units in runs:
            disk.write_all(descriptor, units.data, position)
        for part in (target.parent.parent, target.parent):
            make_one(part)


def _object_bytes(file_bytes: int, runs: list[tuple[int, Bytes]]) -> Bytes:
    """The whole file, with the fillers in front of a queue that begins within its first file.

    A gap between units is filled too: the driver fails such a job.
    """
    data = np.zeros(file_bytes, np.uint8)
    fillers = queue_build.filler_units(runs[0][0] // UNIT_BYTES).view(np.uint8)
    for position, piece in ((0, fillers), *runs):
        data[position : position + len(piece)] = piece
    return data
