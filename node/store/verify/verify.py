"""Checks a whole store, read-only: `keelog store verify`.

`LogCheck` is the log's part: segments, every record, the tail, the checkpoint.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.runtime.settings import Settings
from node.store.log.reader import (
    Bounds,
    Damage,
    LogReader,
    columns_past_damage,
    next_record,
    wrong_blank,
)
from node.store.opening import StoppedStore
from node.store.verify.findings import Finding, Findings, mended_by_recovery
from node.store.verify.index import IndexCheck
from node.store.verify.own_files import irregular_findings, own_findings
from node.store.verify.queues import QueueCheck
from protocol.derived.dispatch_request import DispatchRequests
from protocol.names import CHECKPOINT_FILE
from protocol.record.codec import Torn
from protocol.record.columns import RecordColumns

Progress = Callable[[int, int], None]
"""Called with (done, total) bytes of the log."""


class LogCheck:
    """Walks a log; `records` and `last_time` are of the records read until now.

    `damaged`: the stretches [start, end) without records, in order. A unit or entry that names a
    place in one of them is right: its record is wrong.
    """

    def __init__(self, store: StoppedStore, findings: Findings, progress: Progress) -> None:
        self._store = store
        self._findings = findings
        self._progress = progress
        self.records = 0
        self.last_time = 0
        self.damaged: list[tuple[int, int]] = []

    def structure(self) -> None:
        """Checks the names and lengths of the segments."""
        for problem in self._store.problems:
            self._findings.add(
                Finding("error", problem.kind, str(problem.path), problem.offset, problem.detail)
            )
        if self._store.unfinished is not None:
            detail = "is too short and holds nothing: a node makes it anew, a broker may refuse it"
            where = str(self._store.unfinished)
            self._findings.add(Finding("warning", "wrong_length", where, 0, detail))

    def walk(self, verify: bool) -> Iterator[RecordColumns]:
        """Yields every record of every stretch; adds a finding for each place without one.

        `verify=False` does not verify checksums.
        """
        store = self._store
        for number, (start, end) in enumerate(store.runs):
            if number:
                self.damaged.append((store.runs[number - 1][1], start))
            reader = LogReader(store.log.segments, Bounds(start, min(end, store.log.end)))
            for columns in self._walk_run(reader, verify):
                self.records += len(columns)
                blank = blank_finding(store.log, columns)
                if blank is not None:
                    self._findings.add(blank)
                self.last_time = max(self.last_time, int(columns.store_timestamp[-1]))
                self._progress(
                    int(columns.physical_offset[-1]) - store.log.min_offset,
                    store.log.end - store.log.min_offset,
                )
                yield columns

    def _walk_run(self, reader: LogReader, verify: bool) -> Iterator[RecordColumns]:
        items = columns_past_damage(reader, reader.min_offset, verify=verify)
        for item in items:
            if isinstance(item, Damage):
                self.add_damage(item)
            else:
                yield item
        if reader.stopped is not None:
            self.add_end(reader, reader.stopped)

    def add_damage(self, damage: Damage) -> None:
        """Reports bytes that are not a record; the log goes on after them."""
        detail = f"{damage.torn.why}; the next record stands at {damage.resumed_at}"
        self._add_torn(damage.torn, damage.where, detail)
        self.damaged.append((damage.torn.position, damage.resumed_at))

    def add_end(self, reader: LogReader, stopped: Torn) -> None:
        """Reports bytes that are not a record, and after which none can be proved."""
        where = str(reader.segment_at(stopped.position).path)
        self._add_torn(stopped, where, stopped.why)
        self.damaged.append((stopped.position, reader.end))

    def _add_torn(self, torn: Torn, where: str, detail: str) -> None:
        kind = {"end": "gap", "cut": "bad_size"}.get(torn.kind, torn.kind)
        self._findings.add(Finding("error", kind, where, torn.position, detail))

    def tail(self) -> None:
        """Checks the log's end: a crash leaves a torn tail; after a clean stop it is damage."""
        store = self._store
        stop = store.tail.stop
        floor = store.condition.floor
        if store.log.end < floor:
            detail = f"the log ends at {store.log.end}, everything below {floor} was durable"
            folder = str(store.log.segments.folder)
            self._findings.add(Finding("error", "missing_segment", folder, store.log.end, detail))
        if stop is None:
            return
        segment = store.log.segments.find(stop.position)
        where = str(segment.path if segment is not None else store.log.segments.folder)
        severity = mended_by_recovery(store.condition)
        if stop.kind != "end":
            self._findings.add(Finding(severity, "torn_tail", where, stop.position, stop.why))
        elif store.condition.is_clean:
            self._records_after(stop.position)

    def _records_after(self, end: int) -> None:
        """Reports a newer record after the end: a clean stop leaves only old bytes there."""
        store = self._store
        segments = store.log.segments
        reader = LogReader(segments)
        segment = segments.find(end)
        if segment is None:
            return
        for later in segments.segments:
            if later.start < end or isinstance(reader.peek(later.start), Torn):
                continue
            found = next_record(reader, later.start, self.last_time)
            if found is not None:
                detail = f"nothing stands here, but a record at {found}"
                self._findings.add(Finding("error", "gap", str(segment.path), end, detail))
                return

    def checkpoint(self) -> None:
        """Reports a checkpoint that covers more than there is: a broker would skip recovery."""
        store = self._store
        checkpoint = store.condition.checkpoint
        severity = mended_by_recovery(store.condition)
        where = str(store.root / CHECKPOINT_FILE)
        for name in ("confirm_physical_offset", "logics_physical_offset"):
            offset = getattr(checkpoint, name)
            if offset > store.log.end:
                detail = f"{name} is {offset}, the log ends at {store.log.end}"
                self._findings.add(Finding(severity, "checkpoint_ahead", where, offset, detail))
        for name in ("physic_msg_timestamp", "logics_msg_timestamp", "index_msg_timestamp"):
            time = getattr(checkpoint, name)
            if self.records and time > self.last_time:
                detail = f"{name} is {time}, the last record is of {self.last_time}"
                self._findings.add(Finding(severity, "checkpoint_ahead", where, 0, detail))


