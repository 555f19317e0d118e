"""Logs of a node's processes: one event a line on stderr, never a word of a message.

Text on a terminal, else a JSON object for collectors of lines; KEELOG_LOG overrides that. An
event's name is constant; its values are in `fields`.

No process waits for who reads its lines. A terminal that is stopped (Ctrl-S), or a pipe that nobody
reads, would otherwise stop all that a process does. A line that does not go at once is dropped, and
counted.

Signals reopen a running node's log, and switch debug events on or off. stderr is a file if a
shell's `2>>` made it one. That file is reopened by its name, so that logs can be rotated.
"""

import json
import logging
import math
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from protocol.errors import BadRequest
from protocol.human_text import one_line, printable

log = logging.getLogger("keelog.log")

STDERR = 2
LAST_WORDS_S = 1.0
"""How long a process that ends waits until its last lines can be written."""
_READERS_WAIT = (BlockingIOError, InterruptedError)

FORMAT_VARIABLE = "KEELOG_LOG"
"""The environment variable, `text` or `json`: it counts more than the kind of stderr."""
FORMATS = ("text", "json")
REPEAT_S = 10.0
REPEATED_LINES_MAX = 10
"""Lines of one event within REPEAT_S; further ones are counted."""
VALUE_CHARS_MAX = 2_000

SELDOM_S = 60.0
SELDOM_KEYS_MAX = 256

FILE_VARIABLE = "KEELOG_LOG_FILE"
"""The supervisor sets it for its children: stderr's file, by its name at the node's start. A child
may start between a rotation and its signal, when stderr's own name is that of the old file."""
FILE_MODE = 0o640


def fields(**values: object) -> dict[str, Any]:
    """The values of an event, for the `extra` of a logging call: offsets, names, causes."""
    return {"fields": values}


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


class LineOutput:
    """Writes to one descriptor without a buffer, also in the handler of a signal."""

    def __init__(self, descriptor: int) -> None:
        self.dropped = 0
        """Texts since the start that were not written, or not to their end."""
        self._descriptor = descriptor
        self._opened: int | None = None
        self._opened_of: os.stat_result | None = None
        self._is_torn = False

    def write(self, text: str, wait_s: float = 0.0) -> bool:
        """One call for a line, so that lines of several processes do not mix.

        False, and it counts as dropped, when it has not gone after `wait_s`.
        """
        if self.try_to_write(text, wait_s):
            return True
        self.dropped += 1
        return False

    def try_to_write(self, text: str, wait_s: float = 0.0) -> bool:
        """As `write`, without the count."""
        # Where the line before was cut short, what was cut off would swallow the beginning of this.
        left = text.encode("utf-8", "backslashreplace")
        left = b"\n" + left if self._is_torn else left
        deadline = time.monotonic() + wait_s
        try:
            while left:
                written = self._write_some(left)
                self._is_torn = 0 < written < len(left) or (self._is_torn and not written)
                left = left[written:]
                if left and not self._wait(deadline - time.monotonic()):
                    return False
        except OSError:
            return False  # the reader may have ended, that must not end us
        return True

    def flush(self) -> None:
        """There is nothing to flush."""

    def close(self) -> None:
        """Gives back what was opened beside the descriptor."""
        if self._opened is not None:
            os.close(self._opened)
        self._opened = self._opened_of = None

    def _write_some(self, data: bytes) -> int:
        """How many bytes went at once. Raises OSError."""
        status = os.fstat(self._descriptor)
        try:
            if stat.S_ISSOCK(status.st_mode):
                with socket.fromfd(self._descriptor, socket.AF_UNIX, socket.SOCK_STREAM) as end:
                    return end.send(data, socket.MSG_DONTWAIT)
            if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
                return self._write_without_waiting(data, status)
            return os.write(self._descriptor, data)
        except _READERS_WAIT:
            return 0

    def _write_without_waiting(self, data: bytes, status: os.stat_result) -> int:
        # O_NONBLOCK belongs to the open file, which is that of the shell and of other programs too.
        # So the same pipe or terminal is opened once more.
        if self._opened_of is None or not os.path.samestat(self._opened_of, status):
            self.close()
            self._opened_of = status
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            with suppress(OSError):  # no /proc, or a terminal of another user
                self._opened = os.open(f"/proc/self/fd/{self._descriptor}", flags)
        if self._opened is not None:
            return os.write(self._opened, data)
        # A pipe that is writable takes as much; only who fills it in this moment could stop us.
        is_writable = self._wait(0.0)
        return os.write(self._descriptor, data[: select.PIPE_BUF]) if is_writable else 0

    def _wait(self, wait_s: float) -> bool:
        """Whether more can be written, after at most `wait_s`."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        return wait_s >= 0 and bool(poll.poll(wait_s * 1000))


stderr = LineOutput(STDERR)
"""Of this process."""


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
class _Run:
    """Of like events: how many were lines, and how many were left out since."""

    began_at: float
    lines: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None


class EventLines(logging.StreamHandler[LineOutput]):
    """Writes up to REPEATED_LINES_MAX events of each name within REPEAT_S, further ones as a count,
    before the next line or at the end. So are lines that the reader did not take, before the next
    one that goes. Names are constants of the code, so the number of runs is bounded."""

    def __init__(
        self, output: LineOutput = stderr, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(output)
        self._clock = clock
        self._runs: dict[tuple[str, int, str], _Run] = {}
        self._dropped_before = output.dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the counts that are due, then the event."""
        now = self._clock()
        self._write_ended(now)
        run = self._runs.setdefault((record.name, record.levelno, str(record.msg)), _Run(now))
        if run.lines < REPEATED_LINES_MAX:
            run.lines += 1
            self._write_dropped()
            super().emit(record)
        else:
            run.left_out += 1
            run.last = record

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
        """Forgets runs that are over; writes the last event that each left out, with the count."""
        for key, run in list(self._runs.items()):
            if now - run.began_at >= REPEAT_S:
                self._runs.pop(key, None)
                if run.last is not None:
                    run.last.repeated = run.left_out
                    super().emit(run.last)


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


