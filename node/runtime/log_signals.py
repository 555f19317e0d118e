"""What operators ask of a running node's log, by signals: reopen its file, tell more or less.

stderr is a file where a shell's `2>>` made it one; that file is reopened by its name, for those
who rotate logs. Elsewhere there is none to reopen.
"""

import logging
import os
import signal
import stat
from pathlib import Path
from types import FrameType

from node.runtime.event_log import STDERR, fields

FILE_VARIABLE = "KEELOG_LOG_FILE"
"""Set by the supervisor for its children: the file that stderr goes to, by the name that it had
when the node was started. A child may start between a rotation and its signal."""
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
    """Goes on in a file of that name, made when it is gone. On an error in the one that is open."""
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
    """Tells more, or no more than usual."""
    logging.getLogger().setLevel(logging.DEBUG if wanted else logging.INFO)
    log.info("debug lines are on" if wanted else "debug lines are off")


def obey_log_signals() -> None:
    """For the children of a supervisor: SIGHUP reopens, SIGUSR2 toggles debug.

    Lines are written by one system call each, so a handler may write one at any time.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else None

    def on_hangup(_number: int, _frame: FrameType | None) -> None:
        # Where there is no file the supervisor has said so, once for all.
        if path is not None:
            reopen(path)

    def on_toggle(_number: int, _frame: FrameType | None) -> None:
        set_debug(not is_debug())

    signal.signal(signal.SIGHUP, on_hangup)
    signal.signal(signal.SIGUSR2, on_toggle)
