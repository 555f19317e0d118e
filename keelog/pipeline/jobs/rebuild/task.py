"""What the tasks of a rebuild do: read ranges of the log, write units and keys.

They write units in their places. Where files cannot be written so, units are sorted and written as
whole files: tasks read ranges and give their units as rows; Spark brings those of one file
together, in order. A task's report on its range travels as a row too, to a task that only hands it
on.
"""

import itertools
import pickle
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from keelog.pipeline.errors import StoreUnreadable, naming_conditions, naming_engine_failures
from keelog.pipeline.jobs.rebuild.folder import KEYS_DIR, ObjectFolder, OpenTargetFolder, OutFile
from keelog.pipeline.jobs.rebuild.index_files import FileKeySpill, KeySpill, StreamKeySpill
from keelog.pipeline.jobs.rebuild.units import (
    RebuiltRun,
    Runs,
    UnitFiles,
    UnitGatherer,
    make_one,
    whole_file,
)
from keelog.pipeline.jobs.scan import RangeEnds, RangeScan, ScanRange
from keelog.pipeline.read.arrays import arrow_schema, numbers
from keelog.pipeline.stores.access import Access
from keelog.pipeline.stores.opening import job_files
from keelog.pipeline.tables import QUEUES, Column, ddl
from keelog.pipeline.task_spec import LogAt
from node.runtime import disk
from node.store.file_cache import OpenFiles
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.queue_build import filler_units, unit_array
from protocol.errors import StoreDamaged
from protocol.names import offset_file_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = (
    *(column for column in QUEUES.columns if column.name != "node"),
    Column("file", "BIGINT", "number of the queue file"),
    Column("report", "BINARY", "of a range, in a row of its own"),
)
_ARROW = arrow_schema(_COLUMNS)
_FILE_KEY = ("topic", "queueId", "file")
_BATCH_ROWS = 1 << 14


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
    access: Access = field(default_factory=Access)
    out: ObjectFolder | None = None

    def files(self) -> OpenFiles:
        """What the log is read through; its owner closes it."""
        return job_files(self.log.root, self.access)

    def keys_path(self, number: int) -> str:
        """Where a range leaves its keys."""
        return f"{self.keys}/{number:08d}"

    def open_spill(self, number: int) -> KeySpill | None:
        """For the keys of a range; None where no index is made. Raises OSError, JobFailed."""
        if self.keys is None:
            return None
        path = self.keys_path(number)
        if self.out is not None:
            return StreamKeySpill(self.out.open().output(path), self.with_tags)
        return FileKeySpill(Path(path), self.with_tags, self.syncs)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors of the store, and of an object store, become those that users see."""
        try:
            with naming_conditions():
                yield
        except StoreDamaged as error:
            if "://" in self.log.root:
                error.hint = "the same again, with a store at rest"
            raise
        except OSError as error:
            if self.out is None:
                raise
            raise StoreUnreadable(f"{self.out.shown}: {error}", "credentials; room") from None


@dataclass(frozen=True, slots=True)
class RangeReport:
    """What a task read and wrote."""

    ends: RangeEnds
    records: int
    runs: Runs
    keys: int


class RangeUnits:
    """The units that a range's records call for, to iterate over once; its keys are spilled.

    `report` says what was read, when all units are taken.
    """

    def __init__(self, job: RangeJob, span: ScanRange) -> None:
        self._job = job
        self._span = span
        self.report: RangeReport

    def __iter__(self) -> Generator[RebuiltRun, None, None]:
        job, span, gatherer, records = self._job, self._span, UnitGatherer(), 0
        with ExitStack() as stack:
            files = stack.enter_context(closing(job.files()))
            spill = job.open_spill(span.number)
            if spill is not None:
                stack.enter_context(spill)
            scan = RangeScan(job.log.open(files), span)
            for columns in scan:
                requests = DispatchRequests(columns, job.delay_levels_ms)
                records += len(requests)
                if spill is not None:
                    spill.add(requests)
                if job.queues is not None:
                    yield from _placed(gatherer.add(requests, job.log.removed))
            yield from _placed(gatherer.flush())
            if spill is not None:
                spill.keep()
            keys = 0 if spill is None else spill.count
            self.report = RangeReport(scan.ends(), records, gatherer.runs, keys)


def rebuild_range(job: RangeJob, span: ScanRange) -> RangeReport:
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


def _placed(found: Iterable[RebuiltRun]) -> Iterator[RebuiltRun]:
    """Those that have a place; the driver names the others, from the runs."""
    return (rows for rows in found if rows.start >= 0)


class _FileKey(NamedTuple):
    topic: str
    queue_id: int
    file: int


class Shuffled(NamedTuple):
    """The ranges' reports, and the objects that were written."""

    reports: list[RangeReport]
    files: list[OutFile]


def shuffle_ranges(spark: "SparkSession", job: RangeJob, ranges: list[ScanRange]) -> Shuffled:
    """As `rebuild_range` of each range, but queue files are written whole. Raises EngineFailed."""
    files = max(len(ranges), 2 * spark.sparkContext.defaultParallelism)
    units = unit_rows(spark, job, ranges)
    sorted_units = units.repartition(files, *_FILE_KEY).sortWithinPartitions(
        *_FILE_KEY, "queueOffset", "physicalOffset"
    )
    with naming_engine_failures("rebuild failed"):
        rows = sorted_units.mapInArrow(_FilesOf(job), "report binary").collect()
    found = [pickle.loads(bytes(row[0])) for row in rows]
    return Shuffled(
        [one for one in found if isinstance(one, RangeReport)],
        [one for one in found if isinstance(one, OutFile)],
    )


