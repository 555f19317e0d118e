"""The life of a child process of a node: its start, its loop, and an end whatever happens.

A process that has met an error which nobody foresaw must not live on: its threads would keep it
in the process table while it serves nobody, and the supervisor would not start another one.
"""

import errno
import logging
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeGuard

from node.runtime.disk import DISK_FULL, NO_RESOURCES
from node.runtime.event_log import fields, log_to_stderr
from node.runtime.log_signals import obey_log_signals
from node.runtime.process import (
    EXIT_FAILED,
    EXIT_UNEXPECTED,
    StopFlag,
    die_with_parent,
    end_badly,
    install_stop_signals,
    keep_freed_memory,
    offer_as_victim,
    raise_file_limit,
    report_end,
    report_ready,
    set_title,
)
from node.runtime.shortage import is_shortage
from node.runtime.state_page import PageAbsent
from protocol.errors import MqError, StoreMoved

log = logging.getLogger("keelog.process")

SAID_IN_WORDS = DISK_FULL | NO_RESOURCES | {errno.EIO, errno.EROFS}
"""Errors of the disk, and shortages: three lines say all, a traceback would add nothing."""


@dataclass(slots=True)
class ChildProcess:
    """One process of a node, as `run_process` starts and ends it."""

    slot: str
    """Its name in log lines: `writer`, `reader-0`, `queue-0-of-2`."""
    title: str
    """Its name in `ps -o comm`."""
    what: str
    """The first line of its error: `the writer of DIR cannot start`. Change it once it has."""
    place: str
    """Named by disk errors that name no file."""
    oom_points: int
    ready_fd: int | None
    """The pipe to the supervisor; None where a person started the process."""
    foreseen: tuple[type[MqError], ...] = ()
    """Errors of ours that may end it after its start, with their own exit codes."""
    is_ready: bool = False

    def report_ready(self, endpoint: str = "") -> None:
        """Reports that work is accepted. From now on an error of ours is a bug, unless foreseen."""
        self.is_ready = True
        report_ready(self.ready_fd, endpoint)


def run_process(child: ChildProcess, body: Callable[[StopFlag], int]) -> int:
    """Runs `body` until it returns an exit code. An error after the start ends the process here.

    `body` gets the flag that SIGTERM and SIGINT set. An error that was not foreseen, in it or in a
    thread, is logged with its traceback; the exit code is EXIT_UNEXPECTED then.
    """
    set_title(child.title)
    raise_file_limit()
    keep_freed_memory()
    log_to_stderr(child.slot)
    stop = install_stop_signals()
    if child.ready_fd is not None:
        obey_log_signals()
        die_with_parent()
        offer_as_victim(child.oom_points)
    threading.excepthook = lambda caught: _end(child, caught.exc_value)
    try:
        return body(stop)
    except BaseException as error:  # noqa: BLE001 (whatever it is, it ends the process)
        if isinstance(error, MqError | OSError) and not child.is_ready:
            return end_badly(child.what, error, child.place, child.ready_fd)
        _end(child, error)


def _end(child: ChildProcess, error: BaseException | None) -> NoReturn:
    """Ends the process at once, whatever its other threads do, and though memory may be short."""
    code = EXIT_UNEXPECTED
    try:
        if isinstance(error, PageAbsent):
            code = EXIT_FAILED
            log.error(
                "state page lost: the process ends, the next makes it", extra=fields(why=error)
            )
            report_end(child.ready_fd, f"its state page is lost: {error}")
        elif _is_in_words(error, child):
            code = end_badly(child.what, error, child.place, child.ready_fd)
        else:
            _log_traceback(error)
            report_end(child.ready_fd, unexpected(error))
    finally:
        os._exit(code)


def _is_in_words(error: BaseException | None, child: ChildProcess) -> TypeGuard[MqError | OSError]:
    """Whether three lines say all: of a disk, a shortage, a store that has moved, and what was
    foreseen. A traceback goes before them for other errors of the system."""
    if isinstance(error, OSError):
        if error.errno is not None and error.errno not in SAID_IN_WORDS:
            _log_traceback(error)
        return error.errno is not None
    return isinstance(error, (StoreMoved, *child.foreseen)) or is_shortage(error)


def unexpected(error: BaseException | None) -> str:
    """The cause that status and health show for an error that nobody foresaw."""
    text = "".join(traceback.format_exception_only(error)).strip() if error else "an unknown error"
    return f"an unexpected error, its traceback is in the log: {text}"


def _log_traceback(error: BaseException | None) -> None:
    thread = threading.current_thread().name
    told = fields(error=type(error).__name__, thread=thread)
    log.critical("an unexpected error ends the process", exc_info=error, extra=told)
