"""Holds a whole store against itself, read-only: `keelog store verify`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.runtime.settings import Settings
from node.store.stopped_store import StoppedStore
from node.store.verify.findings import Finding, Findings
from node.store.verify.index import IndexCheck
from node.store.verify.log import LogCheck, irregular_findings
from node.store.verify.own import own_findings
from node.store.verify.queues import QueueCheck
from protocol.derived.dispatch_request import DispatchRequests

Progress = Callable[[int, int], None]
"""Called with log bytes done, and all there are."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what is wrong."""

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
        """No damage: what the next recovery mends anyway does not count."""
        return not any(finding.severity == "error" for finding in self.findings)

    def shape(self) -> dict[str, Any]:
        """As JSON (docs: shape 3.6)."""
        return {
            "ok": self.ok,
            "clean_shutdown": self.clean_shutdown,
            "commit_log": {
                "min_offset": self.min_offset,
                "max_offset": self.max_offset,
                "records": self.records,
                "bytes": self.max_offset - self.min_offset,
            },
            "queues": {"count": self.queues, "units": self.units},
            "index": {"files": self.index_files, "entries": self.index_entries},
            "findings": [finding.shape() for finding in self.findings],
        }


def verify(
    path: Path | str,
    deep: bool = False,
    progress: Progress | None = None,
    settings: Settings | None = None,
) -> VerifyReport:
    """Checks a store that nobody runs.

    Always: names and lengths of all files, the lengths and places of all records, the tail, the
    checkpoint, headers, both ends of each queue. `deep`: also every checksum, every unit and every
    entry against its record and the other way round, every chain.
    Raises NotAStore and StorePermission, and StoreDamaged for what the disk cannot read, with file
    and offset; all other damage is what it reports.
    """
    tell = progress or (lambda _done, _all: None)
    with StoppedStore(Path(path), settings or Settings(), strict=False) as store:
        findings = Findings()
        log = LogCheck(store, findings, tell)
        queues = QueueCheck(store, findings)
        index = IndexCheck(store, findings)
        log.structure()
        queues.structure()
        index.structure(store.index_folder)
        for columns in log.walk(verify=deep):
            if not deep:
                continue
            requests = DispatchRequests(columns, store.settings.delay_levels_ms)
            queues.records(requests)
            if store.settings.message_index_enable:
                end = columns.end
                index.records(requests, end, log.damaged)
        log.tail()
        log.checkpoint()
        irregular = list(irregular_findings(store.root))
        # What is no file has no owner to look for, and hides that of others.
        for finding in irregular or own_findings(store):
            findings.add(finding)
        index.beyond()
        if deep:
            queues.leftovers(log.damaged)
            index.chains()
        else:
            queues.ends(log.damaged)
        return VerifyReport(
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
