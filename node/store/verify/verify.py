"""Checks a whole store, read-only: `keelog store verify`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.runtime.settings import Settings
from node.store.opening import StoppedStore
from node.store.verify.findings import Finding, Findings
from node.store.verify.index import IndexCheck
from node.store.verify.log import LogCheck, Progress
from node.store.verify.own_files import irregular_findings, own_findings
from node.store.verify.queues import QueueCheck
from protocol.derived.dispatch_request import DispatchRequests


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
