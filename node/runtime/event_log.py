"""Logs of a node's processes: one event a line on stderr, never a word of a message.

Text on a terminal, else a JSON object for collectors of lines; KEELOG_LOG overrides that. An
event's name is constant; its values are in `fields`.
"""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from node.runtime.stderr_lines import STDERR, LineOutput, stderr
from protocol.errors import BadRequest
from protocol.printable import one_line, printable

FORMAT_VARIABLE = "KEELOG_LOG"
"""The environment variable, `text` or `json`: it counts more than the kind of stderr."""
FORMATS = ("text", "json")
REPEAT_S = 10.0
REPEATED_LINES_MAX = 10
"""Lines of one event within REPEAT_S; further ones are counted."""
VALUE_CHARS_MAX = 2_000


def fields(**values: object) -> dict[str, Any]:
    """The values of an event, for the `extra` of a logging call: offsets, names, causes."""
    return {"fields": values}


class JsonLines(logging.Formatter):
    """`ts` (UTC), `level`, `role`, `pid`, `event`, its fields; `repeated`, the number of like
    events that were left out; `traceback` of an unexpected error."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the event holds."""
        line = {
            **{name: _plain(value) for name, value in _fields_of(record)},
            "ts": _time_of(record),
            "level": record.levelname.lower(),
            "role": self._role,
            "pid": record.process,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        first = ("ts", "level", "role", "pid", "event")
        ordered = {name: line.pop(name) for name in first} | line
        return printable(json.dumps(ordered, ensure_ascii=False))


class TextLines(logging.Formatter):
    """`ts LEVEL role pid event key=value …`; values with blanks are in quotes."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """One line; the traceback of an unexpected error follows it."""
        words = [_time_of(record), record.levelname, self._role, str(record.process)]
        words.append(one_line(record.getMessage()))
        words += [f"{name}={_word(value)}" for name, value in _fields_of(record)]
        line = " ".join(words)
        if record.exc_info:
            line += f"\n{printable(self.formatException(record.exc_info))}"
        return line


@dataclass(slots=True)
class _Repeats:
    began_at: float
    lines: int = 1
    left_out: int = 0
    last: logging.LogRecord | None = None


class Repeats:
    """Admits up to REPEATED_LINES_MAX events of each name within REPEAT_S.

    Names are constants of the code, so the number of runs is bounded.
    """

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int, str], _Repeats] = {}

    def admit(self, record: logging.LogRecord, now: float) -> bool:
        """Whether it is a line; else it is counted."""
        key = record.name, record.levelno, str(record.msg)
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = _Repeats(now)
            return True
        if run.lines < REPEATED_LINES_MAX:
            run.lines += 1
            return True
        run.left_out += 1
        run.last = record
        return False

    def ended(self, now: float) -> Iterator[logging.LogRecord]:
        """Forgets runs that are over; yields the last event that each left out, with the count."""
        for key, run in list(self._runs.items()):
            if now - run.began_at < REPEAT_S:
                continue
            self._runs.pop(key, None)
            if run.last is not None:
                run.last.repeated = run.left_out
                yield run.last


class EventLines(logging.StreamHandler[LineOutput]):
    """Writes events; repeated ones as a count, before the next line or at the end. So are
    lines that the reader did not take, before the next one that goes."""

    def __init__(
        self, output: LineOutput = stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(output)
        self._clock = clock
        self._repeats = Repeats()
        self._dropped_before = output.dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the counts that are due, then the event."""
        now = self._clock()
        self._write_ended(now)
        if self._repeats.admit(record, now):
            self._write_dropped()
            super().emit(record)

    def close(self) -> None:
        """Writes the last counts, at the process's end."""
        self._write_ended(math.inf)
        super().close()

    def _write_dropped(self) -> None:
        dropped = self.stream.dropped
        if dropped == self._dropped_before:
            return
        count = fields(lines=dropped - self._dropped_before)
        record = logging.makeLogRecord(
            {"name": "keelog.log", "levelno": logging.WARNING, "levelname": "WARNING", **count}
            | {"msg": "lines were dropped: nobody read stderr"}
        )
        if self.stream.try_to_write(self.format(record) + self.terminator):
            self._dropped_before = dropped

    def _write_ended(self, now: float) -> None:
        for late in self._repeats.ended(now):
            super().emit(late)


def log_to_stderr(role: str) -> None:
    """From now on events of INFO and above are lines on stderr."""
    handler = EventLines()
    handler.setFormatter(formatter(role, os.environ, os.isatty(STDERR)))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def formatter(role: str, environment: Mapping[str, str], is_terminal: bool) -> logging.Formatter:
    """The format of a process's lines. Raises BadRequest for another value of the variable."""
    wanted = environment.get(FORMAT_VARIABLE) or ("text" if is_terminal else "json")
    if wanted not in FORMATS:
        raise BadRequest(f"the variable {FORMAT_VARIABLE} is {wanted[:80]!a}", "use text or json")
    return JsonLines(role) if wanted == "json" else TextLines(role)


def _time_of(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    yield from getattr(record, "fields", {}).items()
    repeated = getattr(record, "repeated", None)
    if repeated is not None:
        yield "repeated", repeated


def _plain(value: object) -> object:
    """Numbers, truth and null as JSON has them; all else as text, not too long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 1]}…"


def _word(value: object) -> str:
    plain = _plain(value)
    text = plain if isinstance(plain, str) else json.dumps(plain)
    is_bare = text.isprintable() and text and not any(sign in ' "=' for sign in text)
    return text if is_bare else printable(json.dumps(text, ensure_ascii=False))
