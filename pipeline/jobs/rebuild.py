"""Makes ConsumeQueue and IndexFile anew from the CommitLog, byte for byte as the workers do.

Tasks read ranges of the log and write the files themselves; only summaries come back. The driver
proves that the ranges join (scan.py) and that every queue's units do (unit_runs.py), has the index
files written, and brings all in by one rename a folder (building.py).
"""

import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from node.store.condition import check_is_store
from node.store.dead_store import DeadStore
from node.store.found_sizes import found_file_bytes, found_geometry
from node.store.locks import StoreLock
from node.store.settings import Settings
from pipeline.errors import (
    BadOption,
    JobFailed,
    NotAStoreError,
    StoreDamagedError,
    StoreLockedError,
    StoreUnreadable,
    naming_conditions,
)
from pipeline.jobs.building import KEYS_DIR, Building
from pipeline.jobs.index_files import plan_index_files, write_index_file
from pipeline.jobs.rebuild_range import RangeJob, RangeReport, rebuild_range
from pipeline.jobs.rebuild_shuffle import shuffle_ranges
from pipeline.jobs.scan import RANGE_BYTES, ScanRange, Stitched, plan_ranges, stitch
from pipeline.jobs.tasks import run_tasks
from pipeline.jobs.unit_files import UnitFiles
from pipeline.jobs.unit_runs import Runs, joined_runs, run_problems, unit_count
from pipeline.parts import LogAt
from protocol.errors import StoreLocked
from protocol.ids import Queue
from protocol.index_entry import IndexGeometry
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR
from protocol.queue_unit import UNIT_BYTES

Plan = Literal["inplace", "shuffle"]
PLANS = ("inplace", "shuffle")

_PROBLEMS_TOLD = 5
_FILL_QUEUES = 64
"""Queues whose first file one task fills up."""
_TASKS_A_CORE = 2


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """What was made of the records in [`start`, `end`) of the log.

    `repaired`: a body imitated a record at its own place, and ranges were cut anew.
    """

    start: int
    end: int
    records: int
    queues: int
    units: int
    queue_files: int
    index_files: int
    index_entries: int
    ranges: int
    repaired: bool
    seconds: float

    def shape(self) -> dict[str, object]:
        """As JSON."""
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def rebuild(  # noqa: PLR0913  (as many choices as the command has)
    spark: SparkSession,
    path: Path | str,
    queues: bool = True,
    index: bool = True,
    plan: Plan = "inplace",
    out: Path | str | None = None,
    settings: Settings | None = None,
    range_bytes: int = RANGE_BYTES,
) -> RebuildResult:
    """Throws away and rebuilds `consumequeue/`, `index/`, or both, of a store that nobody runs.

    With `out`, a folder that must not exist yet, the store is only read, and no lock is taken.
    Every task must see the paths. `plan`: `inplace` has units written at their places, `shuffle`
    sorts them and writes whole files, where a file system cannot do the former.
    Raises NotAStoreError, StoreLockedError, StoreDamagedError (the log itself), JobFailed (queue
    offsets that are missing or there twice), BadOption, StoreUnreadable, EngineFailed. The old
    files are untouched then.
    """
    began = time.monotonic()
    if plan not in PLANS:
        raise BadOption(f"there is no plan {plan!r}", " or ".join(PLANS))
    root, target = Path(path).resolve(), None if out is None else Path(out).resolve()
    if target is not None and target.exists():
        raise BadOption(f"{target} exists", "a folder that does not")
    settings = settings or Settings()
    folders = [name for name, wanted in ((CONSUME_QUEUE_DIR, queues), (INDEX_DIR, index)) if wanted]
    with ExitStack() as stack:
        with naming_conditions():
            check_is_store(root)
        if not (root / COMMIT_LOG_DIR).is_dir():
            raise NotAStoreError(f"{root} holds no commitlog/", "the folder that holds commitlog/")
        if target is None:
            stack.enter_context(closing(_Locked(root)))
        log = _open_log(root, settings)
        building = Building(root, target, folders)
        job = RangeJob(
            log=log,
            delay_levels_ms=settings.delay_levels_ms,
            queue_file_bytes=found_file_bytes(root, settings.queue_file_bytes),
            with_tags=settings.index_tags_enable,
            queues=CONSUME_QUEUE_DIR if queues else None,
            keys=KEYS_DIR if index else None,
            syncs=not (spark.sparkContext.master or "").startswith("local"),
        )
        work = _Rebuild(spark, building, job, found_geometry(root, settings.index_geometry), plan)
        try:
            return replace(work.run(range_bytes), seconds=time.monotonic() - began)
        except OSError as error:
            raise StoreUnreadable(str(error), "a file system with room") from None


def _open_log(root: Path, settings: Settings) -> LogAt:
    with naming_conditions(), DeadStore(root, settings) as store:
        segments = tuple(segment.start for segment in store.log.segments.segments)
        return LogAt(
            str(root), store.log.segment_bytes, segments, store.log.min_offset, store.log.end
        )


class _Locked:
    """The store's lock as something to close."""

    def __init__(self, root: Path) -> None:
        try:
            self._lock = StoreLock.acquire(root)
        except StoreLocked as error:
            raise StoreLockedError(error.reason, error.hint) from None

    def close(self) -> None:
        self._lock.release()


