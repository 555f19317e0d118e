"""The log of a whole node: the supervisor passes SIGHUP and SIGUSR2 on to all its processes."""

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
    """The state of the log in a child."""

    debug: bool
    reopened: int


class NodeLog:
    """Handlers only note the signals; `turn`, called in the supervisor's loop, does the rest.

    A child that starts gets the signals after its first report, so that all agree in the end.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._debug_wanted = False
        self._debug = False
        self._reopen_wanted = False
        self._reopened = 0
        self._children: dict[int, ChildLogState] = {}
        """The state of each child, by its pid."""

    def note_toggle(self) -> None:
        """Notes a SIGUSR2."""
        self._debug_wanted = not self._debug_wanted

    def note_reopen(self) -> None:
        """Notes a SIGHUP."""
        self._reopen_wanted = True

    def turn(self, children: Iterable[Listener]) -> None:
        """Acts on the signals that were noted, and signals each child that has not yet."""
        if self._reopen_wanted:
            self._reopen_wanted = False
            self._reopened += 1
            reopen(self.file)
        if self._debug != self._debug_wanted:
            self._debug = self._debug_wanted
            set_debug(self._debug)
        before, self._children = self._children, {}
        for child in children:
            state = before.get(child.pid, ChildLogState(False, self._reopened))
            self._children[child.pid] = self._update(child, state) if child.has_reported else state

    def _update(self, child: Listener, state: ChildLogState) -> ChildLogState:
        if state.debug != self._debug:
            child.signal(signal.SIGUSR2)
        if state.reopened != self._reopened:
            child.signal(signal.SIGHUP)
        return ChildLogState(self._debug, self._reopened)


def node_log(stop: StopFlag) -> NodeLog:
    """Installs the handlers. SIGHUP reopens the log file; on a terminal it stops the node cleanly,
    because there it means that the terminal is gone. `nohup` keeps its effect."""
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
    """True if a terminal controls this process: its SIGHUP must then end the process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
