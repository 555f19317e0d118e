"""Signals for a running node's log: reopen its file, switch debug events on or off.

stderr is a file if a shell's `2>>` made it one. That file is reopened by its name, so that logs can
be rotated.
"""

import logging
import os
import signal
import stat
from pathlib import Path
from types import FrameType

from node.runtime.event_log import fields
from node.runtime.stderr_lines import STDERR

FILE_VARIABLE = "KEELOG_LOG_FILE"
"""The supervisor sets it for its children: stderr's file, by its name at the node's start. A child
may start between a rotation and its signal, when stderr's own name is that of the old file."""
FILE_MODE = 0o640

log = logging.getLogger("keelog.log")


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
    """Whether debug events are lines."""
    return logging.getLogger().level == logging.DEBUG


def set_debug(wanted: bool) -> None:
    """Switches debug lines on or off."""
    logging.getLogger().setLevel(logging.DEBUG if wanted else logging.INFO)
    log.info("debug lines are on" if wanted else "debug lines are off")


def obey_log_signals() -> None:
    """For the children of a supervisor: SIGHUP reopens, SIGUSR2 toggles debug.

    Lines are written by one system call each, so a handler may write one at any time.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else None

    def on_hangup(_number: int, _frame: FrameType | None) -> None:
        # Without a file the supervisor alone says so, once for all processes.
        if path is not None:
            reopen(path)

    def on_toggle(_number: int, _frame: FrameType | None) -> None:
        set_debug(not is_debug())

    signal.signal(signal.SIGHUP, on_hangup)
    signal.signal(signal.SIGUSR2, on_toggle)
