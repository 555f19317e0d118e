"""The end of a command: exit codes, errors as three lines, signals.

The three lines say what failed, why, what to try. Signals end a command that has started
processes.
"""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import click

from keelog.cli.output import say
from keelog.pipeline.errors import CorruptRecord
from protocol import errors
from protocol.addresses import without_credentials
from protocol.human_text import printable

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
UNREACHABLE = 4
DAMAGED = 5
LOCKED = 6
PARTIAL = 7
INTERRUPTED = 130
_LINE_CHARS_MAX = 2_000
Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
_USUAL = (signal.SIG_DFL, signal.default_int_handler)


_KNOWN: dict[type[errors.MqError], tuple[int, str]] = {
    errors.UnknownTopic: (NOT_FOUND, "keelog topic ls"),
    errors.NotFound: (NOT_FOUND, "keelog topic ls"),
    errors.NotConnected: (UNREACHABLE, "keelog serve DIR  (or name another node with --node)"),
    errors.RequestTimeout: (UNREACHABLE, "keelog health --wait 10"),
    errors.OutcomeUnknownError: (
        UNREACHABLE,
        "keelog health --wait 10, then look whether the message is there",
    ),
    errors.CorruptError: (DAMAGED, "keelog store verify DIR --deep"),
    CorruptRecord: (DAMAGED, ""),
    errors.StoreLocked: (LOCKED, "keelog store verify DIR  (reading commands need no lock)"),
    errors.BusyError: (LOCKED, "the same command again in a moment"),
    errors.NotAStore: (FAILED, "keelog store info DIR  with the directory that holds commitlog/"),
    errors.StorePermission: (FAILED, "the same command as the owner of the store"),
    errors.BadRequest: (USAGE, ""),
    errors.MqError: (FAILED, ""),
}
"""Exit codes, and hints for errors without one of their own. The first class that fits counts."""


MEANT_COMMANDS = {
    "serve": "start run server broker node stop",
    "ls": "list",
    "rm": "delete remove del",
    "create": "add new",
    "describe": "show info",
    "produce": "send publish pub put",
    "consume": "read tail subscribe sub fetch",
    "topic": "topics",
    "msg": "message",
    "verify": "check fsck",
    "health": "ping",
}
"""Commands, and the words of other tools for each; one counts where there is such a command."""
_MEANT_OPTIONS = {
    "keelog consume": {
        "leave it out: keelog consume waits for more, unless -e ends it": "--follow",
        "--from end  reads what comes from now on": "--tail",
        "--from 123, -10, -15m: keelog help places": "--offset",
        "--from -15m": "--since",
        "--from start": "--start --begin --beginning",
        "--from start, which is the default": "--from-beginning --all",
        "--from -10": "--last",
        "--from start:2026-11-20T10:00  reads up to a place": "--until --to",
        "--count N": "--limit --max --max-messages",
        "--until-end": "--exit --end --exit-at-end --no-follow",
        "--queue N": "--partition",
        "--tags 'A || B'": "--filter --tag",
        r"--template '%o %k %v\n'": "--format-string",
        "--cursor NAME  keeps the place of one reader under a name": "--group",
        "--cursor NAME": "--name --durable",
        "--on-damage skip, which is the default": "--skip-damaged",
    },
    "keelog produce": {
        "--queue N": "--partition",
        "--tags T": "--tag",
        "--key K, once for each": "--keys",
        "-p NAME=VALUE": "--property --header",
        "keelog produce TOPIC MESSAGE": "--message --body --data",
        "--quiet": "--silent",
        "--jsonl reads a JSON object a line; --format json is the form of the receipts": "--json",
        "--file F  sends a whole file as one message": "--delimiter -D",
    },
}
"""By command what to write in the place of options of other tools."""


def meant(here: Mapping[str, str], word: str) -> str:
    """What a word of other tools is here; empty for no idea."""
    return next((what for what, words in here.items() if word in words.split()), "")


class BadValue(click.BadParameter):
    """A value of the wrong kind; `hint` says how to write one."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class NoCommand(click.UsageError):
    """A command that is not there; `hint` names the nearest one."""

    def __init__(self, name: str, hint: str, ctx: click.Context) -> None:
        super().__init__(f"there is no command {name!r}", ctx)
        self.hint = hint


class Partial(errors.MqError):
    """Some of it was done, some was not; or a limit that was asked for was broken."""


class ClosedPipe(Exception):
    """Nobody reads stdout any more."""


@contextmanager
def doing(what: str) -> Iterator[None]:
    """Names what fails, for the first line of an error: `with doing("cannot send to t"): …`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (errors.MqError, OSError) as error:
        error.add_note(without_credentials(what))
        raise


