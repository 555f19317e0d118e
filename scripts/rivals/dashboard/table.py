"""The table of the Dashboard's addresses at a node: equal / differs in … / refused (why).

`python -m scripts.rivals.dashboard.table` runs RocketMQ's Dashboard at a Java broker with a name
server, and another at a node on a copy of the broker's store, asks both for every address that
the Dashboard serves, and prints the table. Times, rates and network addresses are masked. `--show`
prints the lines that differ; paths choose some.
"""

import argparse
import difflib
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from scripts.rivals.dashboard.build import dashboard_jar
from scripts.rivals.dashboard.cases import CASES, TRACED, PageCase
from scripts.rivals.dashboard.masks import drawn, lines, masked
from scripts.rivals.dashboard.server import TOKENS, Dashboard
from scripts.rivals.mqadmin.sides import CLUSTER, LIVE, AdminTool, start_sides
from scripts.rivals.mqadmin.verdicts import EQUAL, OTHER_HOST, AdminVerdict, judged
from scripts.rivals.rocketmq import Addresses, class_path

TRACED_COUNT = 6
DIFFERENCES: Mapping[str, str] = {
    "/cluster/brokerConfig.query?brokerAddr={broker}": (
        "which settings there are: a node has its own"
    ),
    "/message/viewMessage.query?topic={topic}&msgId={unique_key}": OTHER_HOST,
}
"""By label: what a known difference is, for people."""


class PageSide(NamedTuple):
    """A Dashboard at one of the two. `names` is what the braces of cases stand for."""

    dashboard: Dashboard
    names: dict[str, str]


class PageRun(NamedTuple):
    """One case, and what both sides answered: the broker's and the node's masked lines."""

    case: PageCase
    theirs: list[str]
    ours: list[str]

    @property
    def verdict(self) -> AdminVerdict:
        """Whether they are equal."""
        said = judged(self.theirs, self.ours, DIFFERENCES.get(self.case.label, ""))
        if said.text == EQUAL and self.case.is_own:
            return AdminVerdict(EQUAL, "equal: the Dashboard replies by itself")
        if said.text == EQUAL and (why := _failure(self.ours)):
            return AdminVerdict(EQUAL, f"equal: {why}, at both")
        return said


def _failure(found: Sequence[str]) -> str:
    """What a page shows in the place of an answer."""
    errors = [line.removeprefix("errMsg = ") for line in found if line.startswith("errMsg = ")]
    return errors[0].partition(" See https:")[0] if errors and errors[0] != "None" else ""


def start_dashboards(ends: ExitStack, jar: Path, home: Path) -> Sequence[PageSide]:
    """The broker's and the node's, with live clients at both. What started ends with `ends`."""
    day, begin_ms = time.strftime("%Y-%m-%d"), int(time.time() * 1000)
    sides = start_sides(ends, class_path(), home, _prepare)
    more = {"day": day, "begin_ms": str(begin_ms), "end_ms": str(int(time.time() * 1000))}
    found = []
    for side in sides:
        name_server = side.names["name_server"]
        folder = Path(side.names["home"]).with_name(f"dashboard-of-{Path(side.names['home']).name}")
        dashboard = Dashboard(jar, folder, name_server)
        ends.callback(dashboard.kill)
        found.append(PageSide(dashboard, {**side.names, **more}))
    return found


def _prepare(tool: AdminTool, addresses: Addresses) -> Mapping[str, str]:
    """Messages with traces, and dead letters."""
    words = ["updateTopic", "-t", TRACED, "-n", addresses.name_server, "-c", CLUSTER]
    tool.ask("run", args=[*words, "-r", "1", "-w", "1"], limit_s=20.0)
    found = tool.ask(
        "trace", name_server=addresses.name_server, topic=TRACED, group=LIVE, count=TRACED_COUNT
    )
    assert found["consumed"] >= TRACED_COUNT, found
    return {"traced_id": found["ids"][0], "dead_id": found["ids"][1]}


def run_cases(sides: Sequence[PageSide], cases: Iterable[PageCase]) -> list[PageRun]:
    """Asks both Dashboards, the broker's and the node's, for each case at the same time."""
    runs = []
    with ThreadPoolExecutor(2) as pool:
        for case in cases:
            print(case.label, file=sys.stderr, flush=True)
            time.sleep(case.after_s)
            theirs, ours = pool.map(lambda side, one=case: _lines(side, one), sides)
            runs.append(PageRun(case, theirs, ours))
    return runs


def _lines(side: PageSide, case: PageCase) -> list[str]:
    answer = masked(side.dashboard.ask(case, side.names), loads=case.has_loads)
    found = lines(drawn(answer) if case.is_chart else answer)
    return [line.replace(side.names["home"], "<home>") for line in found]


def not_asked(sides: Sequence[PageSide]) -> set[str]:
    """What the Dashboard serves and no case asks for."""
    return sides[0].dashboard.addresses() - {case.path for case in CASES} - {TOKENS}


def table(runs: Sequence[PageRun]) -> str:
    """The table in Markdown, a row for each run, with a count of verdicts at its end."""
    rows = ["| address of the Dashboard | at a node |", "|---|---|"]
    counts: dict[str, int] = {}
    for run in runs:
        said = run.verdict
        counts[said.kind] = counts.get(said.kind, 0) + 1
        rows.append(f"| `{run.case.label}` | {said.text} |")
    total = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    return "\n".join([*rows, "", f"{len(runs)} requests to {len({r.case.path for r in runs})}"
                      f" addresses: {total}."])  # fmt: skip


def difference(run: PageRun) -> str:
    """The lines that differ, as `diff` shows them."""
    found = difflib.unified_diff(run.theirs, run.ours, "broker", "node", lineterm="", n=1)
    return "\n".join(found)


def main() -> None:
    """Runs the cases and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="these alone")
    parser.add_argument("--show", action="store_true", help="print the lines that differ")
    options = parser.parse_args()
    wanted = set(options.paths)
    cases = [case for case in CASES if not wanted or case.path in wanted]
    begun, jar = time.monotonic(), dashboard_jar()
    with tempfile.TemporaryDirectory(prefix="dashboard-") as folder, ExitStack() as ends:
        sides = start_dashboards(ends, jar, Path(folder))
        missing = not_asked(sides)
        runs = run_cases(sides, cases)
    if options.show:
        for run in runs:
            if run.verdict.kind != EQUAL:
                print(f"== {run.case.label}\n{difference(run)}\n")
    print(table(runs))
    print(f"not asked: {', '.join(sorted(missing)) or 'none'}")
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
