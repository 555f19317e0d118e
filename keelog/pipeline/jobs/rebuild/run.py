"""Makes ConsumeQueue and IndexFile anew from the CommitLog, byte for byte as the workers do.

Tasks read ranges of the log and write the files themselves; only summaries come back. The driver
proves that the ranges join (scan.py) and that every queue's units do (unit_runs.py), has the index
files written, and brings all in: by one rename a folder, or by a manifest where nothing is renamed
(target.py).
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from keelog.pipeline.errors import BadOption, JobFailed, StoreUnreadable, naming_conditions
from keelog.pipeline.jobs.locations import check_can_make, place_of
from keelog.pipeline.jobs.rebuild.local_build import KEYS_DIR, Building
from keelog.pipeline.jobs.rebuild.range_task import RangeJob, RangeReport, rebuild_range
from keelog.pipeline.jobs.rebuild.shuffle import Shuffled, shuffle_ranges
from keelog.pipeline.jobs.rebuild.target import LocalTarget, ObjectTarget, Target
from keelog.pipeline.jobs.rebuild.unit_runs import Runs, joined_runs, run_problems, unit_count
from keelog.pipeline.jobs.scan import (
    RANGE_BYTES,
    RangeEnds,
    ScanRange,
    Stitched,
    plan_ranges,
    scan_ends,
    stitch,
)
from keelog.pipeline.jobs.session_run import run_tasks
from keelog.pipeline.stores.access import StoreAt, Way
from keelog.pipeline.stores.opening import planning_files, resting_root
from keelog.pipeline.task_spec import LogAt
from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.store.condition import check_is_store
from node.store.file_sizes import found_file_bytes, found_geometry
from node.store.opening import StoppedStore
from protocol.derived.file_layouts import IndexGeometry
from protocol.errors import NotAStore, StoreDamaged, StoreLocked
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR

Plan = Literal["inplace", "shuffle"]
PLANS = ("inplace", "shuffle")

_PROBLEMS_TOLD = 5
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


def rebuild(
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
    sorts them and writes whole files, where a file system cannot do the former. Both paths may be
    addresses in an object store; `out` then needs the plan `shuffle`, and holds a rebuild when
    `read_rebuild` finds its manifest.
    Raises NotAStore, StoreLocked, StoreDamaged (the log itself), JobFailed (queue
    offsets that are missing or there twice), BadOption, StoreUnreadable, EngineFailed. The old
    files are untouched then.
    """
    began = time.monotonic()
    store, target = _places(path, plan, out)
    settings = settings or Settings()
    with ExitStack() as stack:
        root = _find_store(store)
        if target is None:
            stack.callback(_lock(root).release)
        job = RangeJob(
            log=_open_log(root, store, settings),
            delay_levels_ms=settings.delay_levels_ms,
            queue_file_bytes=found_file_bytes(root, settings.queue_file_bytes),
            with_tags=settings.index_tags_enable,
            queues=CONSUME_QUEUE_DIR if queues else None,
            keys=KEYS_DIR if index else None,
            syncs=not (spark.sparkContext.master or "").startswith("local"),
            access=store.access,
        )
        try:
            geometry = found_geometry(root, settings.index_geometry)
            made = _target(spark, job, store, target)
            stack.enter_context(made.held())
            _check_is_new(target)
            work = _SparkRebuild(spark, made, geometry, plan)
            return work.run(range_bytes, lambda: time.monotonic() - began)
        except OSError as error:
            raise StoreUnreadable(str(error), "a file system with room") from None


def check_rebuild(path: Path | str, plan: Plan = "inplace", out: Path | str | None = None) -> None:
    """Raises what `rebuild` raises before it needs Spark. An object store is not looked into."""
    store, target = _places(path, plan, out)
    if store.way is Way.OBJECTS:
        return
    root = _find_store(store)
    if target is None:
        _lock(root).release()
    elif target.way is Way.FILES:
        check_can_make(Path(target.root))


def _places(path: Path | str, plan: Plan, out: Path | str | None) -> tuple[StoreAt, StoreAt | None]:
    store, target = place_of(path), None if out is None else place_of(out)
    _check_ways(store, target, plan)
    return store, target


def _check_ways(store: StoreAt, target: StoreAt | None, plan: Plan) -> None:
    """Raises BadOption for what there is not, or cannot be done together."""
    if plan not in PLANS:
        raise BadOption(f"there is no plan {plan!r}", " or ".join(PLANS))
    if target is None and store.way is Way.OBJECTS:
        raise BadOption(
            f"{store.root} is in an object store, where nothing can be switched in",
            "--out with a new folder, or with an address of its own and --plan shuffle",
        )
    if target is not None and target.way is Way.OBJECTS and plan == "inplace":
        raise BadOption(
            f"{target.root} is in an object store, which writes whole objects alone",
            "--plan shuffle",
        )
    _check_is_new(target)


