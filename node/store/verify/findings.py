"""The findings of `verify`; of a thousand alike it lists a few and counts the others."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field, replace
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
"""The findings of one kind in one file or queue that are listed one by one."""


def is_within(stretches: Stretches, offset: int) -> bool:
    """True if an offset lies in one of the stretches."""
    row = bisect_right(stretches, offset, key=lambda stretch: stretch[0]) - 1
    return row >= 0 and offset < stretches[row][1]


def mended_by_recovery(condition: Condition) -> Severity:
    """How severe a finding is that the next recovery mends: after a clean stop there is none."""
    return "error" if condition.is_clean else "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `offset` is a log offset, or the number of an index entry."""

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
    """A growing list of findings."""

    found: list[Finding] = field(default_factory=list)
    _alike: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Adds a finding; after ALIKE_MAX alike it only counts them."""
        assert finding.kind in KINDS
        key = finding.kind, finding.file
        self._alike[key] += 1
        if self._alike[key] <= ALIKE_MAX:
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
