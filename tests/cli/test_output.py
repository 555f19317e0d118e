"""How rows and documents are written."""

import csv
import io
import json
from typing import Any

import pytest

from keelog.cli.output import Output

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
    assert lines == ["a    b", "1    \\x1b[31m", "100  x"]


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
