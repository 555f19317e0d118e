"""The table of ratios: what the rounds say together, for people and for a page."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from keelog.text import aligned, widths_of
from scripts.rivals.plan import (
    AUTO_BATCH,
    CRC_OFF,
    DEFAULT_HEAP,
    OURS,
    POOL,
    ROWS,
    THEIRS,
    TableRow,
)
from scripts.rivals.results import TurnResults
from scripts.rivals.rocketmq import VERSION as ROCKETMQ_VERSION

VARIANTS = ((POOL, "transientStorePoolEnable"), (AUTO_BATCH, "autoBatch"))
HEAD = ("row", "--rows", "unit", "ours", "RocketMQ", "ratio", "CRC off")
AIMS = ("must", "goal", "reached")
"""What the terminal shows besides: a page says what was measured, and not what we wanted."""
COST_HEAD = ("load", "side", "server CPU s", "client CPU s", "all dispatched after", "failed")


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, median and greatest of some rounds."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread | None":
        """None when there are no values."""
        found = sorted(values)
        return cls(found[0], median(found), found[-1]) if found else None


@dataclass(frozen=True, slots=True)
class Line:
    """One row with its figures; None where no round has both sides."""

    row: TableRow
    ours: Spread | None
    theirs: Spread | None
    ratio: Spread | None
    crc_off: float | None
    """Median ratio with the whole-record checksum off."""
    rounds: int

    @property
    def verdict(self) -> str:
        """`goal`, `must`, `BELOW`, or `-` where nothing was measured. The median decides."""
        if self.ratio is None:
            return "-"
        reaches = operator.le if self.row.less_is_better else operator.ge
        if reaches(self.ratio.middle, self.row.goal):
            return "goal"
        return "must" if reaches(self.ratio.middle, self.row.must) else "BELOW"


def ratios(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Ours / RocketMQ, each round by itself: what drifts over a run is in both of a round."""
    return [ours[one] / theirs[one] for one in sorted(ours) if theirs.get(one)]


def lines(results: TurnResults) -> list[Line]:
    """All rows, measured or not."""
    made = []
    for row in ROWS:
        ours = results.by_round(row.load, row.side, row.figure)
        theirs = results.by_round(row.load, THEIRS, row.figure)
        both = ratios(ours, theirs)
        off = Spread.of(ratios(results.by_round(row.load, CRC_OFF, row.figure), theirs))
        # The greatest of all loads compares only when the second column ran all of them.
        crc_off = off.middle if off and row.load != "*" else None
        made.append(
            Line(row, Spread.of(ours.values()), Spread.of(theirs.values()), Spread.of(both),
                 crc_off, len(both))
        )  # fmt: skip
    return made


def number(value: float, unit: str) -> str:
    """Three digits that count, thousands as k and M."""
    if unit == "/s" and value >= 1e6:
        return f"{value / 1e6:.2f} M"
    if unit == "/s" and value >= 1e4:
        return f"{value / 1e3:.0f} k"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread_text(spread: Spread | None, unit: str = "ratio") -> str:
    """`least / median / greatest`, ratios as `1.21 / 1.32 / 1.40`."""
    if spread is None:
        return "-"
    values = (spread.low, spread.middle, spread.high)
    return " / ".join(f"{one:.2f}" if unit == "ratio" else number(one, unit) for one in values)


def cells(line: Line) -> tuple[str, ...]:
    """One line as texts, in the order of HEAD."""
    row = line.row
    return (
        row.title,
        "all" if row.load == "*" else row.load,
        row.unit,
        spread_text(line.ours, row.unit),
        spread_text(line.theirs, row.unit),
        spread_text(line.ratio),
        "" if line.crc_off is None else f"{line.crc_off:.2f}",
    )


def aims(line: Line) -> tuple[str, ...]:
    """The rest of the line, in the order of AIMS."""
    sign = "<=" if line.row.less_is_better else ">="
    return f"{sign} {line.row.must:g}", f"{sign} {line.row.goal:g}", line.verdict


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """A table for a terminal, or for a page."""
    if markdown:
        marks = ["---", *["---:"] * (len(head) - 1)]
        return "\n".join("| " + " | ".join(row) + " |" for row in (head, marks, *rows))
    widths = widths_of((head, *rows))
    return "\n".join(aligned(row, widths) for row in (head, *rows))


def main_table(results: TurnResults, *, markdown: bool = False) -> str:
    """The table of ratios; each cell of three is least / median / greatest of the rounds."""
    measured = [line for line in lines(results) if line.ours or line.theirs]
    if markdown:
        return grid(HEAD, [cells(line) for line in measured], markdown=True)
    return grid((*HEAD, *AIMS), [(*cells(line), *aims(line)) for line in measured], markdown=False)


def below_must(results: TurnResults) -> list[str]:
    """Titles of the rows whose median does not reach the must."""
    return [line.row.title for line in lines(results) if line.verdict == "BELOW"]


def cost_table(results: TurnResults, *, markdown: bool = False) -> str:
    """Medians for each load and side: CPU seconds per million, and the time until dispatched."""
    seen = list(dict.fromkeys((turn.load, turn.side) for turn in results.turns))
    rows = []
    for load, side in seen:
        server = Spread.of(results.by_round(load, side, "server_cpu_s_per_million").values())
        client = Spread.of(results.by_round(load, side, "client_cpu_s_per_million").values())
        if server is None or client is None:
            continue
        after = Spread.of(results.by_round(load, side, "dispatched_after_s").values())
        failed = sum(results.by_round(load, side, "failed").values())
        rows.append(
            (load, side, f"{server.middle:.3g}", f"{client.middle:.3g}",
             "" if after is None else f"{after.middle:.2f} s", f"{failed:.0f}")
        )  # fmt: skip
    return grid(COST_HEAD, rows, markdown=markdown) if rows else ""


def variant_lines(results: TurnResults) -> list[str]:
    """Sentences on what RocketMQ does with other settings, and on idle sides."""
    said = []
    for side, setting in VARIANTS:
        for load in dict.fromkeys(turn.load for turn in results.turns if turn.side == side):
            theirs = results.by_round(load, side, "per_s")
            spread = Spread.of(theirs.values())
            ratio = Spread.of(ratios(results.by_round(load, OURS, "per_s"), theirs))
            if spread is not None:
                said.append(
                    f"{load}: RocketMQ with {setting} {spread_text(spread, '/s')}/s; "
                    f"ours / that {spread_text(ratio)}"
                )
    heap = Spread.of(results.by_round("default_heap", DEFAULT_HEAP, "pss_mib").values())
    if heap is not None:
        said.append(f"memory of a broker whose heap Java chooses: {spread_text(heap, 'MiB')} MiB")
    for side in (THEIRS, OURS):
        other = Spread.of(results.by_round("*", side, "others_cpu_share").values())
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
    parts = [text for text in (machine_text(results),) if text]
    parts.append(main_table(results, markdown=markdown))
    costs = cost_table(results, markdown=markdown)
    if costs:
        parts.append("CPU seconds per million messages, until all is dispatched (medians):")
        parts.append(costs)
    variants = variant_lines(results)
    if variants:
        parts.append("\n".join(f"* {line}" for line in variants))
    below = below_must(results)
    if below and not markdown:
        parts.append("Below their must: " + "; ".join(below) + ".")
    return "\n\n".join(parts)
