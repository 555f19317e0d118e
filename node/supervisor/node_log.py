"""The log of a whole node: what SIGHUP and SIGUSR2 to the supervisor ask of all its processes."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from node.runtime.log_signals import FILE_VARIABLE, file_of_stderr, reopen, set_debug
from node.runtime.process import StopFlag


class Listener(Protocol):
    """A child, as far as its log is concerned."""

    pid: int
    has_reported: bool
    """Before its first report a signal would end it."""

    def signal(self, number: signal.Signals) -> None:
        """Sends one to this very process."""


class ChildLogState(NamedTuple):
    """What a child knows."""

    debug: bool
    reopened: int


class NodeLog:
    """Handlers only note the signals; `turn`, called in the supervisor's loop, does the rest.

    A child that is starting is told when it has reported: at last all know the same.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._debug_wanted = False
        self._debug = False
        self._reopen_wanted = False
        self._reopened = 0
        self._told: dict[int, ChildLogState] = {}

    def note_toggle(self) -> None:
        """SIGUSR2 came."""
        self._debug_wanted = not self._debug_wanted

    def note_reopen(self) -> None:
        """SIGHUP came."""
        self._reopen_wanted = True

    def turn(self, children: Iterable[Listener]) -> None:
        """Does what was asked for, and tells each child that does not know."""
        if self._reopen_wanted:
            self._reopen_wanted = False
            self._reopened += 1
            reopen(self.file)
        if self._debug != self._debug_wanted:
            self._debug = self._debug_wanted
            set_debug(self._debug)
        before, self._told = self._told, {}
        for child in children:
            told = before.get(child.pid, ChildLogState(False, self._reopened))
            self._told[child.pid] = self._tell(child, told) if child.has_reported else told

    def _tell(self, child: Listener, told: ChildLogState) -> ChildLogState:
        if told.debug != self._debug:
            child.signal(signal.SIGUSR2)
        if told.reopened != self._reopened:
            child.signal(signal.SIGHUP)
        return ChildLogState(self._debug, self._reopened)


def node_log(stop: StopFlag) -> NodeLog:
    """Installs the signals. SIGHUP reopens the log's file, but stops a node that was started on a
    terminal, in order: there it says that the terminal is gone. `nohup` is left as it is."""
    made = NodeLog(file_of_stderr())
    if made.file is None:
        os.environ.pop(FILE_VARIABLE, None)
    else:
        os.environ[FILE_VARIABLE] = str(made.file)
    signal.signal(signal.SIGUSR2, lambda _number, _frame: made.note_toggle())
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        wish = stop.set if has_terminal() else made.note_reopen
        signal.signal(signal.SIGHUP, lambda _number, _frame: wish())
    return made


def has_terminal() -> bool:
    """Whether a terminal controls this process: who closes it ends what was started there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
