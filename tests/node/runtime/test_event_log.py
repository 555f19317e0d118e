"""How a process's log looks: for people, and for machines; what of it is left out."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from node.runtime.event_log import (
    REPEAT_S,
    REPEATED_LINES_MAX,
    VALUE_CHARS_MAX,
    EventLines,
    JsonLines,
    LineOutput,
    TextLines,
    fields,
    formatter,
)
from protocol.errors import BadRequest

TIME = "2023-11-14T22:13:20.250Z"


def event(text: str = "it ends", error: Any = False, **values: Any) -> logging.LogRecord:
    found = sys.exc_info() if error else None
    record = logging.LogRecord("keelog.x", logging.WARNING, __file__, 1, text, (), found)
    record.created, record.process = 1_700_000_000.25, 7
    vars(record).update(fields(**values))
    return record


def test_an_event_is_one_json_object_a_line_its_fields_behind_those_of_all() -> None:
    line = JsonLines("writer").format(event('it "ends"', offset=12, why="a\nb", ok=None))
    assert "\n" not in line
    assert list(json.loads(line).items()) == [
        ("ts", TIME),
        ("level", "warning"),
        ("role", "writer"),
        ("pid", 7),
        ("event", 'it "ends"'),
        ("offset", 12),
        ("why", "a\nb"),
        ("ok", None),
    ]


def test_no_field_of_an_event_hides_one_of_all() -> None:
    line = json.loads(JsonLines("writer").format(event(pid=1, role="liar", level=2)))
    assert (line["pid"], line["role"], line["level"]) == (7, "writer", "warning")


def test_an_error_that_nobody_foresaw_is_in_the_same_line() -> None:
    try:
        int("odd")
    except ValueError:
        line = JsonLines("index").format(event("it failed", error=True))
    assert "\n" not in line
    assert json.loads(line)["traceback"].splitlines()[-1].startswith("ValueError: ")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, ""),
        ({"offset": 12, "ok": True, "of": None}, " offset=12 ok=true of=null"),
        ({"file": "/a/b"}, " file=/a/b"),
        ({"why": "no room"}, ' why="no room"'),
        ({"why": 'a="b"\n\x1b[2J'}, r' why="a=\"b\"\n\u001b[2J"'),
        ({"why": ""}, ' why=""'),
    ],
)
def test_people_get_text_whose_values_can_be_told_apart(values: Any, shown: str) -> None:
    line = TextLines("index").format(event(**values))
    assert line == f"{TIME} WARNING index 7 it ends{shown}"


def test_a_long_value_is_cut() -> None:
    line = json.loads(JsonLines("index").format(event(why="x" * 10_000)))
    assert line["why"] == "x" * (VALUE_CHARS_MAX - 1) + "…"


@pytest.mark.parametrize(
    ("variable", "is_terminal", "kind"),
    [
        (None, True, TextLines),
        (None, False, JsonLines),
        ("", False, JsonLines),
        ("text", False, TextLines),
        ("json", True, JsonLines),
    ],
)
def test_a_terminal_gets_text_and_all_else_json_unless_the_variable_says_which(
    variable: str | None, is_terminal: bool, kind: type
) -> None:
    environment = {} if variable is None else {"KEELOG_LOG": variable}
    assert type(formatter("index", environment, is_terminal)) is kind


def test_a_variable_that_says_neither_is_refused() -> None:
    with pytest.raises(BadRequest, match="KEELOG_LOG is 'yaml'") as refused:
        formatter("index", {"KEELOG_LOG": "yaml"}, is_terminal=True)
    assert refused.value.hint == "use text or json"


class Lines:
    """The lines of a handler, on a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self._read, self._write = os.pipe()
        self.output = LineOutput(self._write)
        self.handler = EventLines(self.output, lambda: self.now)
        self.handler.setFormatter(JsonLines("writer"))

    def log(self, count: int, text: str = "it ends", **values: object) -> None:
        for number in range(count):
            self.handler.handle(event(text, number=number, **values))

    def new(self) -> list[Any]:
        os.set_blocking(self._read, False)
        try:
            data = os.read(self._read, 1 << 16)
        except BlockingIOError:
            return []
        return [json.loads(line) for line in data.splitlines()]

    def close(self) -> None:
        self.handler.close()
        self.output.close()
        os.close(self._write)
        os.close(self._read)


@pytest.fixture
def lines() -> Iterator[Lines]:
    made = Lines()
    yield made
    made.close()


def test_of_an_event_that_is_repeated_the_first_lines_and_a_count_are_told(lines: Lines) -> None:
    lines.log(REPEATED_LINES_MAX + 5)
    assert [line["number"] for line in lines.new()] == list(range(REPEATED_LINES_MAX))
    lines.log(1, "another event")
    assert [line["event"] for line in lines.new()] == ["another event"]
    lines.now = REPEAT_S
    lines.log(1)
    late, first = lines.new()
    assert (late["repeated"], late["number"]) == (5, REPEATED_LINES_MAX + 4)
    assert (first["number"], "repeated" in first) == (0, False)


def test_what_was_left_out_is_told_at_the_end_at_the_latest(lines: Lines) -> None:
    lines.log(REPEATED_LINES_MAX + 1)
    lines.new()
    lines.handler.close()
    assert [line["repeated"] for line in lines.new()] == [1]


def test_an_event_now_and_then_is_never_left_out(lines: Lines) -> None:
    for _ in range(REPEATED_LINES_MAX * 3):
        lines.log(1)
        lines.now += REPEAT_S / 2
    assert len(lines.new()) == REPEATED_LINES_MAX * 3


def test_lines_that_nobody_took_are_told_before_the_next_that_goes(lines: Lines) -> None:
    os.set_blocking(lines._read, False)
    lines.log(1, "before")
    count = 0
    while not lines.output.dropped:  # until the pipe is full
        lines.log(1, f"event {count}")
        count += 1
    lines.log(2, "dropped, too")
    lines.new()
    lines.log(1, "somebody reads again")
    lines.log(1, "and again")
    told = lines.new()
    assert [line["event"] for line in told[-3:]] == [
        "lines were dropped: nobody read stderr",
        "somebody reads again",
        "and again",
    ]
    assert (told[-3]["lines"], told[-3]["level"], told[-3]["role"]) == (3, "warning", "writer")
    assert lines.output.dropped == 3


def test_nobody_who_reads_a_log_is_no_reason_to_end(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = LineOutput(writing)
    handler = EventLines(output)
    handler.setFormatter(TextLines("writer"))
    handler.handle(event("nobody reads this"))
    reading, other = os.pipe()
    os.dup2(other, writing)
    os.close(other)
    handler.handle(event("somebody reads again"))
    handler.close()
    output.close()
    os.close(writing)
    with os.fdopen(reading) as lines:
        dropped, line = lines
    assert dropped.endswith("lines were dropped: nobody read stderr lines=1\n")
    assert "somebody reads again" in line
    assert capfd.readouterr().err == "", "a handler that fails prints a traceback"
