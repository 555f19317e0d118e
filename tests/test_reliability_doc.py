"""docs/reliability.md names every scenario, and for each the tests that hold it."""

import re
from pathlib import Path

from tests.test_docs import missing_places

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
SCENARIOS = range(1, 78)
ROW = re.compile(r"^(\d+)\. \*\*(.+?)\*\*: (.+?) \((`.*)\)$", re.MULTILINE)
HELD_BY = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")


def rows(text: str) -> dict[int, str]:
    """The tests of each scenario, by its number."""
    return {int(number): tests for number, _, _, tests in ROW.findall(text)}


def test_every_scenario_is_there_once_and_in_order() -> None:
    numbers = [int(found[0]) for found in ROW.findall(PAGE.read_text())]
    assert numbers == list(SCENARIOS)


def test_every_scenario_is_held_by_a_test() -> None:
    without = [
        number for number, tests in rows(PAGE.read_text()).items() if not HELD_BY.search(tests)
    ]
    assert not without, f"no test holds {without}"


def test_every_test_that_the_page_names_exists() -> None:
    assert not missing_places(PAGE.read_text(), ROOT)


def test_a_test_that_was_renamed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("def test_one() -> None: ...\n")
    text = "1. **a**: b (`tests/test_a.py::test_two`)"
    assert missing_places(text, tmp_path) == ["tests/test_a.py::test_two"]
    assert rows(text) == {1: "`tests/test_a.py::test_two`"}
