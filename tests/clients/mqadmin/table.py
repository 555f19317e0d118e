"""The table of mqadmin's commands at a node: equal / differs in … / refused (why).

`python -m tests.clients.mqadmin.table` runs every command of 5.5.0 at a Java broker with a name
server, and at a node on a copy of the broker's store, and prints the table; those about users at a
broker with ACL 2.0 and at a node with users. Times, sizes and addresses are masked. `--show` prints
the lines that differ; names of commands choose some.
"""

import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.clients.mqadmin import side_by_side
from tests.clients.mqadmin.cases import CASES, OF_USERS, AdminCase
from tests.clients.mqadmin.side_by_side import (
    masked,
    verdict,
    without_loads,
    without_numbers,
    without_rates,
)
from tests.clients.mqadmin.sides import AdminSide, start_sides
from tests.clients.mqadmin.user_sides import user_sides

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
    cases, show = side_by_side.arguments(__doc__, (*CASES, *OF_USERS), "commands")
    begun, runs = time.monotonic(), list[AdminRun]()
    with tempfile.TemporaryDirectory(prefix="mqadmin-") as folder:
        if plain := [case for case in cases if case not in OF_USERS]:
            with ExitStack() as ends:
                runs += run_cases(start_sides(ends, Path(folder) / "plain"), plain)
        if of_users := [case for case in cases if case in OF_USERS]:
            with user_sides(Path(folder) / "users") as sides:
                runs += run_cases(sides, of_users)
    if show:
        side_by_side.print_differences(runs)
    print(side_by_side.table(runs, "command", "runs of {} commands"))
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
