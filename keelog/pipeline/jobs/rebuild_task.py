"""What the tasks of a rebuild do: read ranges of the log, write units and keys.

They write units in their places. Where files cannot be written so, units are sorted and written as
whole files: tasks read ranges and give their units as rows; Spark brings those of one file
together, in order. A task's report on its range travels as a row too, to a task that only hands it
on.
"""

import itertools
import pickle
import uuid
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from keelog.pipeline.errors import StoreUnreadable, naming_conditions, naming_engine_failures
from keelog.pipeline.jobs import publication, rebuild_files
from keelog.pipeline.jobs.scan import RangeEnds, RangeScan, ScanRange
from keelog.pipeline.read.arrays import arrow_schema, numbers
from keelog.pipeline.stores import access, planned_store
from keelog.pipeline.tables import QUEUES, Column, ddl
from keelog.pipeline.task_spec import LogAt
from node.runtime import disk
from protocol.derived.dispatch_request import DispatchRequests
from protocol.derived.file_layouts import UNIT_BYTES
from protocol.derived.queue_build import filler_units, unit_array
from protocol.errors import StoreDamaged
from protocol.names import offset_file_name
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
    out: publication.ObjectFolder | None = None

    def keys_path(self, number: int) -> str:
        """Where a range leaves its keys."""
        return f"{self.keys}/{number:08d}"

    @contextmanager
    def spill(self, number: int) -> Iterator[rebuild_files.KeySpill | None]:
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
                spill = rebuild_files.KeySpill(self.with_tags, lambda data, _: stream.write(data))
            else:
                temporary = Path(f"{path}.{uuid.uuid4().hex}")
                file = stack.enter_context(
                    rebuild_files.whole_file(temporary, Path(path), self.syncs)
                )
                spill = rebuild_files.KeySpill(self.with_tags, partial(disk.write_all, file))
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
    """What a task read and wrote."""

    ends: RangeEnds
    records: int
    runs: rebuild_files.Runs
    keys: int


class RangeUnits:
    """The units that a range's records call for, to iterate over once; its keys are spilled.

    Without those that have no place: the driver names these, from the runs. `report` says what was
    read, when all units are taken.
    """

    def __init__(self, job: RangeJob, span: ScanRange) -> None:
        self._job = job
        self._span = span
        self.report: RangeReport

    def __iter__(self) -> Generator[rebuild_files.RebuiltRun, None, None]:
        job, span, gatherer, records = self._job, self._span, rebuild_files.UnitGatherer(), 0
        files = planned_store.task_files(job.log.store, maps=True)
        with closing(files), job.spill(span.number) as spill:
            scan = RangeScan(job.log.open(files), span)
            for columns in scan:
                requests = DispatchRequests(columns, job.delay_levels_ms)
                records += len(requests)
                if spill is not None:
                    spill.add(requests)
                if job.queues is not None:
                    found = gatherer.add(requests, job.log.removed)
                    yield from (rows for rows in found if rows.start >= 0)
            yield from (rows for rows in gatherer.flush() if rows.start >= 0)
        keys = 0 if spill is None else spill.count
        self.report = RangeReport(scan.ends(), records, gatherer.runs, keys)


def rebuild_range(job: RangeJob, span: ScanRange) -> RangeReport:
    """Puts the range's units at their places and spills its keys. Raises MqError, OSError.

    Harmless when done twice: units of the same bytes at the same places, files by rename.
    """
    units = RangeUnits(job, span)
    with job.naming(), ExitStack() as stack:
        if job.queues is not None:
            target = rebuild_files.UnitFiles(Path(job.queues), job.queue_file_bytes, job.syncs)
            files = stack.enter_context(closing(target))
        for rows in stack.enter_context(closing(iter(units))):
            files.write(*rows)
        return units.report


class Shuffled(NamedTuple):
    """The ranges' reports, and the objects that were written."""

    reports: list[RangeReport]
    files: list[publication.OutFile]


def shuffle_ranges(spark: "SparkSession", job: RangeJob, ranges: list[ScanRange]) -> Shuffled:
    """As `rebuild_range` of each range, but queue files are written whole. Raises EngineFailed."""
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
    return Shuffled(
        [one for one in found if isinstance(one, RangeReport)],
        [one for one in found if isinstance(one, publication.OutFile)],
    )


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


def _unit_rows(
    job: RangeJob, found: Iterable[rebuild_files.RebuiltRun]
) -> Iterator[pa.RecordBatch]:
    """The units as batches, each of about `_BATCH_ROWS`."""
    waiting: list[rebuild_files.RebuiltRun] = []
    for rows in found:
        waiting.append(rows)
        if sum(len(one.units) for one in waiting) >= _BATCH_ROWS:
            yield _unit_batch(job, waiting)
            waiting = []
    if waiting:
        yield _unit_batch(job, waiting)


def _unit_batch(job: RangeJob, runs: list[rebuild_files.RebuiltRun]) -> pa.RecordBatch:
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
    units = unit_array(column["physicalOffset"], column["storeSize"], column["tagsCode"])
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
    with rebuild_files.whole_file(temporary, target, job.syncs) as descriptor:
        disk.set_length(descriptor, job.queue_file_bytes)
        for position, units in runs:
            disk.write_all(descriptor, units.data, position)
        for part in (target.parent.parent, target.parent):
            rebuild_files.make_one(part)


def _object_bytes(file_bytes: int, runs: list[tuple[int, Bytes]]) -> Bytes:
    """The whole file, with the fillers in front of a queue that begins within its first file.

    A gap between units is filled too: the driver fails such a job.
    """
    data = np.zeros(file_bytes, np.uint8)
    fillers = filler_units(runs[0][0] // UNIT_BYTES).view(np.uint8)
    for position, piece in ((0, fillers), *runs):
        data[position : position + len(piece)] = piece
    return data
