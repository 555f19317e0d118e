"""A node as a service of its machine: systemd, signals for its log, the process it runs for.

It notifies systemd, as a service of `Type=notify` must (sd_notify(3)). It passes SIGHUP and SIGUSR2
on to all its processes, whose logs are one. It ends together with the process that it runs for, a
test or a load.
"""

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from node.runtime.event_log import (
    FILE_VARIABLE,
    fields,
    file_of_stderr,
    note_hangup,
    reopen,
    set_debug,
)
from node.runtime.process import StopFlag
from node.runtime.shortage import MORE_TASKS, SHORT
from node.supervisor.child_process import Process
from protocol.errors import BadRequest, RefusedError

log = logging.getLogger("keelog.supervisor")

EXTENSION_S = 60
"""The extra time that a start asks for while it goes on."""
STATUS_CHARS_MAX = 1_000

_EXTEND_EACH_S = 10.0
_LOOK_AGAIN_S = 0.1


class ServiceManager:
    """Sends the state of the node to the service manager that started it, if one did."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_each_s = watchdog_s / 2
        self._said = ""
        self._is_ready = False
        self._extend_at = 0.0
        self._watchdog_at = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """Takes the variables out of the environment: they are not for child processes."""
        address = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        interval_us = environment.pop("WATCHDOG_USEC", "")
        is_ours = interval_us.isdecimal() and pid == str(os.getpid())
        return cls(address, int(interval_us) / 1e6 if is_ours else 0.0)

    def turn(self, now: float, has_started: bool, state: str) -> None:
        """Sends READY once, the watchdog, and more time for a start; call it in each turn."""
        if not self._address:
            return
        said = []
        if has_started and not self._is_ready:
            self._is_ready = True
            said.append("READY=1")
        if not has_started and not self._is_ready and now >= self._extend_at:
            self._extend_at = now + _EXTEND_EACH_S
            said.append(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")
        if self._watchdog_each_s and now >= self._watchdog_at:
            self._watchdog_at = now + self._watchdog_each_s
            said.append("WATCHDOG=1")
        if state != self._said:
            self._said = state
            said.append(f"STATUS={' '.join(state.split())[:STATUS_CHARS_MAX]}")
        self._send(said)

    def stopping(self) -> None:
        self._send(["STOPPING=1"])

    def _send(self, said: list[str]) -> None:
        if not said or not self._address:
            return
        # A manager that is gone, or does not read, must not stop the node.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(said).encode(), self._address)


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
        self._children: dict[int, tuple[bool, int]] = {}
        """By the pid of each child, what its log has of `_debug` and `_reopened`."""

    def note_toggle(self) -> None:
        """Notes a SIGUSR2."""
        self._debug_wanted = not self._debug_wanted

    def note_reopen(self) -> None:
        """Notes a SIGHUP."""
        note_hangup()
        self._reopen_wanted = True

    def turn(self, children: Iterable[Process]) -> None:
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
            debug, reopened = before.get(child.pid, (False, self._reopened))
            if child.has_reported:
                if debug != self._debug:
                    child.signal(signal.SIGUSR2)
                if reopened != self._reopened:
                    child.signal(signal.SIGHUP)
                debug, reopened = self._debug, self._reopened
            self._children[child.pid] = debug, reopened


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


def stop_at_end_of(pid: int, stop: StopFlag) -> None:
    """Sets the flag when process `pid` ends. Raises BadRequest if there is none, and RefusedError
    where no thread can be started.

    A process ends with its last thread. `process.die_with_parent` would react to the end of the one
    thread that started us, which may be long before.
    """
    try:
        process = psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError) as error:
        raise BadRequest(f"there is no process {pid}", "the pid of one that runs") from error
    try:
        threading.Thread(target=_wait_for_end, args=(process, stop), daemon=True).start()
    except RuntimeError as error:
        raise RefusedError(f"{SHORT}: {error}", MORE_TASKS) from error


def _wait_for_end(process: psutil.Process, stop: StopFlag) -> None:
    pid = process.pid
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:  # it has ended; or before Linux 5.3, or forbidden
        while process.is_running() and not _is_zombie(process):
            time.sleep(_LOOK_AGAIN_S)
    else:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if process.is_running():  # not another one, which got its number in between
            poll.poll()
        os.close(pidfd)
    log.warning("the process that this node runs for has ended", extra=fields(process_pid=pid))
    stop.set()


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # it has ended, and was reaped, in this moment
        return True
