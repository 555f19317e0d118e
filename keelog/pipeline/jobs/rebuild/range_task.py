"""What one task of a rebuild does: reads a range of the log, writes units and keys."""

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from keelog.pipeline.errors import StoreUnreadable, naming_conditions
from keelog.pipeline.jobs.rebuild.key_spill import FileKeySpill, KeySpill, StreamKeySpill
from keelog.pipeline.jobs.rebuild.object_folder import ObjectFolder
from keelog.pipeline.jobs.rebuild.unit_files import UnitFiles
from keelog.pipeline.jobs.rebuild.unit_runs import RebuiltRun, Runs, UnitGatherer
from keelog.pipeline.jobs.scan import RangeEnds, RangeScan, ScanRange
from keelog.pipeline.stores.access import Access
from keelog.pipeline.stores.opening import job_files
from keelog.pipeline.task_spec import LogAt
from node.store.file_cache import OpenFiles
from protocol.derived.dispatch_request import DispatchRequests
from protocol.errors import StoreDamaged


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
