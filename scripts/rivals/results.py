"""Results of a comparison: a line of JSON for each turn, one file, and the table of what they say.

A line is written as soon as its turn is over. The first line of the file says what was asked for.
A run that is resumed reads the lines that are there, and runs the turns that are missing.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.command_line import Spread, grid, number
from scripts.rivals.plan import AUTO_BATCH, CRC_OFF, OURS, ROWS, THEIRS, Figures, TableRow
from scripts.rivals.rocketmq import VERSION as ROCKETMQ_VERSION

HEAD = ("row", "--rows", "unit", "ours", "RocketMQ", "ratio", "CRC off")
COST_HEAD = ("load", "side", "server CPU s", "client CPU s", "all dispatched after", "failed")
MUST_AGREE = ("seconds", "scale")
"""Figures that all turns of one file have in common."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One side's turn at one load. `figures` are numbers by name, units in the names."""

    load: str
    side: str
    round: int
    figures: Figures


@dataclass(slots=True)
class TurnResults:
    """All turns so far; `asked` is what they depend on: seconds of a turn, the machine."""

    asked: dict[str, Any]
    turns: list[Turn] = field(default_factory=list)
    path: Path | None = None

    @classmethod
    def open(cls, path: Path, asked: dict[str, Any]) -> "TurnResults":
        """A file to go on with, or a new one. Raises ValueError when it was asked otherwise."""
        if path.exists() and path.stat().st_size:
            found = cls.load(path)
            for name in MUST_AGREE:
                if found.asked.get(name) != asked.get(name):
                    raise ValueError(
                        f"{path} was made with {name} {found.asked.get(name)}, not "
                        f"{asked.get(name)}: its turns cannot be mixed with new ones"
                    )
            found.path = path
            # A line that was cut short by the end of the last run is not continued.
            path.write_text(found.lines())
            return found
        results = cls(asked, path=path)
        path.write_text(results.lines())
        return results

    @classmethod
    def parse(cls, text: str) -> "TurnResults":
        """From the lines of a file; a last one without its end is left out. Raises ValueError."""
        rows = [json.loads(line) for line in text.rpartition("\n")[0].split("\n") if line]
        if not rows or not isinstance(rows[0], dict) or "asked" not in rows[0]:
            raise ValueError("the first line does not say what was asked for")
        try:
            return cls(rows[0]["asked"], [Turn(**row) for row in rows[1:]])
        except TypeError:
            raise ValueError("a line is no turn") from None

    @classmethod
    def load(cls, path: Path) -> "TurnResults":
        """From a file that `--json` or `--resume` wrote. Raises ValueError for another one."""
        try:
            return cls.parse(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no result of compare_rocketmq: {error}") from None

    def add(self, turn: Turn) -> None:
        """Keeps a turn, and writes it down at once."""
        self.turns.append(turn)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(turn)) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def has(self, load: str, side: str, number: int) -> bool:
        return any((t.load, t.side, t.round) == (load, side, number) for t in self.turns)

    def by_round(self, load: str, side: str, figure: str) -> dict[int, float]:
        """One figure of each round. The load `*` is the greatest of all loads in a round."""
        found: dict[int, float] = {}
        for turn in self.turns:
            value = turn.figures.get(figure)
            if turn.side == side and load in ("*", turn.load) and value is not None:
                found[turn.round] = max(found.get(turn.round, value), value)
        return found

    def spread(self, load: str, side: str, figure: str) -> Spread | None:
        """Least, median and greatest of one figure's rounds."""
        return Spread.of(self.by_round(load, side, figure).values())

    def lines(self) -> str:
        rows: Iterable[dict[str, Any]] = ({"asked": self.asked}, *map(asdict, self.turns))
        return "".join(json.dumps(row) + "\n" for row in rows)


@dataclass(frozen=True, slots=True)
class Line:
    """One row with its figures; None where no round has both sides."""

    row: TableRow
    ours: Spread | None
    theirs: Spread | None
    ratio: Spread | None
    crc_off: float | None
    """Median ratio with the whole-record checksum off."""

    def cells(self) -> tuple[str, ...]:
        """As texts, in the order of HEAD."""
        row = self.row
        return (
            row.title,
            "all" if row.load == "*" else row.load,
            row.unit,
            spread_text(self.ours, row.unit),
            spread_text(self.theirs, row.unit),
            spread_text(self.ratio),
            "" if self.crc_off is None else f"{self.crc_off:.2f}",
        )


