"""Makes ConsumeQueue and IndexFile anew from the CommitLog, byte for byte as the workers do.

Tasks read ranges of the log and write the files themselves; only summaries come back. The driver
proves that the ranges join (scan.py) and that every queue's units do, has the
index files written, and brings all in. On a file system an attempt is a folder beside, which one
rename switches in. In an object store objects are written whole where they stay, and a manifest is
written last.
"""

import errno
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from keelog.pipeline.errors import BadOption, JobFailed, StoreUnreadable, log, naming_conditions
from keelog.pipeline.jobs import rebuild_task, scan
from keelog.pipeline.jobs.publication import ObjectFolder, OutFile, RebuildManifest, try_lock
from keelog.pipeline.jobs.rebuild_task import KEYS_DIR, RangeJob
from keelog.pipeline.jobs.scan import RANGE_BYTES, Runs, ScanRange, Stitched
from keelog.pipeline.session import run_tasks
from keelog.pipeline.stores import object_store
from keelog.pipeline.stores.access import StoreAt, Way, check_can_make, place_of
from keelog.pipeline.task_spec import LogAt
from node.runtime import disk
from node.runtime.locks import StoreLock
from node.runtime.settings import Settings
from node.store import checkpoints, file_sizes, opening
from node.store.condition import INDEX_WORKER, QUEUE_WORKER_PREFIX, check_is_store
from protocol import addresses, errors, ids
from protocol.derived.file_layouts import UNIT_BYTES, IndexGeometry
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, INDEX_DIR, offset_file_name

BUILDING_SUFFIX = ".building"
_OLD_DIR = "old"
_LOCK_SUFFIX = ".lock"
_NO_LOCKS = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))
"""What file systems say that know no locks, as some mounted buckets do."""
_CLEAR_TRIES = 5
_WORKERS = {CONSUME_QUEUE_DIR: QUEUE_WORKER_PREFIX, INDEX_DIR: INDEX_WORKER}
_FILL_QUEUES = 64
"""Queues whose first file one task fills up."""
Plan = Literal["inplace", "shuffle"]
PLANS = ("inplace", "shuffle")
_PROBLEMS_NAMED = 5
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
            queue_file_bytes=file_sizes.found_file_bytes(root, settings.queue_file_bytes),
            with_tags=settings.index_tags_enable,
            queues=CONSUME_QUEUE_DIR if queues else None,
            keys=KEYS_DIR if index else None,
            syncs=not (spark.sparkContext.master or "").startswith("local"),
        )
        try:
            geometry = file_sizes.found_geometry(root, settings.index_geometry)
            made: Target
            if target is not None and target.way is Way.OBJECTS:
                made = ObjectTarget(spark, job, target)
            else:
                out = None if target is None else Path(target.root)
                if out is not None:
                    stack.enter_context(held_folder(out))
                made = LocalTarget(spark, job, out)
            _check_is_new(target)
            return _rebuild(made, geometry, plan, range_bytes, began)
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
    """Raises BadOption for what there is not, or cannot be done together."""
    store, target = place_of(path), None if out is None else place_of(out)
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
    return store, target


def _check_is_new(target: StoreAt | None) -> None:
    if target is not None and target.way is Way.FILES and Path(target.root).exists():
        raise BadOption(f"{target.root} exists", "a folder that does not")


def _find_store(store: StoreAt) -> Path:
    """The store's root. Raises NotAStore, StoreUnreadable."""
    with naming_conditions():
        # An object store is listed.
        root = Path(store.root) if store.way is Way.FILES else object_store.listed_root(store)
        check_is_store(root)
    if not (root / COMMIT_LOG_DIR).is_dir():
        raise errors.NotAStore.worded(
            "KEELOG_NOT_A_STORE", f"{store.root} holds no commitlog/", "the folder that holds it"
        )
    return root


def _open_log(root: Path, at: StoreAt, settings: Settings) -> LogAt:
    files = None if at.way is Way.FILES else object_store.planning_files(at)
    with naming_conditions(), opening.StoppedStore(root, settings, files=files) as store:
        return LogAt.of(at, store.log, store.removed)


def _lock(root: Path) -> StoreLock:
    try:
        return StoreLock.acquire(root)
    except errors.StoreLocked as error:
        error.condition = "KEELOG_STORE_LOCKED"
        raise error from None


@contextmanager
def held_folder(out: Path) -> Iterator[None]:
    """Holds a folder that is to be made against other jobs. Raises StoreLocked, OSError.

    By a file beside it, as NFS has no locks on folders.
    """
    path = out.with_name(out.name + BUILDING_SUFFIX + _LOCK_SUFFIX)
    handle = _locked_file(path, out)
    try:
        yield
    finally:
        disk.unlink(path, missing_ok=True)
        os.close(handle)