def _check_is_new(target: StoreAt | None) -> None:
    if target is not None and target.way is Way.FILES and Path(target.root).exists():
        raise BadOption(f"{target.root} exists", "a folder that does not")


def _find_store(store: StoreAt) -> Path:
    """The store's root. Raises NotAStore, StoreUnreadable."""
    with naming_conditions():
        root = resting_root(store)
        check_is_store(root)
    if not (root / COMMIT_LOG_DIR).is_dir():
        raise NotAStore.worded(
            "KEELOG_NOT_A_STORE", f"{store.root} holds no commitlog/", "the folder that holds it"
        )
    return root


def _open_log(root: Path, at: StoreAt, settings: Settings) -> LogAt:
    with naming_conditions(), StoppedStore(root, settings, files=planning_files(at)) as store:
        return LogAt.of(at.root, store.log, store.removed)


def _target(spark: SparkSession, job: RangeJob, store: StoreAt, target: StoreAt | None) -> Target:
    if target is not None and target.way is Way.OBJECTS:
        return ObjectTarget(spark, job, target)
    folders = ((CONSUME_QUEUE_DIR, job.queues), (INDEX_DIR, job.keys))
    made = [name for name, wanted in folders if wanted is not None]
    out = None if target is None else Path(target.root)
    return LocalTarget(spark, job, Building(Path(store.root), out, made))


def _lock(root: Path) -> StoreLock:
    try:
        return StoreLock.acquire(root)
    except StoreLocked as error:
        error.condition = "KEELOG_STORE_LOCKED"
        raise error from None


@dataclass(slots=True)
class _SparkRebuild:
    spark: SparkSession
    target: Target
    geometry: IndexGeometry
    plan: Plan

    def run(self, range_bytes: int, seconds: Callable[[], float]) -> RebuildResult:
        """All of it, up to the switch."""
        log, cores = self.target.job.log, self.spark.sparkContext.defaultParallelism
        ranges = plan_ranges(log, range_bytes, _TASKS_A_CORE * cores)
        done, stitched = self._attempt(ranges)
        repaired = not stitched.is_same
        if repaired:
            # What was written by records that are none is thrown away with all the rest.
            ranges = stitched.ranges
            done, stitched = self._attempt(ranges)
            if not stitched.is_same:
                raise JobFailed(
                    f"the log of {log.root} changed while it was read", "stop who writes to it"
                )
        runs = joined_runs([report.runs for report in done.reports])
        self._check_runs(runs)
        index = self.target.make_index(self.geometry, done.reports)
        queue_files = self.target.finish_queues(runs, done.files)
        result = RebuildResult(
            start=log.start,
            end=log.end,
            records=sum(report.records for report in done.reports),
            queues=len(runs),
            units=unit_count(runs),
            queue_files=queue_files,
            index_files=index.files,
            index_entries=index.entries,
            ranges=len(ranges),
            repaired=repaired,
            seconds=seconds(),
        )
        self.target.publish(result.shape())
        return replace(result, seconds=seconds())

    def _attempt(self, ranges: list[ScanRange]) -> tuple[Shuffled, Stitched]:
        """Reads all ranges and writes, from nothing on. Raises StoreDamaged."""
        self.target.begin()
        job = self.target.job
        if self.plan == "shuffle" and job.queues is not None:
            done = shuffle_ranges(self.spark, job, ranges)
        else:
            done = Shuffled(
                run_tasks(self.spark, "rebuild", partial(rebuild_range, job), ranges), []
            )
        ends = [report.ends for report in done.reports]
        stitched = stitch(job.log, ranges, ends, partial(self._rescan, job))
        if stitched.torn is not None:
            position, why = stitched.torn.position, stitched.torn.why
            raise StoreDamaged.worded(
                "KEELOG_STORE_DAMAGED",
                f"{job.log.root}, log offset {position}: {why}; queues and index were left as"
                " they are",
                f"keelog store verify {job.log.root} --deep, keelog store repair {job.log.root}",
            )
        return done._replace(reports=sorted(done.reports, key=_number)), stitched

    @staticmethod
    def _rescan(job: RangeJob, span: ScanRange) -> RangeEnds:
        with naming_conditions():
            return scan_ends(job.log, span, job.access)

    @staticmethod
    def _check_runs(runs: Runs) -> None:
        problems = list(islice(run_problems(runs), _PROBLEMS_TOLD + 1))
        if problems:
            more = "; and more" if len(problems) > _PROBLEMS_TOLD else ""
            raise JobFailed(
                "; ".join(problems[:_PROBLEMS_TOLD]) + more,
                "keelog store rebuild, which numbers units as a broker does",
            )


def _number(report: RangeReport) -> int:
    return report.ends.number
