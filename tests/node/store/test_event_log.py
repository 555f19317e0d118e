"""How a process's log looks: for people, and for machines."""

import io
import json
import logging
import sys

import pytest

from node.store.event_log import JsonLines, formatter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def event(text: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    found = sys.exc_info() if error else None
    record = logging.LogRecord("keelog.x", logging.WARNING, __file__, 1, text, arguments, found)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    return record


def test_an_event_is_one_json_object_a_line_where_nobody_looks_on() -> None:
    line = formatter("writer", {}, io.StringIO()).format(event('it "ends"\n%d', 7))
    assert "\n" not in line
    pid = json.loads(line)["pid"]
    assert json.loads(line) == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "role": "writer",
        "pid": pid,
        "event": 'it "ends"\n7',
    }


def test_an_error_that_nobody_foresaw_is_in_the_same_line() -> None:
    try:
        int("odd")
    except ValueError:
        line = JsonLines("index").format(event("it failed", error=True))
    assert "\n" not in line
    assert json.loads(line)["traceback"].splitlines()[-1].startswith("ValueError: ")


def test_people_on_a_terminal_get_text() -> None:
    assert formatter("index", {}, Terminal()).format(event("%d%%", 5)) == "WARNING index 5%"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_variable_says_which_whatever_stderr_is(stream: io.StringIO) -> None:
    text = formatter("index", {"KEELOG_LOG": "text"}, stream)
    assert text.format(event("x")) == "WARNING index x"
    assert isinstance(formatter("index", {"KEELOG_LOG": "json"}, stream), JsonLines)