def _locked_file(path: Path, out: Path) -> int:
    disk.make_dir(path.parent)
    while True:
        handle = disk.open_file(path, create=True)
        try:
            is_held = try_lock(handle)
            with suppress(FileNotFoundError):
                if is_held and os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(handle)
                raise
            log.warning("%s cannot be locked: run one job at a time into it", out)
            return handle
        os.close(handle)
        if not is_held:
            raise errors.StoreLocked.worded(
                "KEELOG_STORE_LOCKED",
                f"another job writes to {out}",
                "again when it has ended, or another --out",
            )
        # The job that had it has just ended, and has removed it.


class LocalTarget:
    """A new folder, or, without `out`, the store itself.

    One attempt after the other is written below one folder, `<name>.building/<attempt>`, which only
    the driver makes; the last one is switched in. A task of an attempt that was given up, or
    switched in, finds the folder gone, and fails. `job` is what tasks of the present attempt get.
    """

    def __init__(self, spark: SparkSession, job: RangeJob, out: Path | None) -> None:
        self.spark = spark
        self.job = job
        folders = ((CONSUME_QUEUE_DIR, job.queues), (INDEX_DIR, job.keys))
        self._folders = [name for name, wanted in folders if wanted is not None]
        self._root = Path(job.log.store.root)
        self._out = out
        in_place = self._root / checkpoints.UNFINISHED_DIR
        self.base = in_place if out is None else out.with_name(out.name + BUILDING_SUFFIX)
        self.attempt = self.base

    def begin(self) -> None:
        """Throws away what an earlier attempt left, and makes the folders of a new one."""
        self._clear()
        self.attempt = self.base / uuid.uuid4().hex
        for name in (*self._folders, KEYS_DIR):
            disk.make_dir(self.attempt / name)
        job, attempt = self.job, self.attempt
        self.job = replace(
            job,
            queues=None if job.queues is None else str(attempt / CONSUME_QUEUE_DIR),
            keys=None if job.keys is None else str(attempt / KEYS_DIR),
        )

    def _clear(self) -> None:
        """Removes everything below the folder, and it. Raises OSError."""
        for _ in range(_CLEAR_TRIES):
            # A late task of an earlier attempt may be making a file at this moment.
            with suppress(OSError):
                if self.base.is_dir():
                    disk.remove_tree(self.base)
                return
        disk.remove_tree(self.base)

    def make_index(self, geometry: IndexGeometry, spilled: rebuild_task.Spilled) -> list[int]:
        """Has the index files written from the keys that ranges left; how many entries each has."""
        assert self.job.keys is not None
        plans = rebuild_task.plan_index_files(str(self.attempt / INDEX_DIR), geometry, spilled)
        write = partial(rebuild_task.write_index_file, self.job.keys, self.job.syncs)
        return run_tasks(self.spark, "index files", write, plans)

    def finish_queues(self, runs: Runs, written: Sequence[OutFile]) -> int:
        """Holds the queue files against the runs, else JobFailed; returns how many there are."""
        job = self.job
        assert job.queues is not None
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

    def _sync(self) -> None:
        """Makes all files of the attempt durable, and their names."""
        for name in self._folders:
            for path in (self.attempt / name).rglob("*"):
                if path.is_dir():
                    disk.sync_dir(path)
                else:
                    disk.sync_file(path)
            disk.sync_dir(self.attempt / name)

    def publish(self, figures: Mapping[str, object]) -> None:
        """Makes all of it what readers see, by one rename a folder. Raises JobFailed, OSError.

        The old files go last. As with the worker's rebuild, no progress vouches for a folder while
        it is exchanged.
        """
        if not self.job.syncs:
            self._sync()
        disk.remove_tree(self.attempt / KEYS_DIR)
        if self._out is not None:
            disk.sync_dir(self.attempt)
            disk.rename(self.attempt, self._out)
            disk.sync_dir(self._out.parent)
            self._clear()
            return
        old = self.attempt / _OLD_DIR
        disk.make_dir(old)
        slots = {
            name: checkpoints.forget_progress(self._root, _WORKERS[name]) for name in self._folders
        }
        if CONSUME_QUEUE_DIR in self._folders:
            checkpoints.clear_unfinished(self._root)
        for name in self._folders:
            with suppress(FileNotFoundError):
                disk.rename(self._root / name, old / name)
            disk.rename(self.attempt / name, self._root / name)
        disk.sync_dir(self._root)
        epochs = checkpoints.load_epochs(self._root)
        progress = checkpoints.WorkerCheckpoint(
            epochs[-1].epoch if epochs else 0,
            min(checkpoints.load_floor(self._root), self.job.log.end),
        )
        for name in self._folders:
            checkpoints.vouch_again(self._root, slots[name], progress)
        self._clear()


def _fill(folder: str, file_bytes: int, syncs: bool, queues: list[tuple[ids.Queue, int]]) -> None:
    with closing(rebuild_task.UnitFiles(Path(folder), file_bytes, syncs)) as files:
        for queue, first in queues:
            files.fill(queue, first)


