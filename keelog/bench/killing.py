"""Kills workers and readers of a running node with SIGKILL, and waits for each to come back."""

import os
import signal
import time
from dataclasses import dataclass

from keelog.bench.node_process import START_S, processes
from keelog.client.client import Client

KILLED_ROLES = ("queue", "index", "reader")


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
