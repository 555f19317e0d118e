"""The plan that sorts units and writes whole files, where files cannot be written in places.

Tasks read ranges and give their units as rows; Spark brings those of one file together, in order.
What a task says of its range travels as a row too, to a task that does nothing but hand it on.
"""

import itertools
import os
import pickle
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from node.store import disk
from node.store.open_files import OpenFiles
from pipeline.arrays import numbers
from pipeline.engine_errors import naming_engine_failures
from pipeline.jobs.building import KEYS_DIR
from pipeline.jobs.key_spill import KeySpill
from pipeline.jobs.rebuild_range import RangeJob, RangeReport
from pipeline.jobs.scan import RangeScan, ScanRange
from pipeline.jobs.unit_files import make_one
from pipeline.jobs.unit_runs import QueueRows, UnitGatherer
from protocol.dispatch_request import dispatch_requests
from protocol.names import offset_file_name
from protocol.queue_build import unit_array
from protocol.queue_unit import UNIT_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = (
    "topic string, queueId int, file bigint, queueOffset bigint, physicalOffset bigint,"
    " storeSize int, tagsCode bigint, report binary"
)
_ARROW = pa.schema(
    [
        ("topic", pa.string()),
        ("queueId", pa.int32()),
        ("file", pa.int64()),
        ("queueOffset", pa.int64()),
        ("physicalOffset", pa.int64()),
        ("storeSize", pa.int32()),
        ("tagsCode", pa.int64()),
        ("report", pa.binary()),
    ]
)
_FILE_KEY = ("topic", "queueId", "file")
_BATCH_ROWS = 1 << 14


class _FileKey(NamedTuple):
    topic: str
    queue_id: int
    file: int


def shuffle_ranges(
    spark: "SparkSession", job: RangeJob, ranges: list[ScanRange]
) -> list[RangeReport]:
    """As `rebuild_range` of each range, but queue files are written whole. Raises EngineFailed."""
    files = max(len(ranges), 2 * spark.sparkContext.defaultParallelism)
    units = unit_rows(spark, job, ranges)
    sorted_units = units.repartition(files, *_FILE_KEY).sortWithinPartitions(
        *_FILE_KEY, "queueOffset", "physicalOffset"
    )
    with naming_engine_failures("rebuild failed"):
        answers = sorted_units.mapInArrow(_FilesOf(job), "report binary").collect()
    return [pickle.loads(bytes(answer[0])) for answer in answers]


def unit_rows(spark: "SparkSession", job: RangeJob, ranges: list[ScanRange]) -> "DataFrame":
    """The units that the ranges' records call for; the ranges' reports where topic is NULL."""
    rows = [(bytearray(pickle.dumps(span)),) for span in ranges]
    parallel = spark.sparkContext.parallelize(rows, max(len(rows), 1))
    return spark.createDataFrame(parallel, "span binary").mapInArrow(_UnitsOf(job), _SCHEMA)


class _UnitsOf:
    """Reads ranges: units as rows, and behind them a row with the range's report."""

    def __init__(self, job: RangeJob) -> None:
        self._job = job

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for span in batch.column(0).to_pylist():
                yield from self._range(pickle.loads(span))

    def _range(self, span: ScanRange) -> Iterator[pa.RecordBatch]:
        job, files, gatherer = self._job, OpenFiles(), UnitGatherer()
        spill = None
        try:
            if job.keys is not None:
                spill = KeySpill(job.keys_path(span.number), job.with_tags, job.syncs)
            scan = RangeScan(job.log.open(files), span)
            for columns in scan:
                requests = dispatch_requests(columns, job.delay_levels_ms)
                if spill is not None:
                    spill.add(requests)
                yield from self._rows(gatherer.add(requests))
            yield from self._rows(gatherer.flush())
            if spill is not None:
                spill.keep()
            keys = 0 if spill is None else spill.count
            yield _report_row(RangeReport(scan.ends(), gatherer.records, gatherer.runs, keys))
        finally:
            files.close()
            if spill is not None:
                spill.close()

    def _rows(self, found: Iterable[QueueRows]) -> Iterator[pa.RecordBatch]:
        """The units as batches, each of about `_BATCH_ROWS`."""
        waiting: list[QueueRows] = []
        for rows in found:
            if rows.start >= 0:  # else the driver names it, from the runs
                waiting.append(rows)
            if sum(len(one.units) for one in waiting) >= _BATCH_ROWS:
                yield self._batch(waiting)
                waiting = []
        if waiting:
            yield self._batch(waiting)

    def _batch(self, runs: list[QueueRows]) -> pa.RecordBatch:
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
            numbers(offsets // (self._job.queue_file_bytes // UNIT_BYTES), "i8"),
            numbers(offsets, "i8"),
            numbers(units["physical_offset"], "i8"),
            numbers(units["size"], "i4"),
            numbers(units["tags_code"], "i8"),
            pa.nulls(len(offsets), pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _report_row(report: RangeReport) -> pa.RecordBatch:
    arrays = [pa.nulls(1, field.type) for field in _ARROW]
    arrays[-1] = pa.array([pickle.dumps(report)], pa.binary())
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


class _FilesOf:
    """Writes the files whose units come, sorted; hands reports on."""

    def __init__(self, job: RangeJob) -> None:
        self._job = job

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
                    self._write(key, parts)
                    parts = []
                key = found
                parts.append(piece)
        if key is not None:
            self._write(key, parts)

    def _write(self, key: _FileKey, parts: list[pa.RecordBatch]) -> None:
        """One whole file: a temporary one beside the folders, which gets its name."""
        job = self._job
        assert job.queues is not None
        rows = pa.Table.from_batches(parts)
        column = {name: rows.column(name).to_numpy() for name in _ARROW.names[3:7]}
        units = unit_array(column["physicalOffset"], column["storeSize"], column["tagsCode"])
        offset = column["queueOffset"]
        base = key.file * (job.queue_file_bytes // UNIT_BYTES)
        folder = Path(job.queues) / key.topic / str(key.queue_id)
        temporary = Path(job.queues).parent / KEYS_DIR / uuid.uuid4().hex
        descriptor = disk.open_file(temporary, create=True, empty=True)
        try:
            disk.set_length(descriptor, job.queue_file_bytes)
            breaks = np.flatnonzero(np.diff(offset) != 1) + 1
            for run, start in zip(np.split(units, breaks), [0, *breaks.tolist()], strict=True):
                position = (int(offset[start]) - base) * UNIT_BYTES
                disk.write_all(descriptor, run.view(np.uint8).data, position)
            if job.syncs:
                disk.sync_with_length(descriptor)
            for part in (folder.parent, folder):
                make_one(part)
            disk.rename(temporary, folder / offset_file_name(base * UNIT_BYTES))
        finally:
            os.close(descriptor)
            disk.unlink(temporary, missing_ok=True)


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