def ratios(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Ours / RocketMQ, each round by itself: what drifts over a run is in both of a round."""
    return [ours[one] / theirs[one] for one in sorted(ours) if theirs.get(one)]


def lines(results: TurnResults) -> list[Line]:
    made = []
    for row in ROWS:
        ours = results.by_round(row.load, row.side, row.figure)
        theirs = results.by_round(row.load, THEIRS, row.figure)
        off = Spread.of(ratios(results.by_round(row.load, CRC_OFF, row.figure), theirs))
        # The greatest of all loads compares only when the second column ran all of them.
        crc_off = off.middle if off and row.load != "*" else None
        both = Spread.of(ratios(ours, theirs))
        made.append(Line(row, Spread.of(ours.values()), Spread.of(theirs.values()), both, crc_off))
    return made


def spread_text(spread: Spread | None, unit: str = "ratio") -> str:
    """`least / median / greatest`, ratios as `1.21 / 1.32 / 1.40`."""
    if spread is None:
        return "-"
    return " / ".join(f"{one:.2f}" if unit == "ratio" else number(one, unit) for one in spread)


def main_table(results: TurnResults, *, markdown: bool = False) -> str:
    """The table of ratios; each cell of three is least / median / greatest of the rounds."""
    measured = [line.cells() for line in lines(results) if line.ours or line.theirs]
    return grid(HEAD, measured, markdown=markdown)


def cost_table(results: TurnResults, *, markdown: bool = False) -> str:
    """Medians for each load and side: CPU seconds per million, and the time until dispatched."""
    rows = []
    for load, side in dict.fromkeys((turn.load, turn.side) for turn in results.turns):
        server = results.spread(load, side, "server_cpu_s_per_million")
        client = results.spread(load, side, "client_cpu_s_per_million")
        if server is None or client is None:
            continue
        after = results.spread(load, side, "dispatched_after_s")
        failed = sum(results.by_round(load, side, "failed").values())
        rows.append(
            (load, side, f"{server.middle:.3g}", f"{client.middle:.3g}",
             "" if after is None else f"{after.middle:.2f} s", f"{failed:.0f}")
        )  # fmt: skip
    return grid(COST_HEAD, rows, markdown=markdown) if rows else ""


def remarks(results: TurnResults) -> list[str]:
    """Sentences on RocketMQ's own gathering of messages, and on idle sides."""
    said = []
    for load in dict.fromkeys(turn.load for turn in results.turns if turn.side == AUTO_BATCH):
        theirs = results.by_round(load, AUTO_BATCH, "per_s")
        ratio = Spread.of(ratios(results.by_round(load, OURS, "per_s"), theirs))
        said.append(
            f"{load}: RocketMQ with autoBatch {spread_text(Spread.of(theirs.values()), '/s')}/s; "
            f"ours / that {spread_text(ratio)}"
        )
    for side in (THEIRS, OURS):
        other = results.spread("*", side, "others_cpu_share")
        if other is not None:
            said.append(
                f"while {side} had its turn, all others together took {other.middle:.1%} of a "
                f"core, at most {other.high:.1%}: they were stopped"
            )
    return said


def machine_text(results: TurnResults) -> str:
    """The machine and the date of a measurement; empty when the file does not have them."""
    machine = results.asked.get("machine")
    if not machine:
        return ""
    rounds = max((turn.round for turn in results.turns), default=0)
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}, {machine['file_system']}; Python {machine['python']}, RocketMQ "
        f"{ROCKETMQ_VERSION}; {machine['kernel']}; revision {machine['revision']}, "
        f"{machine['at'][:10]}; "
        f"{rounds} rounds at most, {results.asked['seconds']:g} s for each turn."
    )


def report(results: TurnResults, *, markdown: bool = False) -> str:
    """Everything that is printed at the end."""
    costs = cost_table(results, markdown=markdown)
    parts = [machine_text(results), main_table(results, markdown=markdown)]
    if costs:
        parts += ["CPU seconds per million messages, until all is dispatched (medians):", costs]
    parts.append("\n".join(f"* {line}" for line in remarks(results)))
    return "\n\n".join(part for part in parts if part)
