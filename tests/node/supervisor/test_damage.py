"""The list of damaged places: bounded, counted, and without what retention has deleted."""

import logging
from pathlib import Path

import pytest

from node.runtime.process import DAMAGED_PLACES_MAX as REPORTED_MAX
from node.runtime.process import REPORT_S, DamageReport, DamageReporter
from node.supervisor.child_process import ChildReport, parse_report
from node.supervisor.status import DAMAGED_PLACES_MAX, DamageList
from protocol.errors import StoreDamaged


def damage(offset: int, file: str = "commitlog/0", count: int = 1, at: int = 7) -> DamageReport:
    return DamageReport(file, offset, "torn", count, at, at)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog/0").touch()
    return tmp_path


def test_meetings_with_one_place_are_one_row_and_one_line(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = DamageList()
    found.note("reader 0", damage(5, count=2, at=10))
    found.note("reader 1", damage(5, count=3, at=20))
    (row,) = found.status(store).places
    assert (row.count, row.first_ms, row.last_ms) == (5, 10, 20)
    assert row.file == str(store / "commitlog/0")
    assert [record.getMessage() for record in caplog.records] == ["damage was found"]
    assert caplog.records[0].levelno == logging.ERROR


def test_the_list_is_bounded_and_counts_the_rest(store: Path) -> None:
    found = DamageList()
    for number in range(DAMAGED_PLACES_MAX + 3):
        found.note("reader 0", damage(number))
    found.note("reader 0", damage(0, file="", count=4))
    places, others = found.status(store)
    assert (len(places), others) == (DAMAGED_PLACES_MAX, 7)
    assert (
        f"damaged places: {DAMAGED_PLACES_MAX} listed, met {DAMAGED_PLACES_MAX + 7} times"
        in found.text(store)
    )


def test_a_file_that_was_deleted_since_is_left_out(store: Path) -> None:
    found = DamageList()
    found.note("reader 0", damage(5))
    assert found.text(store)
    (store / "commitlog/0").unlink()
    assert found.text(store) == ""


def test_a_store_that_has_moved_hides_nothing(store: Path) -> None:
    found = DamageList()
    found.note("reader 0", damage(5))
    assert found.text(store / "elsewhere")


def test_a_reader_reports_a_place_at_once_and_then_how_often(tmp_path: Path) -> None:
    sent: list[DamageReport] = []

    def send(one: DamageReport) -> bool:
        sent.append(one)
        return True

    reports = DamageReporter(tmp_path, send)
    error = StoreDamaged(str(tmp_path / "commitlog/0"), 5, "torn")
    reports.note(error)
    reports.turn(100.0)
    for _ in range(1000):
        reports.note(error)
        reports.turn(100.0 + REPORT_S / 2)
    assert [(one.file, one.times) for one in sent] == [("commitlog/0", 1)]
    reports.turn(100.0 + REPORT_S)
    assert [one.times for one in sent] == [1, 1000]


def test_a_reader_holds_a_bounded_number_of_places_while_nobody_listens(tmp_path: Path) -> None:
    sent: list[DamageReport] = []
    listens = False

    def send(one: DamageReport) -> bool:
        sent.extend([one] if listens else [])
        return listens

    reports = DamageReporter(tmp_path, send)
    for offset in range(REPORTED_MAX * 3):
        reports.note(StoreDamaged("/x", offset, ""))
    reports.turn(1.0)
    listens = True
    reports.turn(2.0)
    assert len(sent) == REPORTED_MAX + 1
    assert sum(one.times for one in sent) == REPORTED_MAX * 3


def test_a_report_of_damage_is_a_line_of_json() -> None:
    line = b'{"damage": ["commitlog/0", 5, "torn", 1, 7, 8]}'
    expected = ChildReport(None, damage=DamageReport("commitlog/0", 5, "torn", 1, 7, 8))
    assert parse_report(line) == expected
    assert parse_report(b'{"damage": ["commitlog/0", "5"]}') is None
