"""The figures of a campaign, by kind of fault; several runs add up in one file."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

END_OF_STORE = "end of store"
"""Not a fault but the last check."""
COLUMNS = (
    "kind", "rounds", "not done", "restarts", "refused", "lost", "ready but failing",
    "recovery", "faults",
)  # fmt: skip


@dataclass(slots=True)
class Round:
    """One fault and what became of it."""

    node: int
    number: int
    kind: str
    what: str = ""
    done: bool = True
    """Whether there was anything to do it to."""
    restarts: int = 0
    """Of processes, by the supervisor."""
    refused: list[str] = field(default_factory=list)
    """Causes that were named while the node, or a message, was out of service."""
    checked: int = 0
    lost: int = 0
    ready_but_failing_s: float = 0.0
    recovery_s: float = 0.0
    """From the end of the fault until all was well."""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    kept: str = ""
    """Where the store is kept when there are faults."""
    talk: str = ""
    """What the node said last, then."""


@dataclass(slots=True)
class Sum:
    """The rounds of one kind."""

    rounds: int = 0
    not_done: int = 0
    restarts: int = 0
    refused: int = 0
    checked: int = 0
    lost: int = 0
    ready_but_failing_s: float = 0.0
    recovery_s: float = 0.0
    seconds: float = 0.0
    faults: int = 0

    def add(self, one: Round) -> None:
        """Counts a round."""
        self.rounds += one.done
        self.not_done += not one.done
        self.restarts += one.restarts
        self.refused += bool(one.refused)
        self.checked += one.checked
        self.lost += one.lost
        self.ready_but_failing_s = max(self.ready_but_failing_s, one.ready_but_failing_s)
        self.recovery_s = max(self.recovery_s, one.recovery_s)
        self.seconds += one.seconds
        self.faults += bool(one.faults)


@dataclass(slots=True)
class Results:
    """All rounds so far."""

    sums: dict[str, Sum] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    """The command and the time of each run."""

    def add(self, one: Round) -> None:
        """Counts a round."""
        self.sums.setdefault(one.kind, Sum()).add(one)
        if one.faults:
            self.failed.append({**asdict(one), "talk": one.talk[-2000:]})

    @property
    def rounds(self) -> int:
        """Faults that were done."""
        return sum(one.rounds for kind, one in self.sums.items() if kind != END_OF_STORE)

    def save(self, path: Path) -> None:
        """As JSON."""
        temporary = path.with_name(f"{path.name}.new")
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> "Results":
        """Those of a file; none when there is no file yet."""
        if not path.exists():
            return cls()
        raw = json.loads(path.read_text())
        sums = {kind: Sum(**fields) for kind, fields in raw["sums"].items()}
        return cls(sums, raw["failed"], raw["runs"])


def table(results: Results) -> str:
    """A row a kind, and their sum."""
    rows = [COLUMNS, *(_row(kind, one) for kind, one in sorted(results.sums.items()))]
    rows.append(_row("all", _total(results.sums.values())))
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = []
    for row in rows:
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    return "\n".join(lines)


def _row(kind: str, one: Sum) -> tuple[str, ...]:
    counts = (one.rounds, one.not_done, one.restarts, one.refused, one.lost)
    times = (f"{one.ready_but_failing_s:.1f} s", f"{one.recovery_s:.1f} s")
    return (kind, *(f"{count:,}" for count in counts), *times, f"{one.faults:,}")


def _total(sums: Iterable[Sum]) -> Sum:
    total = Sum()
    for one in sums:
        for name in Sum.__dataclass_fields__:
            mine, its = getattr(total, name), getattr(one, name)
            longest = name in ("ready_but_failing_s", "recovery_s")
            setattr(total, name, max(mine, its) if longest else mine + its)
    return total
