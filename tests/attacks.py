"""The attacks of docs/attacks.md: the tests that hold each of them, and how these end.

A test that holds some says so by its mark, `@pytest.mark.attack(17, 27)`. As a plugin of pytest
(`make attacks`) this module prints each number with what it is, its tests and their outcomes.
`python -m tests.attacks` writes the names of the tests into the page.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "attacks.md"
ATTACKS = range(1, 73)
ROW = re.compile(r"^(?P<number>\d+)\. \*\*(?P<what>.+?)\*\*: (?P<does>.+?) \((?P<tests>`.*`|)\)$")
_PROPERTY = "attacks"
_WORST = ("failed", "error", "skipped", "passed")


def places() -> dict[int, list[str]]:
    """By number: the tests that hold it, as `tests/…/test_….py::test_…`, sorted."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.attack(" in text:
            for name, numbers in _marked(ast.parse(text)):
                for number in numbers:
                    found[number].add(f"{path.relative_to(ROOT)}::{name}")
    return {number: sorted(tests) for number, tests in sorted(found.items())}


def _marked(tree: ast.Module) -> Iterator[tuple[str, list[int]]]:
    for node in tree.body:
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.attack":
                yield node.name, [ast.literal_eval(one) for one in mark.args]  # type: ignore[attr-defined]


def page_with(text: str, tests: dict[int, list[str]]) -> str:
    """The page, each line with the names of its tests."""

    def line_with(line: str) -> str:
        row = ROW.match(line)
        if row is None:
            return line
        names = ", ".join(f"`{test}`" for test in tests.get(int(row["number"]), ()))
        return f"{line[: row.start('tests')]}{names})"

    return "\n".join(map(line_with, text.split("\n")))


def rows(text: str) -> dict[int, str]:
    """What is tried, by number, as the page has it."""
    found = filter(None, map(ROW.match, text.split("\n")))
    return {int(row["number"]): row["what"] for row in found}


# As a plugin


class Outcomes:
    """Of the tests that ran, by attack and test: how often each outcome."""

    def __init__(self) -> None:
        self.by_number: dict[int, dict[str, Counter[str]]] = {
            number: defaultdict(Counter) for number in ATTACKS
        }

    def note(self, report: pytest.TestReport) -> None:
        """Counts a test's end, or what kept it from running."""
        if report.when != "call" and report.outcome == "passed":
            return
        numbers = dict(report.user_properties).get(_PROPERTY, "")
        outcome = report.outcome if report.when == "call" or report.skipped else "error"
        test = re.split(r"[\[@]", report.nodeid)[0]  # without case and group
        for number in str(numbers).split():
            self.by_number[int(number)][test][outcome] += 1

    def lines(self) -> Iterator[str]:
        """The table."""
        what = rows(PAGE.read_text())
        for number, tests in self.by_number.items():
            yield f"{number:>3} {what[number]}"
            for test, counts in sorted(tests.items()):
                worst = next(one for one in _WORST if counts[one])
                cases = f" ({counts.total()} cases)" if counts.total() > 1 else ""
                yield f"    {worst:<7} {test}{cases}"
            if not tests:
                yield "    NO TEST"
        held = sum(self.is_held(number) for number in self.by_number)
        yield f"{held} of {len(self.by_number)} attacks fail, as they must"

    def is_held(self, number: int) -> bool:
        """Whether all of its tests passed that could run, and one did."""
        counts = sum(self.by_number[number].values(), Counter[str]())
        return bool(counts["passed"]) and not counts["failed"] and not counts["error"]


_outcomes = Outcomes()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each report brings the numbers along, also from another process."""
    for item in items:
        for mark in item.iter_markers("attack"):
            item.user_properties.append((_PROPERTY, " ".join(map(str, mark.args))))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.note(report)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table."""
    terminalreporter.section("attacks")
    for line in _outcomes.lines():
        terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A number without a test that passed is a failure, too."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and not session.exitstatus and not all(map(_outcomes.is_held, ATTACKS)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


if __name__ == "__main__":
    PAGE.write_text(page_with(PAGE.read_text(), places()))
