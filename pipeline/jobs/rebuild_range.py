"""What one task of a rebuild does: reads a range of the log, writes units and keys."""

from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from node.store.open_files import OpenFiles
from pipeline.jobs.key_spill import KeySpill
from pipeline.jobs.scan import RangeEnds, RangeScan, ScanRange
from pipeline.jobs.unit_files import UnitFiles
from pipeline.jobs.unit_runs import QueueRows, Runs, UnitGatherer
from pipeline.parts import LogAt
from protocol.dispatch_request import dispatch_requests


@dataclass(frozen=True, slots=True)
class RangeJob:
    """Where the log is, and where to write; None for what is not made, or made by others.

    `syncs`: a task makes durable what it wrote, as nobody else can on another machine.
    """

    log: LogAt
    delay_levels_ms: tuple[int, ...]
    queue_file_bytes: int
    with_tags: bool
    queues: str | None
    keys: str | None
    syncs: bool

    def keys_path(self, number: int) -> Path:
        """Where a range leaves its keys."""
        return Path(self.keys or "") / f"{number:08d}"


@dataclass(frozen=True, slots=True)
class RangeReport:
    """What a task read and wrote."""

    ends: RangeEnds
    records: int
    runs: Runs
    keys: int


def rebuild_range(job: RangeJob, span: ScanRange) -> RangeReport:
    """Puts the range's units at their places and spills its keys. Raises JobFailed, OSError.

    Harmless when done twice: units of the same bytes at the same places, files by rename.
    """
    with ExitStack() as stack:
        files = OpenFiles()
        stack.callback(files.close)
        units = None
        if job.queues is not None:
            target = UnitFiles(Path(job.queues), job.queue_file_bytes, job.syncs)
            units = stack.enter_context(closing(target))
        spill = None
        if job.keys is not None:
            spill = stack.enter_context(
                KeySpill(job.keys_path(span.number), job.with_tags, job.syncs)
            )
        gatherer = UnitGatherer()
        scan = RangeScan(job.log.open(files), span)
        records = 0
        for columns in scan:
            requests = dispatch_requests(columns, job.delay_levels_ms)
            records += len(requests)
            if spill is not None:
                spill.add(requests)
            if units is not None:
                _write(units, gatherer.add(requests))
        if units is not None:
            _write(units, gatherer.flush())
        if spill is not None:
            spill.keep()
        return RangeReport(scan.ends(), records, gatherer.runs, 0 if spill is None else spill.count)


def _write(files: UnitFiles, found: Iterable[QueueRows]) -> None:
    for rows in found:
        if rows.start >= 0:  # else the driver names it, from the runs
            files.write(*rows)
