"""Holds a whole store against itself, in tasks: what `keelog store verify --deep` finds.

Every range of the log is read once, by one task, which verifies its records and compares them with
the queue and index files in place; nothing is shuffled, and only differences come back, with the
runs of units that records called for. Nothing is changed, and no lock is taken.

The findings of the tasks are joined to what one walk over the whole log would have found, and
reported as rows: an Arrow table, a DataFrame, Parquet and JSON files.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from keelog.pipeline.errors import BadOption, StoreUnreadable, naming_conditions
from keelog.pipeline.jobs.audit_task import (
    AuditJob,
    AuditReport,
    QueueBounds,
    audit_chain,
    audit_range,
    merge_notes,
)
from keelog.pipeline.jobs.scan import RANGE_BYTES, ScanRange, plan_ranges
from keelog.pipeline.jobs.session_run import run_tasks
from keelog.pipeline.stores.access import Way, place_of
from keelog.pipeline.task_spec import LogAt
from node.runtime.settings import Settings
from node.store.condition import check_is_store
from node.store.indexes import IndexFile
from node.store.log.reader import Bounds, Damage, LogReader, next_record
from node.store.opening import StoppedStore
from node.store.verify.findings import Findings
from node.store.verify.index import IndexCheck
from node.store.verify.log import LogCheck
from node.store.verify.queues import CheckedQueue, QueueCheck
from node.store.verify.verify import VerifyReport
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.record.codec import Torn

Again = Callable[[ScanRange], AuditReport]
_TASKS_A_CORE = 2
_PROBED_ENTRIES = 1000
FINDINGS_FILE = "findings.parquet"
REPORT_FILE = "report.json"
SCHEMA = pa.schema(
    [
        ("severity", pa.string()),
        ("kind", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("detail", pa.string()),
        ("count", pa.int64()),
        ("try", pa.string()),
        ("repair", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What was looked at and what is wrong. `repaired`: as for a rebuild."""

    path: Path
    report: VerifyReport
    ranges: int
    repaired: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """No damage: what the next start mends anyway does not count."""
        return self.report.ok

    def shape(self) -> dict[str, Any]:
        """As JSON: the shape of `keelog store verify`, each finding with a proposed repair."""
        shape = self.report.shape()
        findings = [
            {**finding, "try": repair, "repair": repair}
            for finding in shape["findings"]
            for repair in [proposed_repair(self.path, finding)]
        ]
        return {**shape, "findings": findings, "seconds": round(self.seconds, 3)}


def audit(
    spark: SparkSession,
    path: Path | str,
    settings: Settings | None = None,
    range_bytes: int = RANGE_BYTES,
) -> AuditResult:
    """Checks a store that nobody runs: every record, unit and entry, from both sides.

    Every task must see the path. Raises BadOption for an address, NotAStore,
    StoreDamaged for what the disk cannot read, StoreUnreadable, EngineFailed; all other damage
    is what it reports.
    """
    began = time.monotonic()
    root = check_audit(path)
    with naming_conditions(), StoppedStore(root, settings or Settings(), strict=False) as store:
        work = _Audit(spark, store)
        report = work.run(range_bytes)
        return AuditResult(root, report, work.ranges, work.repaired, time.monotonic() - began)


def check_audit(path: Path | str) -> Path:
    """The folder of a store that can be audited. Raises BadOption, NotAStore."""
    at = place_of(path)
    if at.way is Way.OBJECTS:
        raise BadOption(
            f"{at.root} is in an object store: an audit looks into queue and index"
            " files at many places",
            "a copy on a file system, or the bucket mounted",
        )
    with naming_conditions():
        check_is_store(Path(at.root))
    return Path(at.root)