@dataclass(slots=True)
class _Rebuild:
    spark: SparkSession
    building: Building
    job: RangeJob
    geometry: IndexGeometry
    plan: Plan

    def run(self, range_bytes: int) -> RebuildResult:
        """All of it, up to the switch."""
        log, cores = self.job.log, self.spark.sparkContext.defaultParallelism
        ranges = plan_ranges(log, range_bytes, _TASKS_A_CORE * cores)
        reports, stitched = self._attempt(ranges)
        repaired = not stitched.is_same
        if repaired:
            # What was written by records that are none is thrown away with all the rest.
            ranges = stitched.ranges
            reports, stitched = self._attempt(ranges)
            if not stitched.is_same:
                raise JobFailed(
                    f"the log of {log.root} changed while it was read", "stop who writes to it"
                )
        runs = joined_runs([report.runs for report in reports])
        self._check_runs(runs)
        entries, index_files = self._make_index(reports)
        queue_files = self._finish_queues(runs)
        if not self.job.syncs:
            self.building.sync()
        self.building.switch_in(log.end)
        return RebuildResult(
            start=log.start,
            end=log.end,
            records=sum(report.records for report in reports),
            queues=len(runs),
            units=unit_count(runs),
            queue_files=queue_files,
            index_files=index_files,
            index_entries=entries,
            ranges=len(ranges),
            repaired=repaired,
            seconds=0.0,
        )

    def _attempt(self, ranges: list[ScanRange]) -> tuple[list[RangeReport], Stitched]:
        """Reads and writes all ranges into new folders. Raises StoreDamagedError."""
        self.building.begin()
        job = self.job
        placed = replace(
            job,
            queues=job.queues and str(self.building.folder(job.queues)),
            keys=job.keys and str(self.building.folder(job.keys)),
        )
        if self.plan == "shuffle" and job.queues is not None:
            reports = shuffle_ranges(self.spark, placed, ranges)
        else:
            reports = run_tasks(self.spark, "rebuild", partial(rebuild_range, placed), ranges)
        stitched = stitch(job.log, ranges, [report.ends for report in reports])
        if stitched.torn is not None:
            position, why = stitched.torn.position, stitched.torn.why
            raise StoreDamagedError(
                f"{job.log.root}, log offset {position}: {why}; queues and index were left as"
                " they are",
                "keelog store verify --deep, keelog store repair",
            )
        return sorted(reports, key=lambda report: report.ends.number), stitched

    def _check_runs(self, runs: Runs) -> None:
        problems = list(islice(run_problems(runs), _PROBLEMS_TOLD + 1))
        if problems:
            told = [
                f"{problem.queue.topic}/{problem.queue.queue_id}: {problem.detail}"
                for problem in problems[:_PROBLEMS_TOLD]
            ]
            more = "; and more" if len(problems) > _PROBLEMS_TOLD else ""
            raise JobFailed(
                "; ".join(told) + more,
                "keelog store rebuild, which numbers units as a broker does",
            )

    def _make_index(self, reports: Iterable[RangeReport]) -> tuple[int, int]:
        """Has the index files written; answers how many entries and files."""
        if self.job.keys is None:
            return 0, 0
        keys = replace(self.job, keys=str(self.building.folder(KEYS_DIR)))
        spilled = [
            (str(keys.keys_path(report.ends.number)), report.keys)
            for report in reports
            if report.keys
        ]
        folder = self.building.folder(INDEX_DIR)
        temporary = self.building.folder(KEYS_DIR)
        plans = plan_index_files(folder, temporary, self.geometry, spilled, self.job.syncs)
        return sum(run_tasks(self.spark, "index files", write_index_file, plans)), len(plans)

    def _finish_queues(self, runs: Runs) -> int:
        """Fills up first files, and holds the files against the runs; answers how many."""
        if self.job.queues is None:
            return 0
        folder, file_bytes = self.building.folder(CONSUME_QUEUE_DIR), self.job.queue_file_bytes
        per_file = file_bytes // UNIT_BYTES
        fill = [
            (queue, found[0].start) for queue, found in runs.items() if found[0].start % per_file
        ]
        groups = [fill[at : at + _FILL_QUEUES] for at in range(0, len(fill), _FILL_QUEUES)]
        filler = partial(_fill, str(folder), file_bytes, self.job.syncs)
        run_tasks(self.spark, "fillers", filler, groups)
        expected = sum(
            (found[-1].end - 1) // per_file - found[0].start // per_file + 1
            for found in runs.values()
        )
        files = [path.stat().st_size for path in folder.glob("*/*/*")]
        if len(files) != expected or set(files) - {file_bytes}:
            raise JobFailed(
                f"{len(files)} queue files were written, of {sorted(set(files))} bytes; there"
                f" should be {expected} of {file_bytes}",
                "the same again; with several machines: a file system that all of them share",
            )
        return expected


def _fill(folder: str, file_bytes: int, syncs: bool, queues: list[tuple[Queue, int]]) -> None:
    with closing(UnitFiles(Path(folder), file_bytes, syncs)) as files:
        for queue, first in queues:
            files.fill(queue, first)
