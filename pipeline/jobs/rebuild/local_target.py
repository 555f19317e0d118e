"""A rebuild on a file system: attempts in a folder beside, switched in by one rename."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from pipeline.errors import JobFailed
from pipeline.jobs.rebuild.index_files import plan_index_files, write_index_file
from pipeline.jobs.rebuild.local_build import KEYS_DIR, Building
from pipeline.jobs.rebuild.range_task import RangeJob, RangeReport
from pipeline.jobs.rebuild.target import IndexMade, Target, queue_file_paths, spilled_keys
from pipeline.jobs.rebuild.unit_files import UnitFiles
from pipeline.jobs.rebuild.unit_runs import Runs
from pipeline.jobs.tasks import run_tasks
from pipeline.stores.rebuild_manifest import OutFile
from protocol.derived.index_entry import IndexGeometry
from protocol.derived.queue_unit import UNIT_BYTES
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR

_FILL_QUEUES = 64
"""Queues whose first file one task fills up."""


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
        folder, spilled = str(self._building.folder(INDEX_DIR)), spilled_keys(job, reports)
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
        expected = len(queue_file_paths(runs, file_bytes))
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