class _Audit:
    def __init__(self, spark: SparkSession, store: StoppedStore) -> None:
        self._spark = spark
        self._store = store
        self._findings = Findings()
        self._log = LogCheck(store, self._findings, lambda _done, _all: None)
        self._queues = QueueCheck(store, self._findings)
        self._index = IndexCheck(store, self._findings)
        self.ranges = 0
        self.repaired = False

    def run(self, range_bytes: int) -> VerifyReport:
        """Checks structure here, contents in tasks, and here again what needs all of both."""
        store, log, queues, index = self._store, self._log, self._queues, self._index
        log.structure()
        queues.structure()
        index.structure(store.index_folder)
        job = self._job()
        for report in self._ranges(job, range_bytes):
            self._merge(report)
        self._chains(job)
        log.tail()
        log.checkpoint()
        index.beyond()
        queues.leftovers(log.damaged)
        index.first_times()
        return VerifyReport(
            root=store.root,
            is_deep=True,
            clean_shutdown=store.condition.is_clean,
            min_offset=store.log.min_offset,
            max_offset=store.log.end,
            records=log.records,
            queues=len(store.folders),
            units=queues.units,
            index_files=index.files,
            index_entries=index.entries,
            findings=self._findings.all(),
        )

    def _job(self) -> AuditJob:
        store, index = self._store, self._index
        bounds: dict[Queue, QueueBounds | None] = dict.fromkeys(store.folders)
        for queue, seen in self._queues.seen.items():
            bounds[queue] = QueueBounds(seen.start, seen.end)
        try:
            file_bytes = store.queue_file_bytes
        except StoreDamaged:
            file_bytes = 0  # the check of the structure has reported it; no queue is opened then
        return AuditJob(
            log=LogAt.of(str(store.root), store.log),
            settings=store.settings,
            condition=store.condition,
            queue_file_bytes=file_bytes,
            queues=bounds,
            index=tuple((file.name, file.geometry) for file in index.opened),
            index_files=index.files,
            vouched=index.vouched,
            with_tags=_indexes_tags(store, index.opened),
        )

    def _ranges(self, job: AuditJob, range_bytes: int) -> list[AuditReport]:
        """The reports that count, in log order; damage between and within them is noted."""
        context = self._spark.sparkContext
        ranges = plan_ranges(job.log, range_bytes, _TASKS_A_CORE * context.defaultParallelism)
        reports = run_tasks(self._spark, "audit", partial(audit_range, job), ranges)
        stitch = AuditStitch(self._store.log, self._log, partial(audit_range, job))
        for number, (start, end) in enumerate(self._store.runs):
            if number:
                self._log.damaged.append((self._store.runs[number - 1][1], start))
            spans = [span for span in ranges if start <= span.start < end]
            stitch.run(start, end, spans, reports)
        self.ranges, self.repaired = len(ranges), stitch.repaired
        return stitch.kept

    def _merge(self, report: AuditReport) -> None:
        log, queues = self._log, self._queues
        log.records += report.records
        log.last_time = max(log.last_time, report.newest_time)
        self._findings.merge(report.findings)
        for queue, runs in report.called.items():
            seen: CheckedQueue = queues.seen[queue]
            seen.called += runs
            seen.vouched = max(seen.vouched, report.vouched[queue])
        merge_notes(self._index, report.index)

    def _chains(self, job: AuditJob) -> None:
        """Checks each file's order and chains in tasks; skips order errors that ranges reported."""
        names = [file.name for file in self._index.opened]
        for findings, notes in run_tasks(self._spark, "chains", partial(audit_chain, job), names):
            for name, rows in notes.disorder.items():
                self._index.order(name, rows)
            self._findings.merge(findings)
            merge_notes(self._index, notes)


