"""How rows and documents are written."""

import csv
import io
import json
import os
import re
from typing import Any

import pytest

from keelog.cli.main import run
from keelog.cli.output import NO_COLOR, Output
from protocol.human_text import printable

ROWS: list[dict[str, Any]] = [
    {"topic": "a", "queue_id": 0, "keys": ["k", "ü"], "body": "line\n"},
    {"topic": "b", "queue_id": 1, "keys": [], "body_b64": "AA=="},
]


def written(format: str, rows: list[dict[str, Any]], columns: tuple[str, ...] = ()) -> str:
    stream = io.BytesIO()
    assert Output(format, stream).rows(rows, columns) == len(rows)
    return stream.getvalue().decode()


def test_json_lines_are_one_object_a_line() -> None:
    assert [json.loads(line) for line in written("jsonl", ROWS).splitlines()] == ROWS


@pytest.mark.parametrize(
    "text",
    ["plain", '\x00\x1b\n\t"\\/', "\x7f", "\x85\u2028\u202e", "ü€😀", "half \udcff of a pair", ""],
)
def test_a_line_of_json_has_the_bytes_that_the_standard_library_writes(text: str) -> None:
    row: dict[str, Any] = {"text": text, text: [1, -(2**63), 1.5, None, True, {"a": []}]}
    plain = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    assert written("jsonl", [row]).encode() == printable(plain + "\n").encode(
        "utf-8", "backslashreplace"
    )


def test_json_is_one_document() -> None:
    assert json.loads(written("json", ROWS)) == ROWS
    assert json.loads(written("json", [])) == []


def test_csv_has_the_named_columns_and_json_in_its_cells() -> None:
    columns = ("topic", "keys", "body", "body_b64")
    parsed = list(csv.DictReader(io.StringIO(written("csv", ROWS, columns))))
    assert parsed[0] == {"topic": "a", "keys": '["k","ü"]', "body": "line\n", "body_b64": ""}
    assert parsed[1]["body_b64"] == "AA=="


def test_a_table_aligns_its_columns_and_shows_no_control_characters() -> None:
    lines = written("table", [{"a": 1, "b": "\x1b[31m"}, {"a": 100, "b": "x"}]).splitlines()
    assert lines == ["a    b", "1    \\u001b[31m", "100  x"]


def test_rows_of_a_live_stream_are_shown_at_once() -> None:
    stream = io.BytesIO()
    seen = []

    def rows() -> Any:
        for number in range(3):
            yield {"n": number}
            seen.append(stream.getvalue().count(b"\n"))

    Output("jsonl", stream).rows(rows(), live=True)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_a_document_is_one_object(format: str) -> None:
    stream = io.BytesIO()
    Output(format, stream).document({"ok": True, "n": None})
    assert json.loads(stream.getvalue()) == {"ok": True, "n": None}
    assert format == "json" or stream.getvalue().count(b"\n") == 1


def test_a_document_as_a_table_lists_its_fields() -> None:
    stream = io.BytesIO()
    Output("table", stream).document({"ok": True})
    assert stream.getvalue().decode().splitlines() == ["field  value", "ok     true"]


LONG: dict[str, Any] = {"a": "x" * 100, "b": 1}


class Watched(Output):
    """An output that a person watches."""

    is_terminal = True


def watched(rows: list[dict[str, Any]], wide: bool = False) -> str:
    stream = io.BytesIO()
    output = Watched("table", stream)
    output.wide = wide
    output.rows(rows)
    return stream.getvalue().decode()


def on_a_terminal(wide: bool = False) -> str:
    return watched([LONG], wide)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich asks the real stdout, which is none here
    return monkeypatch


def test_long_cells_are_cut_in_tables_alone(terminal: pytest.MonkeyPatch) -> None:
    assert "x" * 76 + "…" in on_a_terminal()
    assert LONG["a"] in written("csv", [LONG])


def test_no_row_of_a_table_is_wider_than_the_terminal(terminal: pytest.MonkeyPatch) -> None:
    row = {"name": "queue worker 0", "state": "running", "offset": 10**12, "why": "w" * 300}
    for columns in (200, 80, 60, 40, 20):
        terminal.setenv("COLUMNS", str(columns))
        shown = re.sub(r"\x1b\[[0-9]*m", "", watched([row, row]))
        assert len(shown.splitlines()) == 3, "a cell was wrapped"
        assert max(map(len, shown.splitlines())) <= columns
    terminal.setenv("COLUMNS", "60")
    assert "queue worker 0  running  1000000000000  w" in watched([row])


def test_a_piped_table_has_120_columns_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = written("table", [{"topic": "%RETRY%" + "t" * 248, "n": 1}]).splitlines()
    assert [len(line) for line in lines] == [120, 120]
    assert lines[1].endswith("t…  1")


def test_a_body_that_is_not_text_shows_its_size_in_a_table() -> None:
    lines = written("table", [{"n": 1, "body_b64": "AP8="}, {"n": 2, "body": "x"}], ("n", "body"))
    assert lines.splitlines() == ["n  body", "1  <2 bytes>", "2  x"]


def test_a_wide_table_is_cut_nowhere(terminal: pytest.MonkeyPatch) -> None:
    assert on_a_terminal(wide=True).splitlines() == ["a" + " " * 101 + "b", f"{LONG['a']}  1"]


def test_a_head_is_bold_on_a_terminal(terminal: pytest.MonkeyPatch) -> None:
    assert "\x1b[1m" in on_a_terminal()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_who_wants_no_colours_gets_no_escape_sequence(
    terminal: pytest.MonkeyPatch, name: str, value: str
) -> None:
    terminal.setenv(name, value)
    assert "\x1b" not in on_a_terminal()
    assert "x" * 76 + "…" in on_a_terminal()


@pytest.mark.parametrize(
    "words",
    [("--no-color", "config", "show"), ("config", "show", "--no-color"), ("config", "show")],
)
def test_no_color_is_the_variable_before_and_behind_a_command(
    words: tuple[str, ...], terminal: pytest.MonkeyPatch
) -> None:
    assert run(words) == 0
    assert bool(os.environ.get(NO_COLOR)) == ("--no-color" in words)


@pytest.mark.parametrize(
    "words",
    [("--wide", "--format", "table"), ("--format", "table", "--wide"), ("--format", "table")],
)
def test_wide_may_stand_on_either_side_of_the_format(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bool] = []

    def rows(output: Output, *_: object) -> int:
        found.append(output.wide)
        return 0

    monkeypatch.setattr(Output, "rows", rows)
    assert run(["config", "show", *words]) == 0
    assert found == ["--wide" in words]