class Seldom:
    """Knows what was said lately. For one thread; times are of the monotonic clock."""

    def __init__(self, repeat_s: float = SELDOM_S) -> None:
        self._repeat_s = repeat_s
        self._said: dict[Hashable, float] = {}

    def is_due(self, key: Hashable, now: float) -> bool:
        """Whether it is to be said now, which counts as said."""
        if now - self._said.get(key, -self._repeat_s) < self._repeat_s:
            return False
        if len(self._said) >= SELDOM_KEYS_MAX:
            self._said.clear()
        self._said[key] = now
        return True


def file_of_stderr() -> Path | None:
    """The regular file that stderr is; None for a terminal, a pipe, a journal."""
    status = os.fstat(STDERR)
    if not stat.S_ISREG(status.st_mode):
        return None
    path = Path(f"/proc/self/fd/{STDERR}").readlink()
    try:
        return path if os.path.samestat(path.stat(), status) else None
    except OSError:
        return None  # deleted, or not to be seen from here


def reopen(path: Path | None) -> None:
    """Makes stderr the file of that name, creating it. After an error stderr stays as it is."""
    if path is None:
        log.info("no log file to reopen: stderr is none")
        return
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except OSError as error:
        why = error.strerror
        log.error("log file not reopened", extra=fields(file=path, why=why))  # noqa: TRY400
        return
    os.dup2(descriptor, STDERR)
    os.close(descriptor)
    log.info("log file reopened", extra=fields(file=path))


def is_debug() -> bool:
    return logging.getLogger().level == logging.DEBUG


def set_debug(wanted: bool) -> None:
    logging.getLogger().setLevel(logging.DEBUG if wanted else logging.INFO)
    log.info("debug lines are on" if wanted else "debug lines are off")


_hangups = [0]


def note_hangup() -> None:
    """Counts a SIGHUP. May be called in a handler."""
    _hangups[0] += 1


def hangups_heard() -> int:
    """How many SIGHUPs this process has had: who looks at files now and then looks again."""
    return _hangups[0]


def obey_log_signals() -> None:
    """For the children of a supervisor: SIGHUP reopens, SIGUSR2 toggles debug.

    Lines are written by one system call each, so a handler may write one at any time.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else None

    def on_hangup(_number: int, _frame: FrameType | None) -> None:
        note_hangup()
        # Without a file the supervisor alone says so, once for all processes.
        if path is not None:
            reopen(path)

    def on_toggle(_number: int, _frame: FrameType | None) -> None:
        set_debug(not is_debug())

    signal.signal(signal.SIGHUP, on_hangup)
    signal.signal(signal.SIGUSR2, on_toggle)
