"""The table of the Dashboard's addresses at a node: equal / differs in … / refused (why).

`python -m tests.clients.dashboard.table` runs RocketMQ's Dashboard at a Java broker with a name
server, and another at a node on a copy of the broker's store, asks both for every address that
the Dashboard serves, and prints the table. Times, rates and network addresses are masked. `--show`
prints the lines that differ; paths choose some.
"""

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from scripts.rivals.rocketmq import Addresses
from tests.clients.dashboard.cases import CASES, TRACED, PageCase, drawn, lines, masked
from tests.clients.dashboard.server import TOKENS, Dashboard, dashboard_jar
from tests.clients.mqadmin import side_by_side
from tests.clients.mqadmin.side_by_side import EQUAL, OTHER_HOST, AdminVerdict, judged
from tests.clients.mqadmin.sides import CLUSTER, LIVE, AdminTool, start_sides

TRACED_COUNT = 6
DIFFERENCES: Mapping[str, str] = {
    "/cluster/brokerConfig.query?brokerAddr={broker}": (
        "which settings there are: a node has its own"
    ),
    "/message/viewMessage.query?topic={topic}&msgId={unique_key}": OTHER_HOST,
}
"""By label: what a known difference is, for people."""
PageRun = side_by_side.CasePair[PageCase]


class PageSide(NamedTuple):
    """A Dashboard at one of the two. `names` is what the braces of cases stand for."""

    dashboard: Dashboard
    names: dict[str, str]


def verdict(case: PageCase, theirs: Sequence[str], ours: Sequence[str]) -> AdminVerdict:
    """Of one request."""
    said = judged(theirs, ours, DIFFERENCES.get(case.label, ""))
    if said.text == EQUAL and case.is_own:
        return AdminVerdict(EQUAL, "equal: the Dashboard replies by itself")
    if said.text == EQUAL and (why := _failure(ours)):
        return AdminVerdict(EQUAL, f"equal: {why}, at both")
    return said


def _failure(found: Sequence[str]) -> str:
    """What a page shows in the place of an answer."""
    errors = [line.removeprefix("errMsg = ") for line in found if line.startswith("errMsg = ")]
    return errors[0].partition(" See https:")[0] if errors and errors[0] != "None" else ""


def start_dashboards(ends: ExitStack, jar: Path, home: Path) -> Sequence[PageSide]:
    """The broker's and the node's, with live clients at both. What started ends with `ends`."""
    day, begin_ms = time.strftime("%Y-%m-%d"), int(time.time() * 1000)
    sides = start_sides(ends, home, _prepare)
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
    """Asks both Dashboards, the broker's and the node's, for each case."""
    return side_by_side.run_cases(sides, cases, _lines, verdict)


def _lines(side: PageSide, case: PageCase) -> list[str]:
    answer = masked(side.dashboard.ask(case, side.names), loads=case.has_loads)
    found = lines(drawn(answer) if case.is_chart else answer)
    return [line.replace(side.names["home"], "<home>") for line in found]


def not_asked(sides: Sequence[PageSide]) -> set[str]:
    """What the Dashboard serves and no case asks for."""
    return sides[0].dashboard.addresses() - {case.path for case in CASES} - {TOKENS}


def main() -> None:
    """Runs the cases and prints the table."""
    cases, show = side_by_side.arguments(__doc__, CASES, "paths")
    begun, jar = time.monotonic(), dashboard_jar()
    with tempfile.TemporaryDirectory(prefix="dashboard-") as folder, ExitStack() as ends:
        sides = start_dashboards(ends, jar, Path(folder))
        missing = not_asked(sides)
        runs = run_cases(sides, cases)
    if show:
        side_by_side.print_differences(runs)
    print(side_by_side.table(runs, "address of the Dashboard", "requests to {} addresses"))
    print(f"not asked: {', '.join(sorted(missing)) or 'none'}")
    print(f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
