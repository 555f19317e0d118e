"""How a process's log looks: for people, and for machines."""

import json
import logging
import sys

from node.store.event_log import JsonLines, formatter


def event(text: str, *arguments: object, error: bool = False) -> logging.LogRecord:
    found = sys.exc_info() if error else None
    record = logging.LogRecord("keelog.x", logging.WARNING, __file__, 1, text, arguments, found)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    return record


def test_an_event_is_one_json_object_a_line_where_it_is_asked_for() -> None:
    line = formatter("writer", {"KEELOG_LOG": "json"}).format(event('it "ends"\n%d', 7))
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


def test_people_get_text() -> None:
    assert formatter("index", {}).format(event("%d%%", 5)) == "WARNING index 5%"
