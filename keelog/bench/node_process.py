"""A node as a subprocess of a load: started, looked at, killed in part or as a whole, stopped.

In a load with kills, workers and readers of the running node are killed with SIGKILL, and each is
awaited until it comes back.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from keelog.client.client import Client, connect
from node.runtime.addresses import loopback
from node.runtime.event_log import FORMAT_VARIABLE
from node.supervisor.bind import free_ports
from node.supervisor.child_process import command, environment
from node.supervisor.options import MODULES
from protocol.errors import RequestTimeout, ServiceNotAvailable
from protocol.status import ProcessStatus

ANY_DISK = ("disk_space_warning_level_ratio=100", "clean_file_forcibly_enable=false")
"""Loads run on disks that are 90 % full, too."""
START_S = 300
STOP_S = 300
CATCH_UP_S = 300
_READY = re.compile(r"^ready (\S+)", re.MULTILINE)
_ROLES = {module: str(role) for role, module in MODULES.items()}
KILLED_ROLES = ("queue", "index", "reader")


class Node:
    """`keelog serve`; its output goes to a file beside the store, one for all its starts.

    As a context it is started, and killed at the end. It stops when the process that began it ends,
    for any reason.
    """

    def __init__(
        self,
        root: Path,
        settings: Sequence[str],
        *,
        queue_workers: int = 1,
        readers: int = 2,
        env: Mapping[str, str] | None = None,
        host: str = "",
    ) -> None:
        """`env`: variables that it has beside ours. `host`: where it listens, instead of the usual
        address of loopback."""
        self.root = root
        self._env = {**environment(), **(env or {}), FORMAT_VARIABLE: "text"}
        self.talk = root.with_name("node.log")
        host = host or loopback()
        self.endpoint = f"tcp://{host}:{free_ports(2 + readers, host)}"
        self._command = command("keelog", ["serve", str(root)])
        self._command += ["--bind", self.endpoint, "--restart-limit", "0"]
        self._command += ["--queue-workers", str(queue_workers), "--readers", str(readers)]
        for pair in settings:
            self._command += ["-X", pair]
        self._process: subprocess.Popen[bytes] | None = None
        self._talk_start = 0

    def begin(self) -> None:
        """Starts it, for the first time or again, and does not wait."""
        with self.talk.open("ab") as talk:
            self._talk_start = talk.tell()
            # A group of its own: Ctrl-C reaches the load alone, which stops the node in order.
            self._process = subprocess.Popen(
                [*self._command, "--while-pid", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=talk,
                stderr=talk,
                env=self._env,
                process_group=0,
            )

    def await_ready(self) -> None:
        """Returns when it has said that it is ready. Raises ServiceNotAvailable."""
        assert self._process is not None, "not started"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if _READY.search(self.said()):
                return
            time.sleep(0.02)
        self.kill()
        raise ServiceNotAvailable(f"the node did not start: {self.said()}", "look at what it said")

    def start(self) -> Self:
        """Starts it and returns when it is ready. Raises ServiceNotAvailable."""
        self.begin()
        self.await_ready()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.is_running:
            self.kill()

    def await_dispatched(self) -> None:
        """Returns when queues and index hold all of the log. Raises RequestTimeout."""
        with connect(self.endpoint, timeout=60) as client:
            await_workers(client)

    @property
    def pid(self) -> int:
        """Of its supervisor."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether its supervisor lives."""
        return self._process is not None and self._process.poll() is None

    def said(self) -> str:
        """Its output since its last start."""
        return self.talk.read_bytes()[self._talk_start :].decode(errors="replace")

    def children(self) -> list[tuple[str, psutil.Process]]:
        """The processes that it has now, and the role of each."""
        assert self._process is not None, "not started"
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    roles = [_ROLES[word] for word in child.cmdline() if word in _ROLES]
                    found += [(role, child) for role in roles[:1]]
        return found

    def pids(self) -> dict[str, int]:
        """Its process ids by name: `supervisor`, `writer`, `queue`, `queue 2`, …"""
        found = {"supervisor": self.pid}
        for role, process in self.children():
            same = sum(name.split()[0] == role for name in found)
            found[f"{role} {same + 1}" if same else role] = process.pid
        return found

    def kill(self) -> None:
        """SIGKILL to the supervisor and all its children at the same moment."""
        assert self._process is not None, "not started"
        # The supervisor is held first: else it would start the ones anew that are killed before it.
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGSTOP)
        children = [child for _, child in self.children()]
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.kill()
        self._process.wait(STOP_S)
        psutil.wait_procs(children, STOP_S)

    def kill_supervisor(self) -> list[psutil.Process]:
        """SIGKILL to the supervisor alone; returns the children, which must end by themselves."""
        assert self._process is not None, "not started"
        children = [child for _, child in self.children()]
        self._process.kill()
        self._process.wait(STOP_S)
        return children

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None, "not started"
        self._process.terminate()
        return self._process.wait(STOP_S)


def processes(client: Client) -> dict[tuple[str, int], ProcessStatus]:
    """The node's processes by role and index."""
    return {(one.role, one.index or 0): one for one in client.status().processes}


def await_workers(client: Client) -> float:
    """Seconds until queues and index hold all of the log. Raises RequestTimeout."""
    began = time.monotonic()
    while time.monotonic() < began + CATCH_UP_S:
        now = processes(client)
        if all(one.lag_bytes == 0 for (role, _), one in now.items() if role in ("queue", "index")):
            return time.monotonic() - began
        time.sleep(0.05)
    raise RequestTimeout(f"the workers did not catch up within {CATCH_UP_S} s", "keelog status")


@dataclass(slots=True)
class Kill:
    """One process killed: when, and how long until its successor ran, both in seconds."""

    role: str
    index: int
    at: float
    back_s: float


class Killer:
    """Kills one process after the other and waits for each to come back."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.kills: list[Kill] = []
        self.began = 0.0
        """When the load began, by the monotonic clock."""
        self._since: float | None = None
        self.late: list[str] = []
        """Processes that did not come back in time."""

    def spans(self) -> list[tuple[float, float]]:
        """From when to when a process was away; one may be away now."""
        done = [(one.at, one.at + one.back_s) for one in self.kills]
        return done if self._since is None else [*done, (self._since, time.monotonic())]

    def victims(self) -> list[tuple[str, int]]:
        """Workers and readers, by role and index."""
        return sorted(name for name in processes(self._client) if name[0] in KILLED_ROLES)

    def kill(self, role: str, index: int) -> None:
        """Kills one, and waits until the next one runs."""
        pid = processes(self._client)[role, index].pid
        if pid is None:
            self.late.append(f"{role} {index} has no process")
            return
        self._since = began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() < began + START_S:
            time.sleep(0.02)
            now = processes(self._client)[role, index]
            if now.pid not in (None, pid) and now.state == "running":
                self.kills.append(Kill(role, index, began, time.monotonic() - began))
                self._since = None
                return
        self.late.append(f"{role} {index} did not come back within {START_S} s")
