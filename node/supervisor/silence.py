"""Looks for signs of life of a node's processes, and kills those that give none.

A heartbeat in a state page is a sign, and so are bytes from and to the disk; while a process starts
or resumes, its processor time is one too. `node.supervisor.plan` decides what a look means.
"""

import logging
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from node.runtime.event_log import fields
from node.runtime.state_page import RECOVERING, STARTING, LogPage, WorkerPage
from node.supervisor.child_process import Process
from node.supervisor.plan import (
    Child,
    ChildRole,
    ChildState,
    RestartLimits,
    Sign,
    is_stalled,
    note_last_words,
    note_sign,
    page_slot,
)

log = logging.getLogger("keelog.supervisor")

LOOK_EVERY_S = 0.9
"""More than the time between two heartbeats."""
_STARTS = (STARTING, RECOVERING)
UNKNOWN = (AttributeError, ValueError, NotImplementedError, RuntimeError, IndexError)
"""Raised by psutil where /proc has not, or not in its usual form, what it looks for: on small
boards without /proc/PID/io, in sandboxes."""


class SilenceWatch:
    """For the supervisor's own thread: call `look` in each turn."""

    def __init__(self, root: Path, shards: int, limits: RestartLimits) -> None:
        self._root = root
        self._shards = shards
        self._limits = limits
        self._looked_at: float | None = None

    def look(self, children: Sequence[Child], processes: Mapping[int, Process], now: float) -> None:
        """Notes the signs of life. `processes`: those that run, by the child's position."""
        if self._looked_at is not None and now - self._looked_at < LOOK_EVERY_S:
            return
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        for number, process in processes.items():
            child = children[number]
            sign = self._sign(child)
            if sign is None:
                continue
            note_sign(child, sign, passed_s)
            if is_stalled(child, self._limits):
                with suppress(OSError):  # without a descriptor for the look: in the next turn
                    self._end(child, process)

    def _sign(self, child: Child) -> Sign | None:
        """None for a process that is gone, or if no descriptor is free for the look.

        What the system does not show counts as 0: then heartbeats alone are signs.
        """
        with suppress(psutil.Error, OSError):
            heartbeat_ms, is_starting = self._heartbeat(child)
            before = child.sign
            if before is not None and not is_starting and heartbeat_ms != before.heartbeat_ms:
                # It lives: nothing else is looked at, which would cost an idle node most of all.
                return before._replace(heartbeat_ms=heartbeat_ms, cpu_s=0.0)
            process, cpu_s = psutil.Process(child.pid), 0.0
            if is_starting or child.state is not ChildState.RUNNING:
                with suppress(*UNKNOWN):
                    times = process.cpu_times()
                    cpu_s = times.user + times.system
            return Sign(heartbeat_ms, _disk_bytes(process), cpu_s)
        return None

    def _heartbeat(self, child: Child) -> tuple[int, bool]:
        """The heartbeat in its page, or 0, and whether it starts or resumes. Raises OSError."""
        epoch = 0
        with suppress(FileNotFoundError), LogPage.open(self._root) as log_page:
            log_state = log_page.read()
            if child.role is ChildRole.WRITER:
                return log_state.heartbeat_ms, log_state.state in _STARTS
            epoch = log_state.epoch
        slot = page_slot(child, self._shards)
        with suppress(FileNotFoundError), WorkerPage.open(self._root, slot) as page:
            state = page.read()
            return state.heartbeat_ms, state.state in _STARTS or state.epoch != epoch
        return 0, False

    def _end(self, child: Child, process: Process) -> None:
        """Kills the process. If it waits for the disk in a system call it ends only when that
        returns; until then no other one is started, because this one may still write."""
        waits = waits_for_disk(process.pid)
        extra = fields(process=child.name, silent_s=round(child.computing_s))
        if waits and not child.waits_for_disk:
            log.error("process is silent: a call to the disk does not return", extra=extra)
        child.waits_for_disk = waits
        if waits or child.is_killed_for_silence:
            return
        log.error("process gives no sign of life and is killed", extra=extra)
        child.is_killed_for_silence = True
        note_last_words(child, f"it gave no sign of life for {child.computing_s:.0f} s")
        process.signal(signal.SIGKILL)


def _disk_bytes(process: psutil.Process) -> int:
    with suppress(psutil.AccessDenied, FileNotFoundError, *UNKNOWN):
        disk = process.io_counters()
        return int(disk.read_bytes + disk.write_bytes)
    return 0


def waits_for_disk(pid: int) -> bool:
    """True if a thread of a process sleeps in a system call that no signal interrupts.

    Raises OSError.
    """
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            # The state follows the name, which is in parentheses and may hold any character.
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "D":
                return True
    return False
