"""What `verify` finds, gathered so that a thousand equal findings are one line with a number."""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any, Literal

from node.store.shutdown_state import Condition

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
"""So many findings of one kind in one file or queue are told one by one."""


def is_within(stretches: Stretches, offset: int) -> bool:
    """Whether an offset lies in one of them."""
    row = bisect_right(stretches, offset, key=lambda stretch: stretch[0]) - 1
    return row >= 0 and offset < stretches[row][1]


def mended_by_recovery(condition: Condition) -> Severity:
    """How severe a finding is that the next recovery mends: after a clean stop there is none."""
    return "error" if condition.is_clean else "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. `offset` is a log offset, or an entry's number."""

    severity: Severity
    kind: str
    file: str
    offset: int
    detail: str
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = ("severity", "kind", "file", "offset", "topic", "queue_id", "queue_offset", "detail")


@dataclass(slots=True)
class Findings:
    """A growing list."""

    found: list[Finding] = field(default_factory=list)
    _alike: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Notes one; of many alike only the first and, in the end, their number."""
        assert finding.kind in KINDS
        key = finding.kind, finding.file
        self._alike[key] = self._alike.get(key, 0) + 1
        if self._alike[key] <= ALIKE_MAX:
            self.found.append(finding)

    def count_more(self, kind: str, file: str, more: int) -> None:
        """Notes that there are `more` findings like one that has been added."""
        self._alike[kind, file] = self._alike.get((kind, file), 0) + more

    def merge(self, other: "Findings") -> None:
        """Adds what was found elsewhere, each one once: some findings are of the whole store."""
        before = set(self.found)
        told: dict[tuple[str, str], int] = {}
        for finding in other.found:
            told[finding.kind, finding.file] = told.get((finding.kind, finding.file), 0) + 1
            if finding not in before:
                self.add(finding)
        for (kind, file), count in other._alike.items():
            if count > told.get((kind, file), 0):
                self.count_more(kind, file, count - told.get((kind, file), 0))

    def all(self) -> list[Finding]:
        """Errors first; the last one told of many alike says how many more there are."""
        last = {(finding.kind, finding.file): index for index, finding in enumerate(self.found)}
        told: dict[tuple[str, str], int] = {}
        for finding in self.found:
            told[finding.kind, finding.file] = told.get((finding.kind, finding.file), 0) + 1
        answer = list(self.found)
        for key, index in last.items():
            more = self._alike[key] - told[key]
            if more:
                old = answer[index]
                answer[index] = _with_detail(old, f"{old.detail} (and {more} more)")
        return sorted(answer, key=lambda finding: finding.severity != "error")


def _with_detail(finding: Finding, detail: str) -> Finding:
    values = {name: getattr(finding, name) for name in _FIELDS}
    return Finding(**{**values, "detail": detail})
