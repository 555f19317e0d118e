"""The table of mqadmin's commands at a node: equal / differs in … / refused (why).

`python -m tests.clients.mqadmin.table` runs every command of 5.5.0 at a Java broker with a name
server, and at a node on a copy of the broker's store, and prints the table. Times, sizes and
addresses are masked. `--show` prints the lines that differ; names of commands choose some.
"""

import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.clients.mqadmin import side_by_side
from tests.clients.mqadmin.cases import CASES, AdminCase
from tests.clients.mqadmin.side_by_side import (
    masked,
    verdict,
    without_loads,
    without_numbers,
    without_rates,
)
from tests.clients.mqadmin.sides import AdminSide, start_sides

AdminRun = side_by_side.CasePair[AdminCase]


def run_cases(sides: Sequence[AdminSide], cases: Iterable[AdminCase]) -> list[AdminRun]:
    """Runs each command at both sides, the broker's and the node's."""
    return side_by_side.run_cases(sides, cases, _lines, verdict)


def _lines(side: AdminSide, case: AdminCase) -> list[str]:
    lines = masked(side.run(case), side.names)
    if case.command == "brokerStatus":
        return sorted(without_loads(lines))
    if case.label == "consumerProgress":
        return without_rates(lines)
    return without_numbers(lines) if case.numbers else lines


def main() -> None:
    """Runs the cases and prints the table."""
    cases, show = side_by_side.arguments(__doc__, CASES, "commands")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqadmin-") as folder, ExitStack() as ends:
        sides = start_sides(ends, Path(folder))
        runs = run_cases(sides, cases)
    if show:
        side_by_side.print_differences(runs)
    print(side_by_side.table(runs, "command", "runs of {} commands"))
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
