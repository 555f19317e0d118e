"""What one task of an audit does: holds a range of the log against the queue and index files.

The rules are those of `keelog store verify` (node/store/verify/). Bytes that are alike
need no more than that; only what differs is looked at record by record.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from keelog.pipeline.jobs.rebuild.units import UnitGatherer
from keelog.pipeline.jobs.scan import WINDOW_BYTES, RangeEnds, RangeScan, ScanRange
from keelog.pipeline.task_spec import LogAt
from node.runtime.settings import Settings
from node.store.condition import Condition
from node.store.file_cache import OpenFiles
from node.store.indexes import IndexFile, open_index_file
from node.store.log.reader import Damage, LogReader, next_record
from node.store.queues import QueueFiles, open_queue_files, queue_folder
from node.store.verify.findings import ALIKE_MAX, Findings, Stretches, is_within
from node.store.verify.index import IndexCheck, disorder
from node.store.verify.log import blank_finding
from node.store.verify.queues import CheckedQueue, QueueCheck
from protocol.derived.dispatch_request import DispatchRequests, key_batch
from protocol.derived.file_layouts import IndexGeometry, KeyBatch
from protocol.ids import Queue
from protocol.names import INDEX_DIR
from protocol.record.codec import Torn
from protocol.record.columns import RecordColumns

Units = NDArray[Any]


class QueueBounds(NamedTuple):
    """Units [`start`, `end`) of a queue, as its files hold them."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AuditJob:
    """The store as the driver found it.

    `queues`: those with a folder, and the bounds of those whose files can be read. `index`: files
    that can be read; `index_files` counts all. `with_tags`: the index has entries for TAGS.
    """

    log: LogAt
    settings: Settings
    condition: Condition
    queue_file_bytes: int
    queues: Mapping[Queue, QueueBounds | None]
    index: tuple[tuple[str, IndexGeometry], ...]
    index_files: int
    vouched: Mapping[str, int]
    with_tags: bool


@dataclass(slots=True)
class AuditReport:
    """What a task found. `damages` within the range have a place where the log goes on; the last
    one, in `ends.torn`, may have none."""

    ends: RangeEnds
    records: int = 0
    first_time: int = 0
    last_time: int = 0
    newest_time: int = 0
    damages: list[Damage] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    called: dict[Queue, list[tuple[int, int]]] = field(default_factory=dict)
    vouched: dict[Queue, int] = field(default_factory=dict)
    index: "IndexNotes" = field(default_factory=lambda: IndexNotes())


@dataclass(slots=True)
class IndexNotes:
    """What only the whole index can judge."""

    lacks_entries: bool = False
    told: set[tuple[str, int]] = field(default_factory=set)
    odd_firsts: set[str] = field(default_factory=set)
    disorder: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)


def merge_notes(notes: IndexNotes | IndexCheck, found: IndexNotes | IndexCheck) -> None:
    """Adds what a check, or a task, has found."""
    notes.lacks_entries |= found.lacks_entries
    notes.told |= found.told
    notes.odd_firsts |= found.odd_firsts


class RangeStore:
    """The store as one task sees it; closes what it opened."""

    def __init__(self, job: AuditJob) -> None:
        self._job = job
        self.files = OpenFiles()
        self.root = Path(job.log.root)
        self.settings = job.settings
        self.condition = job.condition
        self.log: LogReader = job.log.open(self.files)
        self.queue_file_bytes = job.queue_file_bytes

    @cached_property
    def folders(self) -> dict[Queue, Path]:
        """The queues that have a folder."""
        return {queue: queue_folder(self.root, queue) for queue in self._job.queues}

    def files_of(self, queue: Queue) -> QueueFiles:
        """A queue's files as they are. Raises StoreDamaged, StorePermission."""
        return open_queue_files(queue_folder(self.root, queue), self.queue_file_bytes, self.files)

    def index_check(self, findings: Findings) -> IndexCheck:
        """A check of the index, for which its files are open."""
        job = self._job
        check = IndexCheck(self, findings)
        check.files, check.vouched = job.index_files, dict(job.vouched)
        check.opened = [
            open_index_file(self.root / INDEX_DIR / name, geometry, self.files)
            for name, geometry in job.index
        ]
        return check


class _RangeQueues(QueueCheck):
    """Opens a queue when the first record of it comes."""

    def __init__(self, store: RangeStore, findings: Findings, job: AuditJob) -> None:
        super().__init__(store, findings)
        self._range_store = store
        self._bounds = job.queues

    def seen_of(self, queue: Queue) -> CheckedQueue | None:
        if queue not in self.seen:
            bounds = self._bounds.get(queue)
            if bounds is None:
                return None
            self.seen[queue] = CheckedQueue(self._range_store.files_of(queue), *bounds)
        return self.seen[queue]


def audit_range(job: AuditJob, span: ScanRange) -> AuditReport:
    """Reads a range and compares. Raises StoreDamaged for files that cannot be read."""
    store = RangeStore(job)
    try:
        return _RangeAudit(job, span, store).run()
    finally:
        store.files.close()


def audit_chain(job: AuditJob, name: str) -> tuple[Findings, IndexNotes]:
    """Slots, chains and order of one index file."""
    store, findings, notes = RangeStore(job), Findings(), IndexNotes()
    try:
        check = store.index_check(findings)
        file = next(file for file in check.opened if file.name == name)
        check.chain(file)
        merge_notes(notes, check)
        notes.disorder[name] = disorder(file)
        return findings, notes
    finally:
        store.files.close()


class _RangeAudit:
    def __init__(self, job: AuditJob, span: ScanRange, store: RangeStore) -> None:
        self._job = job
        self._span = span
        self._store = store
        self._report = AuditReport(RangeEnds(span.number, None, span.start))
        self._queues = _RangeQueues(store, self._report.findings, job)
        self._keys: list[KeyBatch] = []

    def run(self) -> AuditReport:
        report, gatherer = self._report, UnitGatherer(every=True)
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
        span: ScanRange | None = self._span
        while span is not None:
            scan = RangeScan(log, span)
            for columns in scan:
                if first is None:
                    first = int(columns.physical_offset[0])
                    report.first_time = int(columns.store_timestamp[0])
                report.records += len(columns)
                report.last_time = int(columns.store_timestamp[-1])
                report.newest_time = max(report.newest_time, report.last_time)
                yield columns
            ends = scan.ends()
            report.ends = ends._replace(first=first)
            span = None if ends.torn is None else self._resumed(ends.torn)

    def _resumed(self, torn: Torn) -> ScanRange | None:
        """The rest of the range after damage, which it notes; None without a record there."""
        span, log, report = self._span, self._store.log, self._report
        start = next_record(log, torn.position + 1, report.last_time, span.stop)
        if start is None:
            return None
        report.damages.append(Damage(str(log.segment_at(torn.position).path), torn, start))
        return replace(span, start=start, is_proven=True)

    def _check_units(self, queue: Queue, start: int, units: Units) -> None:
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
            for columns in log.columns(position, min(stop, self._span.stop), WINDOW_BYTES):
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
