"""The table of mqadmin's commands at a node: equal / differs in … / refused (why).

`python -m scripts.rivals.mqadmin.table` runs every command of 5.5.0 at a Java broker with a name
server, and at a node on a copy of the broker's store, and prints the table. Times, sizes and
addresses are masked. `--show` prints the lines that differ; names of commands choose some.
"""

import argparse
import difflib
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from scripts.rivals.mqadmin.cases import CASES, AdminCase
from scripts.rivals.mqadmin.masks import masked, without_loads, without_numbers
from scripts.rivals.mqadmin.sides import AdminSide, start_sides
from scripts.rivals.mqadmin.verdicts import AdminVerdict, verdict
from scripts.rivals.rocketmq import class_path


class AdminRun(NamedTuple):
    """One case, and what both sides said: the broker's and the node's masked lines."""

    case: AdminCase
    theirs: list[str]
    ours: list[str]

    @property
    def verdict(self) -> AdminVerdict:
        """Whether they are equal."""
        return verdict(self.case, self.theirs, self.ours)


def run_cases(sides: Sequence[AdminSide], cases: Iterable[AdminCase]) -> list[AdminRun]:
    """Runs each case at both sides, the broker's and the node's, at the same time."""
    runs = []
    with ThreadPoolExecutor(2) as pool:
        for case in cases:
            print(case.label, file=sys.stderr, flush=True)
            time.sleep(case.after_s)
            texts = list(pool.map(lambda side, one=case: side.run(one), sides))
            theirs, ours = (
                _lines(case, text, side) for text, side in zip(texts, sides, strict=True)
            )
            runs.append(AdminRun(case, theirs, ours))
    return runs


def _lines(case: AdminCase, text: str, side: AdminSide) -> list[str]:
    lines = masked(text, side.names)
    if case.command == "brokerStatus":
        return sorted(without_loads(lines))
    return without_numbers(lines) if case.numbers else lines


def table(runs: Sequence[AdminRun]) -> str:
    """The table in Markdown, a row for each run, with a count of verdicts at its end."""
    rows = ["| command | at a node |", "|---|---|"]
    counts: dict[str, int] = {}
    for run in runs:
        said = run.verdict
        counts[said.kind] = counts.get(said.kind, 0) + 1
        rows.append(f"| `{run.case.label}` | {said.text} |")
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return "\n".join([*rows, "", f"{len(runs)} runs of {len({r.case.command for r in runs})}"
                      f" commands: {total}."])  # fmt: skip


def difference(run: AdminRun) -> str:
    """The lines that differ, as `diff` shows them."""
    lines = difflib.unified_diff(run.theirs, run.ours, "broker", "node", lineterm="", n=1)
    return "\n".join(lines)


def main() -> None:
    """Runs the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*", help="these alone")
    parser.add_argument("--show", action="store_true", help="print the lines that differ")
    options = parser.parse_args()
    wanted = set(options.commands)
    cases = [case for case in CASES if not wanted or case.command in wanted]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mqadmin-") as folder, ExitStack() as ends:
        sides = start_sides(ends, class_path(), Path(folder))
        runs = run_cases(sides, cases)
    if options.show:
        for run in runs:
            if run.verdict.kind != "equal":
                print(f"== {run.case.label}\n{difference(run)}\n")
    print(table(runs))
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
