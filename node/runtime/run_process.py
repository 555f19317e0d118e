"""The life of a node's processes: their one start, their loop, and an end whatever happens.

After an unexpected error a process must not live on: its other threads would keep it in the process
table while it serves nobody, and the supervisor would not start another one.
"""

import argparse
import errno
import logging
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeGuard

from node.runtime.damage import met_damage
from node.runtime.descriptors import check_file_limit
from node.runtime.disk import DISK_FULL, NO_RESOURCES
from node.runtime.event_log import fields, log_to_stderr
from node.runtime.held_store import hold_store
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
    report_damage,
    report_end,
    report_ready,
    set_title,
    take_short_slices,
)
from node.runtime.settings import Settings, load_settings
from node.runtime.shortage import in_our_words, is_shortage
from node.runtime.state_page import PageAbsent
from node.runtime.task_limit import TASKS_OF_CHILD, check_task_limit
from protocol.errors import MqError, StoreMoved

log = logging.getLogger("keelog.process")

SAID_IN_WORDS = DISK_FULL | NO_RESOURCES | {errno.EIO, errno.EROFS}
"""Errors of the disk, and shortages: three lines are enough, without a traceback."""


def child_parser(module: str, text: str | None) -> argparse.ArgumentParser:
    """The options of every child of a supervisor."""
    parser = argparse.ArgumentParser(f"python -m {module}", description=text)
    parser.add_argument("dir", metavar="DIR", type=Path, help="the store")
    parser.add_argument("-X", dest="settings", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--held", default="", help="device and inode of the store and its lock")
    return parser


@dataclass(slots=True)
class ChildProcess:
    """One process of a node, as `run_process` starts and ends it."""

    slot: str
    """Its name in log lines: `writer`, `reader-0`, `queue-0-of-2`."""
    title: str
    """Its name in `ps -o comm`."""
    what: str
    """The first line of its error: `the writer of DIR cannot start`. Change it once it has."""
    root: Path
    """The store. Disk errors that name no file name it."""
    options: argparse.Namespace
    """As `child_parser` reads them."""
    oom_points: int
    foreseen: tuple[type[MqError], ...] = ()
    """Errors of ours that may end it after its start, with their own exit codes."""
    is_of_node: bool = True
    """Whether the store is that of a running node; else the process takes its lock itself."""
    serves_clients: bool = False
    """Whether clients wait for what it does next."""
    is_ready: bool = False

    @property
    def ready_fd(self) -> int | None:
        """The pipe to the supervisor; None where a person started the process."""
        found: int | None = self.options.ready_fd
        return found

    def report_ready(self, endpoint: str = "") -> None:
        """Reports that work is accepted. From now on an error of ours is a bug, unless foreseen."""
        self.is_ready = True
        report_ready(self.ready_fd, endpoint)


def begin_process(title: str, slot: str) -> StopFlag:
    """Does what the supervisor and its children begin with; returns the flag of SIGTERM, SIGINT."""
    set_title(title)
    raise_file_limit()
    log_to_stderr(slot)
    return install_stop_signals()


def run_process(child: ChildProcess, body: Callable[[Settings, StopFlag], int]) -> int:
    """Starts a child, then runs `body` until it returns an exit code.

    The start checks the limit of open files, reads the settings and holds the store, in this
    order. An error that was not foreseen, in `body` or in a thread, ends the process here: it is
    logged with its traceback, and the exit code is EXIT_UNEXPECTED.
    """
    stop = begin_process(child.title, child.slot)
    keep_freed_memory()
    if child.ready_fd is not None:
        obey_log_signals()
        met_damage.report_to(child.root, partial(report_damage, child.ready_fd))
        die_with_parent(child.ready_fd)
        offer_as_victim(child.oom_points)
    if child.serves_clients:
        take_short_slices()
    threading.excepthook = lambda caught: _end(child, caught.exc_value)
    try:
        if child.is_of_node:
            check_file_limit()
            check_task_limit(TASKS_OF_CHILD, "each process of this node")
        settings = load_settings(child.options.settings)
        if child.is_of_node:
            hold_store(child.root, child.options.held)
        return body(settings, stop)
    except BaseException as caught:  # noqa: BLE001 (whatever it is, it ends the process)
        error = in_our_words(caught)
        if isinstance(error, MqError | OSError) and not child.is_ready:
            return end_badly(child.what, error, str(child.root), child.ready_fd)
        _end(child, error)


def _end(child: ChildProcess, error: BaseException | None) -> NoReturn:
    """Ends the process at once, whatever its other threads do, even when memory is short."""
    code, error = EXIT_UNEXPECTED, in_our_words(error)
    try:
        if isinstance(error, PageAbsent):
            code = EXIT_FAILED
            log.error(
                "state page lost: the process ends, the next makes it", extra=fields(why=error)
            )
            report_end(child.ready_fd, f"its state page is lost: {error}")
        elif _is_in_words(error, child):
            code = end_badly(child.what, error, str(child.root), child.ready_fd)
        else:
            _log_traceback(error)
            report_end(child.ready_fd, unexpected(error))
    finally:
        os._exit(code)


def _is_in_words(error: BaseException | None, child: ChildProcess) -> TypeGuard[MqError | OSError]:
    """Whether three lines report an error: of the system, a shortage, a moved store, or foreseen.

    For errors of the system that are not the disk's, it logs the traceback first.
    """
    if isinstance(error, OSError):
        if error.errno is not None and error.errno not in SAID_IN_WORDS:
            _log_traceback(error)
        return error.errno is not None
    return isinstance(error, (StoreMoved, *child.foreseen)) or is_shortage(error)


def unexpected(error: BaseException | None) -> str:
    """The cause of an unexpected error, as status and health show it."""
    text = "".join(traceback.format_exception_only(error)).strip() if error else "an unknown error"
    return f"an unexpected error, its traceback is in the log: {text}"


def _log_traceback(error: BaseException | None) -> None:
    thread = threading.current_thread().name
    told = fields(error=type(error).__name__, thread=thread)
    log.critical("an unexpected error ends the process", exc_info=error, extra=told)