class ObjectTarget:
    """The same in a folder of a bucket, which is this job's from `begin` on."""

    def __init__(self, spark: SparkSession, job: RangeJob, at: StoreAt) -> None:
        self.spark = spark
        self.job = job
        self._folder = ObjectFolder(at)
        self._at = at
        self._files: list[OutFile] = []

    def begin(self) -> None:
        self._folder = ObjectFolder(self._at, uuid.uuid4().hex)
        self._folder.begin()
        self._files = []
        keys = None if self.job.keys is None else self._folder.keys
        self.job = replace(self.job, out=self._folder, keys=keys)

    def make_index(self, geometry: IndexGeometry, spilled: rebuild_task.Spilled) -> list[int]:
        with rebuild_task.naming_spill(self._folder):
            plans = rebuild_task.plan_index_files(INDEX_DIR, geometry, spilled, self._folder.input)
        write = partial(rebuild_task.write_index_object, self._folder)
        made = run_tasks(self.spark, "index files", write, plans)
        self._files += [file for _, file in made]
        return [entries for entries, _ in made]

    def finish_queues(self, runs: Runs, written: Sequence[OutFile]) -> int:
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
        self._folder.publish(
            RebuildManifest(
                source=addresses.without_credentials(log.store.root),
                log_start=log.start,
                log_end=log.end,
                figures=figures,
                files=sorted(self._files),
            )
        )


Target = LocalTarget | ObjectTarget


def _queue_file_paths(runs: Runs, file_bytes: int) -> set[str]:
    """The files that these units are in, below the folder of queues."""
    per_file = file_bytes // UNIT_BYTES
    return {
        f"{queue.topic}/{queue.queue_id}/{offset_file_name(number * file_bytes)}"
        for queue, found in runs.items()
        for number in range(found[0].start // per_file, (found[-1].end - 1) // per_file + 1)
    }


def _rebuild(
    target: Target, geometry: IndexGeometry, plan: Plan, range_bytes: int, began: float
) -> RebuildResult:
    """All of it, with the switch."""
    log, cores = target.job.log, target.spark.sparkContext.defaultParallelism
    ranges = scan.plan_ranges(log, range_bytes, _TASKS_A_CORE * cores)
    reports, files, stitched = _attempt(target, plan, ranges)
    repaired = not stitched.is_same
    if repaired:
        # What was written by records that are none is thrown away with all the rest.
        ranges = stitched.ranges
        reports, files, stitched = _attempt(target, plan, ranges)
        if not stitched.is_same:
            raise JobFailed(
                f"the log of {log.store.root} changed while it was read",
                "stop who writes to it",
            )
    runs = scan.joined_runs([report.runs for report in reports])
    problems = list(islice(scan.run_problems(runs), _PROBLEMS_NAMED + 1))
    if problems:
        more = "; and more" if len(problems) > _PROBLEMS_NAMED else ""
        raise JobFailed(
            "; ".join(problems[:_PROBLEMS_NAMED]) + more,
            "keelog store rebuild, which numbers units as a broker does",
        )
    job, index, queue_files = target.job, list[int](), 0
    if job.keys is not None:
        keys = [(job.keys_path(one.ends.number), one.keys) for one in reports if one.keys]
        index = target.make_index(geometry, keys)
    if job.queues is not None:
        queue_files = target.finish_queues(runs, files)
    result = RebuildResult(
        start=log.start,
        end=log.end,
        records=sum(report.records for report in reports),
        queues=len(runs),
        units=sum(run.end - run.start for found in runs.values() for run in found),
        queue_files=queue_files,
        index_files=len(index),
        index_entries=sum(index),
        ranges=len(ranges),
        repaired=repaired,
        seconds=time.monotonic() - began,
    )
    target.publish(result.shape())
    return replace(result, seconds=time.monotonic() - began)


def _attempt(
    target: Target, plan: Plan, ranges: list[ScanRange]
) -> tuple[list[rebuild_task.RangeReport], list[OutFile], Stitched]:
    """Reads all ranges and writes, from nothing on. Raises StoreDamaged."""
    target.begin()
    job, files = target.job, list[OutFile]()
    if plan == "shuffle" and job.queues is not None:
        reports, files = rebuild_task.shuffle_ranges(target.spark, job, ranges)
    else:
        one_range = partial(rebuild_task.rebuild_range, job)
        reports = run_tasks(target.spark, "rebuild", one_range, ranges)
    with naming_conditions():
        stitched = scan.stitch(job.log, ranges, [report.ends for report in reports])
    if stitched.torn is not None:
        root, position, why = job.log.store.root, stitched.torn.position, stitched.torn.why
        raise errors.StoreDamaged.worded(
            "KEELOG_STORE_DAMAGED",
            f"{root}, log offset {position}: {why}; queues and index were left as they are",
            f"keelog store verify {root} --deep, keelog store repair {root}",
        )
    reports.sort(key=lambda one: one.ends.number)
    return reports, files, stitched
