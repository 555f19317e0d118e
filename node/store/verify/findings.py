"""The findings of `verify`: what lies in a row is one finding, and of many alike a few are listed.

Each finding has the command that fixes it. `CheckedStore` is the interface of the store in which
they are found: a whole one, or what one task of an audit has.
"""

import shlex
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from node.runtime.settings import Settings
from node.store.checkpoints import own_dir
from node.store.condition import Condition
from node.store.identity.store_id import PUT_BACK
from node.store.log.reader import LogReader
from node.store.queues import QueueFiles
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR

Severity = Literal["error", "warning"]
KINDS = frozenset(
    {
        *("torn_tail", "bad_magic", "bad_size", "bad_crc", "wrong_place"),
        *("gap", "missing_segment", "wrong_length"),
        *("unit_missing", "unit_dangling", "unit_mismatch"),
        *("entry_missing", "entry_dangling", "entry_mismatch", "chain_broken", "header_mismatch"),
        *("checkpoint_ahead", "foreign_file"),
    }
)
Stretches = list[tuple[int, int]]
"""Log offsets [start, end), in order."""
ALIKE_MAX = 20
"""The findings of one kind in one file or queue that are listed one by one."""
NO_TOPIC_FILES = "this topic has no files"
NO_QUEUE_FILES = "this queue has no files"
NO_START = "a node does not start with it"
NO_ENTRY = "a key of this record is in no index file"

_OF_ONE_PLACE = {NO_TOPIC_FILES, NO_QUEUE_FILES, NO_ENTRY}
"""Details of which all findings in one folder are one."""
_UNIT_KINDS = {"unit_missing", "unit_dangling", "unit_mismatch"}
_ENTRY_KINDS = {"entry_dangling", "entry_mismatch", "chain_broken"}
_FIELDS = ("severity", "kind", "file", "offset", "topic", "queue_id", "queue_offset", "detail")


def is_within(stretches: Stretches, offset: int) -> bool:
    row = bisect_right(stretches, offset, key=lambda stretch: stretch[0]) - 1
    return row >= 0 and offset < stretches[row][1]


def mended_by_recovery(condition: Condition) -> Severity:
    """How severe a finding is that the next recovery mends: after a clean stop there is none."""
    return "error" if condition.is_clean else "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `offset` is a log offset, or the number of an index entry.

    `count`: this number of units, or entries, in a row have it; this is the first.
    """

    severity: Severity
    kind: str
    file: str
    offset: int
    detail: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    count: int = 1

    def shape(self, root: Path) -> dict[str, Any]:
        """As JSON, with the command that fixes it in the store `root`."""
        named = {name: getattr(self, name) for name in _FIELDS}
        return {**named, "detail": self.said, "count": self.count, "try": _fix_of(root, self)}

    def joined(self, later: "Finding") -> "Finding | None":
        """Both as one, if the later one goes on where this one ends."""
        if self.detail in _OF_ONE_PLACE or later.detail in _OF_ONE_PLACE:
            goes_on = self.detail == later.detail
        elif self.kind in _UNIT_KINDS:
            goes_on = self.queue_offset is not None and (
                self.queue_offset + self.count == later.queue_offset
            )
        else:
            goes_on = self.kind in _ENTRY_KINDS and self.offset + self.count == later.offset
        return replace(self, count=self.count + later.count) if goes_on else None

    @property
    def said(self) -> str:
        """The detail, and how many units or entries in a row have it."""
        if self.count == 1:
            return self.detail
        if self.detail in _OF_ONE_PLACE:
            return f"{self.detail} ({self.count} messages from log offset {self.offset} on)"
        if self.kind == "unit_missing":
            return f"{self.count} units missing from {self.queue_offset} on"
        if self.kind in _UNIT_KINDS:
            return f"{self.detail} ({self.count} units from {self.queue_offset} on)"
        return f"{self.detail} ({self.count} entries from {self.offset} on)"


def _fix_of(root: Path, finding: Finding) -> str:
    """What fixes a finding: a command, where there is one."""
    file, store = Path(finding.file), shlex.quote(str(root))
    if file.parent == own_dir(root) and not finding.detail.endswith(NO_START):
        return PUT_BACK
    if finding.kind == "foreign_file" and finding.severity == "warning":
        return f"mv {shlex.quote(finding.file)} ELSEWHERE"
    if finding.kind != "foreign_file":
        if file.is_relative_to(root / CONSUME_QUEUE_DIR):
            return f"keelog store rebuild {store} --queues"
        if file.is_relative_to(root / INDEX_DIR):
            return f"keelog store rebuild {store} --index"
        if finding.severity == "warning":
            return f"keelog serve {store}"
    return f"keelog store repair {store} --apply"


@dataclass(slots=True)
class Findings:
    """A growing list of findings."""

    found: list[Finding] = field(default_factory=list)
    _alike: Counter[tuple[str, str]] = field(default_factory=Counter)
    _last: dict[tuple[str, str, str, int | None], int] = field(default_factory=dict)
    """Where the last listed finding of a kind in a file, of a queue, is in `found`."""

    def add(self, finding: Finding) -> None:
        """Adds a finding, or a count to the one before it; after ALIKE_MAX alike only counts."""
        assert finding.kind in KINDS
        run = finding.severity, finding.kind, finding.file, finding.queue_id
        row = self._last.get(run)
        joined = None if row is None else self.found[row].joined(finding)
        if row is not None and joined is not None:
            self.found[row] = joined
            return
        key = finding.kind, finding.file
        self._alike[key] += 1
        if self._alike[key] <= ALIKE_MAX:
            self._last[run] = len(self.found)
            self.found.append(finding)

    def count_more(self, kind: str, file: str, more: int) -> None:
        """Notes that there are `more` findings like one that has been added."""
        self._alike[kind, file] += more

    def merge(self, other: "Findings") -> None:
        """Adds the findings of another check; each one once, as some are about the whole store."""
        before = set(self.found)
        listed = Counter((finding.kind, finding.file) for finding in other.found)
        for finding in other.found:
            if finding not in before:
                self.add(finding)
        for (kind, file), count in other._alike.items():
            if count > listed[kind, file]:
                self.count_more(kind, file, count - listed[kind, file])

    def all(self) -> list[Finding]:
        """All findings, errors first; the last listed one of many alike counts the others."""
        last = {(finding.kind, finding.file): index for index, finding in enumerate(self.found)}
        listed = Counter((finding.kind, finding.file) for finding in self.found)
        found = list(self.found)
        for key, index in last.items():
            more = self._alike[key] - listed[key]
            if more:
                detail = f"{found[index].detail} (and {more} more)"
                found[index] = replace(found[index], detail=detail)
        return sorted(found, key=lambda finding: finding.severity != "error")


class CheckedStore(Protocol):
    """`StoppedStore` is one."""

    root: Path
    settings: Settings
    condition: Condition
    log: LogReader

    @property
    def folders(self) -> Mapping[Queue, Path]:
        """The folders of all queues that have one."""

    @property
    def queue_file_bytes(self) -> int:
        """Length of a queue file. Raises StoreDamaged."""

    def files_of(self, queue: Queue) -> QueueFiles:
        """The files of a queue. Raises StoreDamaged, StorePermission."""
