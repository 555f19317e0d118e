"""A rebuild into an object store: whole objects, and a manifest that is written last."""

import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from pipeline.errors import JobFailed
from pipeline.jobs.rebuild.index_files import naming_spill, plan_index_files, write_index_object
from pipeline.jobs.rebuild.object_folder import ObjectFolder
from pipeline.jobs.rebuild.range_task import RangeJob, RangeReport
from pipeline.jobs.rebuild.target import IndexMade, Target, queue_file_paths, spilled_keys
from pipeline.jobs.rebuild.unit_runs import Runs
from pipeline.jobs.tasks import run_tasks
from pipeline.stores.access import StoreAt
from pipeline.stores.rebuild_manifest import OutFile, RebuildManifest
from protocol.addresses import without_credentials
from protocol.derived.index_entry import IndexGeometry
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR


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
        spilled = spilled_keys(self.job, reports)
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
            for path in queue_file_paths(runs, self.job.queue_file_bytes)
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
