"""The same requests at a broker and at a node, and the table of what differs.

The tables of mqadmin's commands and of the Dashboard's addresses are made here.
"""

import argparse
import difflib
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, NamedTuple, Protocol, TypeVar

from scripts.rivals.mqadmin.verdicts import EQUAL, AdminVerdict


class SideCase(Protocol):
    """One request. `subject`: what a row of the table is about, a command or a path."""

    @property
    def label(self) -> str:
        """As people write it, without network addresses."""

    @property
    def subject(self) -> str:
        """What it is asked of."""

    @property
    def after_s(self) -> float:
        """The pause before it."""


C = TypeVar("C", bound=SideCase)
S = TypeVar("S")


class CasePair(NamedTuple, Generic[C]):
    """One case, and what both sides said: the broker's and the node's masked lines."""

    case: C
    theirs: list[str]
    ours: list[str]
    verdict: AdminVerdict


def run_cases(
    sides: Sequence[S],
    cases: Iterable[C],
    lines: Callable[[S, C], list[str]],
    judge: Callable[[C, Sequence[str], Sequence[str]], AdminVerdict],
) -> list[CasePair[C]]:
    """Runs each case at both sides, the broker's and the node's, at the same time.

    `lines` asks one side and masks what it says.
    """
    runs = []
    with ThreadPoolExecutor(2) as pool:
        for case in cases:
            print(case.label, file=sys.stderr, flush=True)
            time.sleep(case.after_s)
            theirs, ours = pool.map(lambda side, one=case: lines(side, one), sides)
            runs.append(CasePair(case, theirs, ours, judge(case, theirs, ours)))
    return runs


def table(runs: Sequence[CasePair[C]], subject: str, total: str) -> str:
    """The table in Markdown, a row for each run, with a count of verdicts at its end.

    `subject` heads the first column; `total` says of what there are so many, as "runs of {} ..."
    """
    rows = [f"| {subject} | at a node |", "|---|---|"]
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.verdict.kind] = counts.get(run.verdict.kind, 0) + 1
        rows.append(f"| `{run.case.label}` | {run.verdict.text} |")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    of = total.format(len({run.case.subject for run in runs}))
    return "\n".join([*rows, "", f"{len(runs)} {of}: {kinds}."])


def difference(run: CasePair[C]) -> str:
    """The lines that differ, as `diff` shows them."""
    found = difflib.unified_diff(run.theirs, run.ours, "broker", "node", lineterm="", n=1)
    return "\n".join(found)


def unexpected(
    runs: Sequence[CasePair[C]], known: Iterable[str], allowed: Sequence[str] = (EQUAL,)
) -> str:
    """The differences that are not known ones, for a test's message; empty when there is none."""
    labels = set(known)
    return "\n".join(
        f"== {run.case.label}\n{difference(run)}"
        for run in runs
        if run.verdict.kind not in allowed and run.case.label not in labels
    )


def arguments(doc: str, cases: Sequence[C], subjects: str) -> tuple[list[C], bool]:
    """The command line: the cases that are wanted, and whether to print what differs."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(subjects, nargs="*", help="these alone")
    parser.add_argument("--show", action="store_true", help="print the lines that differ")
    options = parser.parse_args()
    wanted = set(getattr(options, subjects))
    if unknown := wanted - {case.subject for case in cases}:
        parser.error(f"no case has {', '.join(sorted(unknown))}: see {subjects} in the cases' file")
    return [case for case in cases if not wanted or case.subject in wanted], options.show


def print_differences(runs: Sequence[CasePair[C]]) -> None:
    """The lines that differ, of all runs that are not equal."""
    for run in runs:
        if run.verdict.kind != EQUAL:
            print(f"== {run.case.label}\n{difference(run)}\n")
