"""What scripts/bench/limits.py says of a saved result."""

import json
from pathlib import Path

import pytest

from scripts.bench import limits as bench_limits
from scripts.bench.limits import LIMITS, rows
from scripts.rivals.plan import OURS
from scripts.rivals.results import Turn, TurnResults

MEASURED = dict.fromkeys(LIMITS, 10.0)


def test_a_batch_is_held_against_bytes_and_a_request_against_requests() -> None:
    turns = [
        Turn("send_batches_1k", OURS, 1, {"per_s": 1e6}),
        Turn("send_1", OURS, 1, {"per_s": 5.0}),
    ]
    made = {row[0]: row[2:] for row in rows(MEASURED, TurnResults({}, turns))}
    assert made["pwrite of 32 kB, allocated file, GB/s"] == ("1.22 (send_batches_1k)", "12%")
    assert made["ZeroMQ request and answer, one caller, /s"] == ("5 (send_1)", "50%")
    assert made["pwrite and fdatasync of 4 KiB, /s"] == ("", "")


def test_saved_limits_are_shown_again_without_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, page = tmp_path / "limits.json", tmp_path / "page.md"
    saved.write_text(json.dumps(MEASURED))
    page.write_text("<!-- generated: bench_limits -->\n<!-- end -->")
    assert bench_limits.main(["--from", str(saved), "--markdown", str(page)]) == 0
    assert "copying memory" in capsys.readouterr().out
    assert page.read_text().count("| 10 |") == len(LIMITS)
