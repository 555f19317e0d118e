"""A log in which segments are missing, and one that grows or is cut under the read."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from protocol.errors import MqError
from protocol.names import offset_file_name
from tests.pipeline.facts_as_rows import plain_rows, read_rows
from tests.support.golden import GetStore, facts

NAME = "small-clean"
SEGMENT_BYTES = 262_144
OFFSETS = [fact["physicalOffset"] for fact in facts(NAME).messages]
WAYS = pytest.mark.parametrize("way", [{}, {"subscribePattern": ".*"}], ids=["log", "queues"])
CUTS = pytest.mark.parametrize("cuts", ["1", "7"])
GONE = range(2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES)


def segment(root: Path, number: int) -> Path:
    return root / "commitlog" / offset_file_name(number * SEGMENT_BYTES)


@pytest.fixture
def holed(golden_copy: GetStore) -> Path:
    """A store without its third and fourth segment."""
    root = golden_copy(NAME)
    segment(root, 2).unlink()
    segment(root, 3).unlink()
    return root


@WAYS
def test_missing_segments_are_a_loss_that_names_its_place(holed: Path, way: dict[str, str]) -> None:
    place = re.escape(f"log offsets {GONE.start} to {GONE.stop - 1}")
    with pytest.raises(MqError, match=rf"\[KEELOG_DATA_LOSS\].*{place}.*failOnDataLoss=false"):
        read_rows(path=str(holed), **way)
    with pytest.raises(MqError, match="KEELOG_DATA_LOSS"):
        read_rows(path=str(holed), onCorruptRecord="skip", **way)


@WAYS
@CUTS
def test_without_fail_on_data_loss_everything_else_is_read(
    holed: Path, way: dict[str, str], cuts: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = read_rows(path=str(holed), failOnDataLoss="false", minPartitions=cuts, **way)
    found = sorted(row["physicalOffset"] for row in rows)
    assert found == [offset for offset in OFFSETS if offset not in GONE]
    assert f"log offsets {GONE.start} to {GONE.stop - 1}" in caplog.text
    if way:
        lost = sum(int(count) for count in re.findall(r": (\d+) messages", caplog.text))
        assert lost == len(OFFSETS) - len(found)


def test_a_foreign_file_is_no_loss_and_stays_an_error(golden_copy: GetStore) -> None:
    root = golden_copy(NAME)
    (root / "commitlog" / "notes").write_text("x")
    with pytest.raises(MqError, match=r"\[KEELOG_STORE_DAMAGED\].*notes"):
        read_rows(path=str(root), failOnDataLoss="false")


@WAYS
@pytest.mark.parametrize("kept", [1, 5])
def test_rows_that_come_after_the_plan_are_none_of_it(
    golden_copy: GetStore, way: dict[str, str], kept: int
) -> None:
    """A copy that is still being made: its last segments come while it is read."""
    root = golden_copy(NAME)
    later = {path: path.read_bytes() for path in sorted((root / "commitlog").iterdir())[kept:]}
    for path in later:
        path.unlink()
    end = kept * SEGMENT_BYTES
    parts = plan_parts(parse_options({"path": str(root), "columns": "physicalOffset", **way}))
    for path, data in later.items():
        path.write_bytes(data)
    rows = [row for part in parts for batch in read_part(part) for row in plain_rows(batch)]
    found = sorted(row["physicalOffset"] for row in rows)
    assert found == [offset for offset in OFFSETS if offset < end]


Change = Callable[[Path, int], None]


def _cut(root: Path, number: int) -> None:
    with segment(root, number).open("r+b") as file:
        file.truncate(0)


def _wipe(root: Path, number: int) -> None:
    segment(root, number).write_bytes(bytes(SEGMENT_BYTES))


def _other_records(root: Path, number: int) -> None:
    segment(root, number).write_bytes(segment(root, number - 1).read_bytes())


@WAYS
@pytest.mark.parametrize(
    "change", [_cut, _wipe, _other_records], ids=lambda change: change.__name__
)
def test_what_was_cut_or_written_over_under_the_read_gives_no_row(
    golden_copy: GetStore, way: dict[str, str], change: Change
) -> None:
    root = golden_copy(NAME)
    rest = [offset for offset in OFFSETS if offset // SEGMENT_BYTES != 3]
    for options in ({}, {"onCorruptRecord": "skip", "failOnDataLoss": "false"}):
        parts = plan_parts(
            parse_options({"path": str(root), "columns": "physicalOffset", **options, **way})
        )
        before = segment(root, 3).read_bytes()
        change(root, 3)
        found: list[int] = []
        try:
            for part in parts:
                for batch in read_part(part):
                    found += [row["physicalOffset"] for row in plain_rows(batch)]
        except MqError as error:
            assert not options or change is _cut, error
            assert set(found) <= set(rest)
        else:
            assert options
            assert sorted(found) == rest
        segment(root, 3).write_bytes(before)
