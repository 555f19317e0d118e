"""What scripts/bench/flatness.py shows, and one small run of it."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from scripts.bench import flatness as bench_flatness
from scripts.bench.flatness import Point, sizes_of_log, table
from scripts.command_line import number

FIGURES = {
    "batches_per_s": 812_345,
    "send_p99_ms": 0.4567,
    "pss_mib": 150.4,
    "handles": 260,
    "pss_mib_of": {"writer": 100.2, "index": 50.2},
    "handles_of": {"writer": 200, "index": 60},
}
POINTS = [Point("log", 1, "GiB", FIGURES), Point("log", 8, "GiB", FIGURES)]


@pytest.mark.parametrize(
    ("gib", "sizes"), [(1.0, [1.0]), (8.0, [1.0, 2.0, 4.0, 8.0]), (5.0, [1.0, 2.0, 4.0, 5.0])]
)
def test_the_log_doubles_up_to_the_size_asked_for(gib: float, sizes: list[float]) -> None:
    assert sizes_of_log(gib) == sizes


def test_the_table_shows_what_was_measured_and_who_holds_what() -> None:
    shown = table(POINTS, markdown=True)
    assert "| log: GiB | batches, /s | p99 | memory, MiB | file handles |" in shown
    assert "| 8 | 812,345 | 0.457 | 150 | 260 |" in shown
    assert "At 8 GiB: writer 100 MiB, 200 handles; index 50.2 MiB, 60 handles." in shown
    assert number(None) == ""


def test_a_saved_result_becomes_a_picture_also_where_a_part_lacks_a_figure(tmp_path: Path) -> None:
    age = Point("age", 0, "M messages", {"pss_mib": 3.0, "pss_mib_of": {}, "handles_of": {}})
    saved, picture = tmp_path / "saved.json", tmp_path / "flat.svg"
    saved.write_text(json.dumps({"points": [asdict(point) for point in [*POINTS, age]]}))
    assert bench_flatness.main(["--from", str(saved), "--picture", str(picture)]) == 0
    assert "<svg" in picture.read_text()


def test_a_part_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_flatness.main(["--parts", "log,moon"]) == 2
    assert "no part is called moon" in capsys.readouterr().err
