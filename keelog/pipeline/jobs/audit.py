"""Holds a whole store against itself, in tasks: what `keelog store verify --deep` finds.

Every range of the log is read once, by one task, which verifies its records and compares them with
the queue and index files in place; nothing is shuffled, and only differences come back, with the
runs of units that records called for. Nothing is changed, and no lock is taken.

The rules are those of `keelog store verify` (node/store/verify/). Bytes that are alike need no more
than that; only what differs is looked at record by record. The findings of the tasks are joined to
what one walk over the whole log would have found, and reported as rows: an Arrow table, a
DataFrame, Parquet and JSON files.
"""

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from keelog.pipeline.errors import BadOption, StoreUnreadable, naming_conditions
from keelog.pipeline.jobs import scan
from keelog.pipeline.session import run_tasks
from keelog.pipeline.stores.access import StoreAt, Way, place_of
from keelog.pipeline.task_spec import LogAt
from node.runtime.settings import Settings
from node.store.condition import Condition, check_is_store
from node.store.file_cache import OpenFiles
from node.store.indexes import IndexFile, open_index_file
from node.store.log.reader import Bounds, Damage, LogReader, next_record
from node.store.opening import StoppedStore
from node.store.queues import QueueFiles, open_queue_files, queue_folder
from node.store.verify.findings import ALIKE_MAX, Findings, Stretches, is_within
from node.store.verify.index import IndexCheck, disorder
from node.store.verify.queues import CheckedQueue, QueueCheck
from node.store.verify.verify import LogCheck, VerifyReport, blank_finding
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.derived.file_layouts import IndexGeometry, KeyBatch
from protocol.errors import StoreDamaged
from protocol.ids import Queue
from protocol.names import INDEX_DIR
from protocol.record.codec import Torn
from protocol.record.columns import RecordColumns

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
            finding | dict.fromkeys(("try", "repair"), proposed_repair(self.path, finding))
            for finding in shape["findings"]
        ]
        return {**shape, "findings": findings, "seconds": round(self.seconds, 3)}


def audit(
    spark: SparkSession,
    path: Path | str,
    settings: Settings | None = None,
    range_bytes: int = scan.RANGE_BYTES,
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


@dataclass(frozen=True, slots=True)
class AuditJob:
    """The store as the driver found it.

    `queues`: those with a folder, and of those whose files can be read the units [start, end) that
    these hold. `index`: files that can be read; `index_files` counts all. `with_tags`: the index
    has entries for TAGS.
    """

    log: LogAt
    settings: Settings
    condition: Condition
    queue_file_bytes: int
    queues: Mapping[Queue, tuple[int, int] | None]
    index: tuple[tuple[str, IndexGeometry], ...]
    index_files: int
    vouched: Mapping[str, int]
    with_tags: bool


@dataclass(slots=True)
class IndexNotes:
    """What only the whole index can judge."""

    lacks_entries: bool = False
    told: set[tuple[str, int]] = field(default_factory=set)
    odd_firsts: set[str] = field(default_factory=set)
    disorder: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)


@dataclass(slots=True)
class AuditReport:
    """What a task found. `damages` within the range have a place where the log goes on; the last
    one, in `ends.torn`, may have none."""

    ends: scan.RangeEnds
    records: int = 0
    first_time: int = 0
    last_time: int = 0
    newest_time: int = 0
    damages: list[Damage] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    called: dict[Queue, list[tuple[int, int]]] = field(default_factory=dict)
    vouched: dict[Queue, int] = field(default_factory=dict)
    index: IndexNotes = field(default_factory=IndexNotes)


