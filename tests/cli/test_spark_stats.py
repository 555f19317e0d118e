"""What `keelog spark stats` prints: tables for people, one document for scripts. Without Spark."""

import io
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from keelog.cli.main import run
from keelog.cli.output import Output
from keelog.cli.spark import Asked, show_tables
from keelog.pipeline.jobs.stats import Figures
from tests.pipeline.jobs.stats.test_report import figures, rate, topic

NOON = 1_700_000_000_000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Figures:
    """Figures that every job answers, of whatever store."""
    answer = figures([topic("orders", 1234), topic("x", 4)], [rate("orders", NOON)])
    monkeypatch.setattr(Asked, "running", lambda *_: nullcontext(lambda _job: answer))
    monkeypatch.setattr("keelog.pipeline.resolve.check_read", lambda _options: None)
    return answer


def test_json_is_one_document_of_all_figures(
    counted: Figures, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spark", "stats", "store", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(json.dumps(counted.document()))
    assert set(document) == {
        *("totals", "window_ms", "topics", "queues", "sizes", "tags", "keys", "rates"),
        "tag_rates",
    }


def test_tables_are_shown_for_all_that_there_is(counted: Figures) -> None:
    stream = io.BytesIO()
    show_tables(counted, Output("table", stream))
    text = stream.getvalue().decode()
    assert text.startswith("1238 messages in 4 queues of 2 topics\n")
    assert "1,234" in text
    assert "tags with the most messages" in text
    assert "keys with the most messages" not in text


def test_the_report_is_written_and_named(
    counted: Figures, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "stats.html"
    assert run(["spark", "stats", "store", "--report", str(page)]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert str(page) in capsys.readouterr().err
    assert run(["spark", "stats", "store", "--report", str(tmp_path / "no" / "page.html")]) == 1
    assert "cannot write" in capsys.readouterr().err
