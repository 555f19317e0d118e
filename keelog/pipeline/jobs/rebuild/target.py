"""Where a rebuild's files go: what the driver does around the tasks that write them.

On a file system an attempt is a folder beside, which one rename switches in. In an object store
objects are written whole where they stay, and a manifest is written last.
"""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

from keelog.pipeline.errors import JobFailed
from keelog.pipeline.jobs.rebuild.index_files import (
    naming_spill,
    plan_index_files,
    write_index_file,
    write_index_object,
)
from keelog.pipeline.jobs.rebuild.key_spill import SpilledKeys
from keelog.pipeline.jobs.rebuild.local_build import KEYS_DIR, Building
from keelog.pipeline.jobs.rebuild.object_folder import ObjectFolder, OutFile, RebuildManifest
from keelog.pipeline.jobs.rebuild.range_task import RangeJob, RangeReport
from keelog.pipeline.jobs.rebuild.unit_files import UnitFiles
from keelog.pipeline.jobs.rebuild.unit_runs import Runs
from keelog.pipeline.jobs.session_run import run_tasks
from keelog.pipeline.stores.access import StoreAt
from protocol.addresses import without_credentials
from protocol.derived.file_layouts import UNIT_BYTES, IndexGeometry
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name

_FILL_QUEUES = 64
"""Queues whose first file one task fills up."""


class IndexMade(NamedTuple):
    """How many entries, in how many files."""

    entries: int
    files: int


class Target(ABC):
    """One place. `job` is what tasks of the present attempt get."""

    def __init__(self, spark: SparkSession, job: RangeJob) -> None:
        self.spark = spark
        self.job = job

    @abstractmethod
    def held(self) -> AbstractContextManager[None]:
        """Holds the place against other jobs, as far as that can be. Raises StoreLocked."""

    @abstractmethod
    def begin(self) -> None:
        """Throws away what an attempt before has left, and makes room for a new one."""

    @abstractmethod
    def make_index(self, geometry: IndexGeometry, reports: Sequence[RangeReport]) -> IndexMade:
        """Has the index files written from the keys that the ranges have left."""

    @abstractmethod
    def finish_queues(self, runs: Runs, written: Sequence[OutFile]) -> int:
        """Holds the queue files against the runs, else JobFailed; returns how many there are."""

    @abstractmethod
    def publish(self, figures: Mapping[str, object]) -> None:
        """Makes all of it what readers see. Raises JobFailed, OSError."""


class LocalTarget(Target):
    """A new folder, or the store itself."""

    def __init__(self, spark: SparkSession, job: RangeJob, building: Building) -> None:
        super().__init__(spark, job)
        self._building = building

    def held(self) -> AbstractContextManager[None]:
        return self._building.held()

    def begin(self) -> None:
        building, job = self._building, self.job
        building.begin()
        self.job = replace(
            job,
            queues=None if job.queues is None else str(building.folder(CONSUME_QUEUE_DIR)),
            keys=None if job.keys is None else str(building.folder(KEYS_DIR)),
        )

    def make_index(self, geometry: IndexGeometry, reports: Sequence[RangeReport]) -> IndexMade:
        job = self.job
        if job.keys is None:
            return IndexMade(0, 0)
        folder, spilled = str(self._building.folder(INDEX_DIR)), _spilled_keys(job, reports)
        plans = plan_index_files(folder, job.keys, geometry, spilled, job.syncs)
        entries = run_tasks(self.spark, "index files", write_index_file, plans)
        return IndexMade(sum(entries), len(plans))

    def finish_queues(self, runs: Runs, written: Sequence[OutFile]) -> int:
        job = self.job
        if job.queues is None:
            return 0
        folder, file_bytes = Path(job.queues), job.queue_file_bytes
        per_file = file_bytes // UNIT_BYTES
        fill = [
            (queue, found[0].start) for queue, found in runs.items() if found[0].start % per_file
        ]
        groups = [fill[at : at + _FILL_QUEUES] for at in range(0, len(fill), _FILL_QUEUES)]
        filler = partial(_fill, str(folder), file_bytes, job.syncs)
        run_tasks(self.spark, "fillers", filler, groups)
        expected = len(_queue_file_paths(runs, file_bytes))
        files = [path.stat().st_size for path in folder.glob("*/*/*")]
        if len(files) != expected or set(files) - {file_bytes}:
            raise JobFailed(
                f"{len(files)} queue files were written, of {sorted(set(files))} bytes; there"
                f" should be {expected} of {file_bytes}",
                "the same again; with several machines: a file system that all of them share",
            )
        return expected

    def publish(self, figures: Mapping[str, object]) -> None:
        if not self.job.syncs:
            self._building.sync()
        self._building.switch_in(self.job.log.end)


def _fill(folder: str, file_bytes: int, syncs: bool, queues: list[tuple[Queue, int]]) -> None:
    with closing(UnitFiles(Path(folder), file_bytes, syncs)) as files:
        for queue, first in queues:
            files.fill(queue, first)


class ObjectTarget(Target):
    """A folder of a bucket, which is this job's from `begin` on."""

    def __init__(self, spark: SparkSession, job: RangeJob, at: StoreAt) -> None:
        super().__init__(spark, job)
        self._folder = ObjectFolder(at)
        self._files: list[OutFile] = []

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self) -> None:
        self._folder = replace(self._folder, attempt=uuid.uuid4().hex)
        self._folder.open().begin()
        self._files = []
        keys = None if self.job.keys is None else self._folder.keys
        self.job = replace(self.job, out=self._folder, keys=keys)

    def make_index(self, geometry: IndexGeometry, reports: Sequence[RangeReport]) -> IndexMade:
        if self.job.keys is None:
            return IndexMade(0, 0)
        spilled = _spilled_keys(self.job, reports)
        with naming_spill(self._folder):
            opened = self._folder.open()
            plans = plan_index_files(INDEX_DIR, "", geometry, spilled, open_file=opened.input)
        write = partial(write_index_object, self._folder)
        made = run_tasks(self.spark, "index files", write, plans)
        self._files += [file for _, file in made]
        return IndexMade(sum(entries for entries, _ in made), len(made))

    def finish_queues(self, runs: Runs, written: Sequence[OutFile]) -> int:
        if self.job.queues is None:
            return 0
        expected = {
            f"{CONSUME_QUEUE_DIR}/{path}"
            for path in _queue_file_paths(runs, self.job.queue_file_bytes)
        }
        if len(written) != len(expected) or {file.path for file in written} != expected:
            raise JobFailed(
                f"{len(written)} queue files were written, there should be {len(expected)}",
                "the same again",
            )
        self._files += written
        return len(expected)

    def publish(self, figures: Mapping[str, object]) -> None:
        log = self.job.log
        self._folder.open().publish(
            RebuildManifest(
                source=without_credentials(log.root),
                log_start=log.start,
                log_end=log.end,
                figures=figures,
                files=sorted(self._files),
            )
        )


def _spilled_keys(job: RangeJob, reports: Sequence[RangeReport]) -> list[SpilledKeys]:
    """Each range's keys, in log order."""
    return [
        SpilledKeys(job.keys_path(report.ends.number), report.keys)
        for report in reports
        if report.keys
    ]


def _queue_file_paths(runs: Runs, file_bytes: int) -> set[str]:
    """The files that these units are in, below the folder of queues."""
    per_file = file_bytes // UNIT_BYTES
    return {
        f"{queue.topic}/{queue.queue_id}/{offset_file_name(number * file_bytes)}"
        for queue, found in runs.items()
        for number in range(found[0].start // per_file, (found[-1].end - 1) // per_file + 1)
    }
