"""Where a rebuild's files go: what the driver does around the tasks that write them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from pyspark.sql import SparkSession

from pipeline.jobs.rebuild.range_task import RangeJob, RangeReport
from pipeline.jobs.rebuild.unit_runs import Runs
from pipeline.stores.rebuild_manifest import OutFile
from protocol.derived.index_entry import IndexGeometry
from protocol.derived.queue_unit import UNIT_BYTES
from protocol.names import offset_file_name


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


def spilled_keys(job: RangeJob, reports: Sequence[RangeReport]) -> list[tuple[str, int]]:
    """The path and count of each range's keys, in log order."""
    return [(job.keys_path(report.ends.number), report.keys) for report in reports if report.keys]


def queue_file_paths(runs: Runs, file_bytes: int) -> set[str]:
    """The files that these units are in, below the folder of queues."""
    per_file = file_bytes // UNIT_BYTES
    return {
        f"{queue.topic}/{queue.queue_id}/{offset_file_name(number * file_bytes)}"
        for queue, found in runs.items()
        for number in range(found[0].start // per_file, (found[-1].end - 1) // per_file + 1)
    }