def merge_notes(notes: IndexNotes | IndexCheck, found: IndexNotes | IndexCheck) -> None:
    """Adds what a check, or a task, has found."""
    notes.lacks_entries |= found.lacks_entries
    notes.told |= found.told
    notes.odd_firsts |= found.odd_firsts


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
        bounds: dict[Queue, tuple[int, int] | None] = dict.fromkeys(store.folders)
        for queue, seen in self._queues.seen.items():
            bounds[queue] = seen.start, seen.end
        try:
            file_bytes = store.queue_file_bytes
        except StoreDamaged:
            file_bytes = 0  # the check of the structure has reported it; no queue is opened then
        return AuditJob(
            log=LogAt.of(StoreAt("", str(store.root)), store.log),
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
        ranges = scan.plan_ranges(job.log, range_bytes, _TASKS_A_CORE * context.defaultParallelism)
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

    def __init__(
        self, log: LogReader, check: LogCheck, again: "Callable[[scan.ScanRange], AuditReport]"
    ) -> None:
        self._log = log
        self._check = check
        self._again = again
        self._torn: Torn | None = None
        self._last_time = 0
        self._expected = 0
        self.kept: list[AuditReport] = []
        self.repaired = False

    def run(
        self, start: int, end: int, spans: Iterable[scan.ScanRange], reports: Sequence[AuditReport]
    ) -> None:
        """The log in [start, end), which has no gap. `reports` are in the order of all ranges."""
        self._torn, self._last_time, self._expected = None, 0, start
        for span in spans:
            self._range(span, reports[span.number])
        if self._torn is not None:
            reader = LogReader(self._log.segments, Bounds(start, min(end, self._log.end)))
            self._check.add_end(reader, self._torn)

    def _range(self, span: scan.ScanRange, found: AuditReport) -> None:
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


class RangeStore:
    """The store as one task sees it; closes what it opened."""

    def __init__(self, job: AuditJob) -> None:
        self.job = job
        self.files = OpenFiles()
        self.root = Path(job.log.store.root)
        self.settings = job.settings
        self.condition = job.condition
        self.log: LogReader = job.log.open(self.files)
        self.queue_file_bytes = job.queue_file_bytes

    @cached_property
    def folders(self) -> dict[Queue, Path]:
        """The queues that have a folder."""
        return {queue: queue_folder(self.root, queue) for queue in self.job.queues}

    def files_of(self, queue: Queue) -> QueueFiles:
        """A queue's files as they are. Raises StoreDamaged, StorePermission."""
        return open_queue_files(queue_folder(self.root, queue), self.queue_file_bytes, self.files)

    def index_check(self, findings: Findings) -> IndexCheck:
        """A check of the index, for which its files are open."""
        job = self.job
        check = IndexCheck(self, findings)
        check.files, check.vouched = job.index_files, dict(job.vouched)
        check.opened = [
            open_index_file(self.root / INDEX_DIR / name, geometry, self.files)
            for name, geometry in job.index
        ]
        return check


class _RangeQueues(QueueCheck):
    """Opens a queue when the first record of it comes."""

    def __init__(self, store: RangeStore, findings: Findings) -> None:
        super().__init__(store, findings)
        self._range_store = store

    def seen_of(self, queue: Queue) -> CheckedQueue | None:
        if queue not in self.seen:
            bounds = self._range_store.job.queues.get(queue)
            if bounds is None:
                return None
            self.seen[queue] = CheckedQueue(self._range_store.files_of(queue), *bounds)
        return self.seen[queue]


def audit_range(job: AuditJob, span: scan.ScanRange) -> AuditReport:
    """Reads a range and compares. Raises StoreDamaged for files that cannot be read."""
    store = RangeStore(job)
    with closing(store.files):
        return _RangeAudit(job, span, store).run()


def audit_chain(job: AuditJob, name: str) -> tuple[Findings, IndexNotes]:
    """Slots, chains and order of one index file."""
    store, findings, notes = RangeStore(job), Findings(), IndexNotes()
    with closing(store.files):
        check = store.index_check(findings)
        file = next(file for file in check.opened if file.name == name)
        check.chain(file)
        merge_notes(notes, check)
        notes.disorder[name] = disorder(file)
        return findings, notes


class _RangeAudit:
    def __init__(self, job: AuditJob, span: scan.ScanRange, store: RangeStore) -> None:
        self._job = job
        self._span = span
        self._store = store
        self._report = AuditReport(scan.RangeEnds(span.number, None, span.start))
        self._queues = _RangeQueues(store, self._report.findings)
        self._keys: list[KeyBatch] = []

    def run(self) -> AuditReport:
        report, gatherer = self._report, scan.UnitGatherer(every=True)
        for columns in self._walk():
            blank = blank_finding(self._store.log, columns)
            if blank is not None:
                report.findings.add(blank)
            requests = DispatchRequests(columns, self._job.settings.delay_levels_ms)
            for rows in gatherer.add(requests, self._job.condition.removed):
                self._check_units(rows.queue, rows.start, rows.units)
            self._keys.append(key_batch(requests, self._job.with_tags))
        for rows in gatherer.flush():
            self._check_units(rows.queue, rows.start, rows.units)
        for queue, seen in self._queues.seen.items():
            report.called[queue], report.vouched[queue] = seen.called, seen.vouched
        if report.ends.first is not None and self._job.settings.message_index_enable:
            self._check_index()
        return report

    def _walk(self) -> Iterator[RecordColumns]:
        """The range's records, also after damage; notes damage and ends."""
        log, report, first = self._store.log, self._report, None
        span: scan.ScanRange | None = self._span
        while span is not None:
            walk = scan.RangeScan(log, span)
            for columns in walk:
                if first is None:
                    first = int(columns.physical_offset[0])
                    report.first_time = int(columns.store_timestamp[0])
                report.records += len(columns)
                report.last_time = int(columns.store_timestamp[-1])
                report.newest_time = max(report.newest_time, report.last_time)
                yield columns
            ends = walk.ends()
            report.ends = ends._replace(first=first)
            span = None if ends.torn is None else self._resumed(ends.torn)

    def _resumed(self, torn: Torn) -> scan.ScanRange | None:
        """The rest of the range after damage, which it notes; None without a record there."""
        span, log, report = self._span, self._store.log, self._report
        start = next_record(log, torn.position + 1, report.last_time, span.stop)
        if start is None:
            return None
        report.damages.append(Damage(str(log.segment_at(torn.position).path), torn, start))
        return replace(span, start=start, is_proven=True)

    def _check_units(self, queue: Queue, start: int, units: NDArray[Any]) -> None:
        self._queues.check(queue, np.arange(start, start + len(units)), units)

    def _check_index(self) -> None:
        """Compares the entries of the range with its keys; where they differ, window by window."""
        report = self._report
        check = self._store.index_check(report.findings)
        if not check.opened:
            first = next((keys.physical_offset for keys in self._keys if len(keys.key_hash)), None)
            if first is not None:
                check.missing(first[:1])
        elif not self._is_alike(check):
            self._compare(check)
        merge_notes(report.index, check)

    def _is_alike(self, check: IndexCheck) -> bool:
        ends = self._report.ends
        keys = KeyBatch.join(self._keys)
        assert ends.first is not None
        at = 0
        for file in check.opened:
            header = file.header
            if header.end_physical_offset < ends.first or header.begin_physical_offset >= ends.end:
                continue
            low, high = (_first_row(file, offset) for offset in (ends.first, ends.end))
            entries, mine = file.entries()[low:high], keys.rows(at, at + high - low)
            if not (
                len(mine.key_hash) == high - low
                and np.array_equal(entries["key_hash"], mine.key_hash)
                and np.array_equal(entries["physical_offset"], mine.physical_offset)
            ):
                return False
            rows = np.arange(low, high)
            diffs, is_told = check.time_diffs(file, rows, mine.store_timestamp)
            if (is_told & (diffs != entries["time_diff_s"])).any():
                return False
            at += high - low
        return at == len(keys.key_hash)

    def _compare(self, check: IndexCheck) -> None:
        """The same range again, each window's keys against the entries that name it."""
        report, log = self._report, self._store.log
        assert report.ends.first is not None
        check.done = position = report.ends.first
        damaged: Stretches = []
        for damage in [*report.damages, None]:
            stop = report.ends.end if damage is None else damage.torn.position
            for columns in log.columns(position, min(stop, self._span.stop), scan.WINDOW_BYTES):
                requests = DispatchRequests(columns, self._job.settings.delay_levels_ms)
                check.records(requests, columns.end, damaged)
            if damage is not None:
                damaged.append((damage.torn.position, damage.resumed_at))
                position = damage.resumed_at
        for file in check.opened:
            self._check_blank(check, file, damaged)

    def _check_blank(self, check: IndexCheck, file: IndexFile, damaged: Stretches) -> None:
        """Entries that name a place after the range's last record."""
        offsets = file.entries()["physical_offset"].astype(np.int64)
        rows = np.flatnonzero((offsets >= check.done) & (offsets < self._report.ends.end))
        odd = [row for row in rows.tolist() if not is_within(damaged, int(offsets[row]))]
        for row in odd[:ALIKE_MAX]:
            check.add_dangling(file.name, row, int(offsets[row]))


def _first_row(file: IndexFile, offset: int) -> int:
    """The first entry that names this log offset or one after it; entries are in log order."""
    offsets = file.entries()["physical_offset"]
    return bisect_left(range(len(offsets)), offset, key=lambda row: int(offsets[row]))
