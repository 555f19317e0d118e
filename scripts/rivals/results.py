"""Results of a comparison: a line of JSON for each turn as soon as it is over, one file in the end.

The first line of the file says what was asked for. A run that is resumed reads the lines that are
there, and runs the turns that are missing.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.output import Spread

Figures = dict[str, Any]
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
        """Whether a turn is there."""
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
        """The whole file."""
        rows: Iterable[dict[str, Any]] = ({"asked": self.asked}, *map(asdict, self.turns))
        return "".join(json.dumps(row) + "\n" for row in rows)