class AuditStitch:
    """Goes through ranges in log order; notes damage in `check`, keeps the reports that count.

    After damage the log goes on at the first record of a range that is not older than what is
    before the damage. `again` audits a range from another place: where a body imitates a record
    at its own place, the task has started at that.
    """

    def __init__(self, log: LogReader, check: LogCheck, again: Again) -> None:
        self._log = log
        self._check = check
        self._again = again
        self._torn: Torn | None = None
        self._last_time = 0
        self._expected = 0
        self.kept: list[AuditReport] = []
        self.repaired = False

    def run(
        self, start: int, end: int, spans: Iterable[ScanRange], reports: Sequence[AuditReport]
    ) -> None:
        """The log in [start, end), which has no gap. `reports` are in the order of all ranges."""
        self._torn, self._last_time, self._expected = None, 0, start
        for span in spans:
            self._range(span, reports[span.number])
        if self._torn is not None:
            reader = LogReader(self._log.segments, Bounds(start, min(end, self._log.end)))
            self._check.add_end(reader, self._torn)

    def _range(self, span: ScanRange, found: AuditReport) -> None:
        if self._torn is None:
            if self._expected >= span.stop:
                # A record, or the filler, reaches over all of it.
                self.repaired |= found.ends.first is not None
                return
            if self._starts_at(found) != self._expected:
                self.repaired |= found.ends.first is not None
                found = self._again(replace(span, start=self._expected, is_proven=True))
            self._keep(found)
            return
        if found.ends.first is None:
            return
        first: int | None = found.ends.first
        if found.first_time < self._last_time:
            start = max(self._torn.position + 1, span.start)
            first = next_record(self._log, start, self._last_time, span.stop)
            if first is None:
                return
            found = self._again(replace(span, start=first, is_proven=True))
        assert first is not None
        where = str(self._log.segment_at(self._torn.position).path)
        self._check.add_damage(Damage(where, self._torn, first))
        self._torn = None
        # The bytes before the first record are part of the same damage.
        found.damages = [one for one in found.damages if one.torn.position > first]
        self._keep(found)

    @staticmethod
    def _starts_at(found: AuditReport) -> int | None:
        """Where the task began to read, if anything stood there, a record or damage."""
        places = [damage.torn.position for damage in found.damages]
        places += [] if found.ends.first is None else [found.ends.first]
        places += [] if found.ends.torn is None else [found.ends.torn.position]
        return min(places, default=None)

    def _keep(self, found: AuditReport) -> None:
        for damage in found.damages:
            self._check.add_damage(damage)
        self.kept.append(found)
        self._last_time = found.last_time or self._last_time
        self._torn, self._expected = found.ends.torn, found.ends.end


def _indexes_tags(store: StoppedStore, files: list[IndexFile]) -> bool:
    """True if the index holds entries for TAGS; the setting decides where the files do not show it.

    A guess that saves work: what differs from it is looked at record by record.
    """
    setting = store.settings.index_tags_enable
    for file in files[-1:]:
        offsets = file.entries()["physical_offset"][:_PROBED_ENTRIES].astype(np.int64)
        if not len(offsets) or not store.log.min_offset <= offsets[0] < store.log.end:
            continue
        # Some entries of the first and of the last record may be in the files next to this one.
        inner = offsets[(offsets > offsets[0]) & (offsets < offsets[-1])]
        for columns in store.log.columns(int(offsets[0]), int(offsets[-1]), verify=False):
            requests = DispatchRequests(columns, store.settings.delay_levels_ms)
            with_tags, without = (
                key_batch(requests, tags).physical_offset for tags in (True, False)
            )
            if len(with_tags) != len(without):
                found = int(np.isin(inner, columns.physical_offset).sum())
                counts = [int(np.isin(rows, inner).sum()) for rows in (with_tags, without)]
                return abs(found - counts[0]) <= abs(found - counts[1])
    return setting


def proposed_repair(root: Path, finding: dict[str, Any]) -> str:
    """The command that mends a finding of `shape()`; after it, audit again."""
    kind, file = finding["kind"], str(finding["file"])
    if kind == "foreign_file":
        return f"mv {file} <elsewhere>"
    if finding["severity"] == "warning":
        return f"keelog serve {root}"
    if file.startswith(str(root / "consumequeue")):
        return f"keelog spark rebuild {root} --queues"
    if file.startswith(str(root / "index")):
        return f"keelog spark rebuild {root} --index"
    return f"keelog store repair {root} --apply"


def findings_table(result: AuditResult) -> pa.Table:
    """One row a finding, errors first. `offset` is a log offset, or an index entry's number."""
    return pa.Table.from_pylist(result.shape()["findings"], SCHEMA)


def findings_frame(spark: SparkSession, result: AuditResult) -> DataFrame:
    """The same as a DataFrame."""
    return spark.createDataFrame(findings_table(result))


def write_report(result: AuditResult, folder: Path | str) -> None:
    """Writes findings.parquet and report.json into a folder, made when absent.

    Raises StoreUnreadable.
    """
    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pq.write_table(findings_table(result), out / FINDINGS_FILE)
        (out / REPORT_FILE).write_text(json.dumps(result.shape(), indent=2) + "\n")
    except OSError as error:
        raise StoreUnreadable(f"the report was not written: {error}", "another --report") from None