def unit_rows(spark: "SparkSession", job: RangeJob, ranges: list[ScanRange]) -> "DataFrame":
    """The units that the ranges' records call for; the ranges' reports where topic is NULL."""
    rows = [(bytearray(pickle.dumps(span)),) for span in ranges]
    parallel = spark.sparkContext.parallelize(rows, max(len(rows), 1))
    return spark.createDataFrame(parallel, "span binary").mapInArrow(_UnitsOf(job), ddl(_COLUMNS))


class _UnitsOf:
    """Reads ranges: units as rows, and after them a row with the range's report."""

    def __init__(self, job: RangeJob) -> None:
        self._job = job

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for span in batch.column(0).to_pylist():
                yield from self._range(pickle.loads(span))

    def _range(self, span: ScanRange) -> Iterator[pa.RecordBatch]:
        units = RangeUnits(self._job, span)
        with self._job.naming(), closing(iter(units)) as runs:
            yield from self._rows(runs)
            yield _report_row(units.report)

    def _rows(self, found: Iterable[RebuiltRun]) -> Iterator[pa.RecordBatch]:
        """The units as batches, each of about `_BATCH_ROWS`."""
        waiting: list[RebuiltRun] = []
        for rows in found:
            waiting.append(rows)
            if sum(len(one.units) for one in waiting) >= _BATCH_ROWS:
                yield self._batch(waiting)
                waiting = []
        if waiting:
            yield self._batch(waiting)

    def _batch(self, runs: list[RebuiltRun]) -> pa.RecordBatch:
        counts = [len(rows.units) for rows in runs]
        which = np.repeat(np.arange(len(runs)), counts)
        offsets = np.concatenate(
            [np.arange(rows.start, rows.start + len(rows.units)) for rows in runs]
        )
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
            numbers(offsets // (self._job.queue_file_bytes // UNIT_BYTES), "i8"),
            pa.nulls(len(offsets), pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _report_row(report: RangeReport) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in _ARROW]
    arrays[-1] = pa.array([pickle.dumps(report)], pa.binary())
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


class _FilesOf:
    """Writes the files whose units come, sorted; hands on reports, and reports its objects."""

    def __init__(self, job: RangeJob) -> None:
        self._job = job

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        write = _FileWriter(self._job) if self._job.out is None else _ObjectWriter(self._job)
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
                found = _FileKey(*(piece.column(name)[0].as_py() for name in _FILE_KEY))
                if found != key and key is not None:
                    yield from write(key, parts)
                    parts = []
                key = found
                parts.append(piece)
        if key is not None:
            yield from write(key, parts)


class _UnitRun(NamedTuple):
    """Units that follow one another, from a byte of their file on."""

    position: int
    units: NDArray[Any]


def _runs(base: int, parts: list[pa.RecordBatch]) -> list[_UnitRun]:
    """The units of one file, whose first unit would be number `base`, in order."""
    rows = pa.Table.from_batches(parts)
    column = {name: rows.column(name).to_numpy() for name in _ARROW.names[2:6]}
    units = unit_array(column["physicalOffset"], column["storeSize"], column["tagsCode"])
    offset = column["queueOffset"]
    breaks = np.flatnonzero(np.diff(offset) != 1) + 1
    return [
        _UnitRun((int(offset[start]) - base) * UNIT_BYTES, run)
        for run, start in zip(np.split(units, breaks), [0, *breaks.tolist()], strict=True)
    ]


class _Writer(ABC):
    """Writes one whole file at a call, and gives a row about it, or none."""

    def __init__(self, job: RangeJob) -> None:
        assert job.queues is not None
        self._job = job
        self._queues = job.queues

    def __call__(self, key: _FileKey, parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        base = key.file * (self._job.queue_file_bytes // UNIT_BYTES)
        path = f"{key.topic}/{key.queue_id}/{offset_file_name(base * UNIT_BYTES)}"
        yield from self._write(path, _runs(base, parts))

    @abstractmethod
    def _write(self, path: str, runs: list[_UnitRun]) -> Iterator[pa.RecordBatch]:
        """`path` is below the folder of queues."""


class _FileWriter(_Writer):
    """A temporary file beside the folders, which gets its name."""

    def _write(self, path: str, runs: list[_UnitRun]) -> Iterator[pa.RecordBatch]:
        job, target = self._job, Path(self._queues) / path
        temporary = Path(self._queues).parent / KEYS_DIR / uuid.uuid4().hex
        with whole_file(temporary, target, job.syncs) as descriptor:
            disk.set_length(descriptor, job.queue_file_bytes)
            for run in runs:
                disk.write_all(descriptor, run.units.view(np.uint8).data, run.position)
            for part in (target.parent.parent, target.parent):
                make_one(part)
        yield from ()


class _ObjectWriter(_Writer):
    """Whole in memory, with the fillers in front of a queue that begins within its first file.

    A gap between units is filled too: the driver fails such a job.
    """

    def __init__(self, job: RangeJob) -> None:
        super().__init__(job)
        assert job.out is not None
        self._out: OpenTargetFolder = job.out.open()

    def _write(self, path: str, runs: list[_UnitRun]) -> Iterator[pa.RecordBatch]:
        data = np.zeros(self._job.queue_file_bytes, np.uint8)
        fillers = filler_units(runs[0].position // UNIT_BYTES)
        for position, units in (_UnitRun(0, fillers), *runs):
            piece = units.view(np.uint8)
            data[position : position + len(piece)] = piece
        file = self._out.write(f"{self._queues}/{path}", [data.data])
        answer = pa.array([pickle.dumps(file)], pa.binary())
        yield pa.RecordBatch.from_arrays([answer], names=["report"])


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