@contextmanager
def needing_pyarrow() -> Iterator[None]:
    """For imports that need it: `with needing_pyarrow(): import …`. Raises MqError."""
    try:
        yield
    except ImportError as error:
        raise errors.MqError(f"{error.name} is missing", "pip install 'pyarrow>=18'") from None


def exit_code(error: BaseException) -> int:
    """The exit code of an error (cli.md: names, options, shapes and exit codes)."""
    if isinstance(error, Partial):
        return PARTIAL
    if isinstance(error, click.UsageError):
        return USAGE
    return _known(error)[0] if isinstance(error, errors.MqError) else FAILED


def _known(error: errors.MqError) -> tuple[int, str]:
    return next(known for kind, known in _KNOWN.items() if isinstance(error, kind))


def lines(error: BaseException, command: str = "") -> list[str]:
    notes = getattr(error, "__notes__", [])
    what = notes[0] if notes else f"{command or 'keelog'} failed"
    return [
        f"error: {_one_line(what)}",
        f"cause: {_one_line(_cause(error))}",
        f"try: {_one_line(_hint(error, command))}",
    ]


def report(error: BaseException, command: str = "") -> int:
    """Prints the three lines on stderr and returns the exit code."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        command = error.ctx.command_path
    text = "\n".join(lines(error, command or command_of(sys.argv)))
    say(text)
    return exit_code(error)


def quiet_end() -> int:
    """The reader of our output has gone: nothing more is printed, and the command succeeds."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.close(sink)
    return OK


def unforeseen(before: Hook, debug: Callable[[], bool]) -> Hook:
    """A hook for uncaught errors: three lines, or the traceback when `debug` returns True."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, SystemExit):
            before(kind, error, trace)
        elif debug():
            say("".join(traceback.format_exception(error)).rstrip())
        else:
            report(error)

    return show


def _cause(error: BaseException) -> str:
    if isinstance(error, errors.MqError):
        return f"[{error.condition}] {error.reason}" if error.condition else error.reason
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _hint(error: BaseException, command: str) -> str:
    if isinstance(error, errors.MqError):
        return error.hint or _known(error)[1] or f"{command or 'keelog'} --help"
    if isinstance(error, BadValue | NoCommand):
        return error.hint
    if isinstance(error, click.NoSuchOption):
        if error.option_name in ("-c", "--context"):
            name = command.removeprefix("keelog ")
            return f"keelog -c NAME {name} …  (-c goes before the command)"
        if hint := meant(_MEANT_OPTIONS.get(command, {}), error.option_name):
            return hint
    if isinstance(error, click.ClickException):
        return f"{command or 'keelog'} --help"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "df -h  and free some space"
    if isinstance(error, OSError):
        named = isinstance(error.filename, str | bytes) and error.filename
        return f"ls -ld {Path(os.fsdecode(named)).parent if named else '.'}"
    return "the same command with --debug, and report what it prints"


def command_of(argv: list[str]) -> str:
    """`keelog store dump` of a command line, without options and values."""
    words = ["keelog"]
    rest = argv[1:]
    while rest and rest[0].startswith("-"):
        # Of the options before the command only a context has a value.
        rest = rest[2 if rest[0] in ("-c", "--context") else 1 :]
    for word in rest[:2]:
        if not word.isalpha():
            break
        words.append(word)
    return " ".join(words)


def _one_line(text: str) -> str:
    shown = without_credentials(text)
    cleaned = printable(" ".join(shown.splitlines()))
    return cleaned if len(cleaned) <= _LINE_CHARS_MAX else cleaned[:_LINE_CHARS_MAX] + "…"


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP interrupt as Ctrl-C does, so that processes end and temporary
    folders go. Later signals of these three are ignored, so that they do not disturb that.

    A signal that is ignored, as SIGHUP by nohup, stays so. Other threads than the main one get no
    signals: nothing is changed in them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    all_three = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {one: signal.getsignal(one) for one in all_three}
    ours = [one for one, handler in before.items() if handler in _USUAL]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    for one in ours:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, before[one])