def blank_finding(log: LogReader, columns: RecordColumns) -> Finding | None:
    """The finding for a blank of a wrong length after the last record of a segment."""
    torn = wrong_blank(log, columns.end)
    if torn is None:
        return None
    path = log.segment_at(torn.position).path
    return Finding("error", torn.kind, str(path), torn.position, torn.why)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The counts of what was checked, and the findings."""

    root: Path
    is_deep: bool
    """Whether records, units and entries were read: else nothing is known of them."""
    clean_shutdown: bool
    min_offset: int
    max_offset: int
    records: int
    queues: int
    units: int
    index_files: int
    index_entries: int
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """True without damage; what the next recovery repairs anyway does not count."""
        return not any(finding.severity == "error" for finding in self.findings)

    def shape(self) -> dict[str, Any]:
        """As JSON (docs: shape 3.6)."""
        return {
            "ok": self.ok,
            "read": dict.fromkeys(("records", "units", "entries"), self.is_deep),
            "clean_shutdown": self.clean_shutdown,
            "commit_log": {
                "min_offset": self.min_offset,
                "max_offset": self.max_offset,
                "records": self.records,
                "bytes": self.max_offset - self.min_offset,
            },
            "queues": {"count": self.queues, "units": self.units},
            "index": {"files": self.index_files, "entries": self.index_entries},
            "findings": [finding.shape(self.root) for finding in self.findings],
        }


def verify(
    path: Path | str,
    deep: bool = False,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> VerifyReport:
    """Checks a stopped store.

    Always: names and lengths of all files, whether each queue with records has files, the lengths
    and places of all records, the log's end, the checkpoint, headers, both ends of each queue.
    `deep`: also every checksum, every chain, and every unit and entry against its record and the
    other way round.
    Raises NotAStore and StorePermission, and StoreDamaged, with file and offset, for what the disk
    cannot read; it reports all other damage.
    """
    note = progress or (lambda _done, _all: None)
    with StoppedStore(Path(path), settings or Settings(), strict=False) as store:
        findings = Findings()
        log = LogCheck(store, findings, note)
        queues = QueueCheck(store, findings)
        index = IndexCheck(store, findings)
        log.structure()
        queues.structure()
        index.structure(store.index_folder)
        for columns in log.walk(verify=deep):
            requests = DispatchRequests(columns, store.settings.delay_levels_ms)
            if not deep:
                queues.folders(requests)
                if store.settings.message_index_enable:
                    index.presence(requests)
                continue
            queues.records(requests)
            if store.settings.message_index_enable:
                index.records(requests, columns.end, log.damaged)
        log.tail()
        log.checkpoint()
        irregular = list(irregular_findings(store.root))
        # An irregular file has no readable owner, and hides the owner of others.
        for finding in irregular or own_findings(store):
            findings.add(finding)
        index.beyond()
        if deep:
            queues.leftovers(log.damaged)
            index.chains()
        else:
            queues.ends(log.damaged)
        return VerifyReport(
            root=store.root,
            is_deep=deep,
            clean_shutdown=store.condition.is_clean,
            min_offset=store.log.min_offset,
            max_offset=store.log.end,
            records=log.records,
            queues=len(store.folders),
            units=queues.units,
            index_files=index.files,
            index_entries=index.entries,
            findings=findings.all(),
        )
