"""The machine of a load: what it is, and what processes of the node and the load use of it.

The machine and versions are enough to know whether two results may be compared. While a load runs,
the node's processes and the load's own are looked at.
"""

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

import keelog
from keelog.bench.results import ProcessSample, ProcessUse
from keelog.client.client import Client
from keelog.diag import mount_of
from node.runtime.settings import load_settings
from node.supervisor.child_process import SOURCE_ROOT, UNKNOWN
from protocol.errors import MqError

MEMORY_EVERY_S = 5.0
"""Reading it walks the page tables of all that a process maps."""
LOCAL = ("tcp://127.", "tcp://localhost", "tcp://[::1]", "ipc://")
_KIB = 1024


def describe(
    store: Path | str | None, settings: tuple[str, ...], kernel: str | None
) -> dict[str, Any]:
    """The machine, the versions and the command. `store`: where its files are, if
    on this machine; `kernel`: what the node says of its compiled kernel."""
    mount = mount_of(Path(store)) if store else None
    asked = load_settings(settings)
    pool = ", transient pool" if asked.transient_store_pool_enable else ""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "version": keelog.__version__,
        "revision": revision(),
        "python": platform.python_version(),
        "kernel": kernel,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "file_system": f"{mount.fstype} on {mount.device}" if mount else None,
        "flush_mode": f"{asked.flush_disk_type}{pool}",
        "settings": list(settings),
    }


def revision() -> str | None:
    """The git revision of the source tree, with + after it when it was changed; None without."""
    command = ["git", "-C", str(SOURCE_ROOT), "describe", "--always", "--exclude=*", "--dirty=+"]
    with suppress(OSError, subprocess.CalledProcessError):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout.strip()
    return None


def cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


class Memory(NamedTuple):
    """Bytes of one process."""

    pss: int
    uss: int
    anon: int


def memory_of(pid: int) -> Memory | None:
    """From the kernel's summary of its mappings; None when it is gone or may not be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    found = {
        name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)
    }
    private = found["Private_Clean"] + found["Private_Dirty"]
    return Memory(found["Pss"] * _KIB, private * _KIB, found["Pss_Anon"] * _KIB)


class _Track:
    """One named process, whatever its pids."""

    def __init__(self) -> None:
        self.pids: dict[int, tuple[float, float]] = {}
        """For each pid its CPU seconds when first and last seen."""
        self.most: Memory | None = None

    def cpu(self, pid: int, cpu_s: float, begins_at: float) -> None:
        first = self.pids[pid][0] if pid in self.pids else begins_at
        self.pids[pid] = (first, cpu_s)

    @property
    def cpu_s(self) -> float:
        return sum(last - first for first, last in self.pids.values())


class ProcessWatch:
    """Follows each process by its name: `writer`, `queue 0`, `send 1`."""

    def __init__(self, client: Client, others: Mapping[str, int]) -> None:
        """Takes the first look. `others`: the load's processes, their pids by name."""
        self._client = client
        self.start_ns = time.monotonic_ns()
        """Seconds count from here."""
        self._is_local = client.endpoint.startswith(LOCAL)
        self._tracks: dict[str, _Track] = {}
        self._others = others
        self._cpu_before: dict[str, float] = {}
        self._looked_ns = time.monotonic_ns()
        self._memory_at = 0.0
        self.looks: list[ProcessSample] = []
        self.lag: dict[str, int] = {}
        self.look(is_first=True)

    def look(self, is_first: bool = False) -> None:
        """One look. A node that does not reply now is looked at the next time."""
        now = time.monotonic_ns()
        cpu = {name: (pid, _cpu_s(pid)) for name, pid in self._others.items()}
        with suppress(MqError):
            cpu |= self._ask_node()
        for name, (pid, cpu_s) in cpu.items():
            track = self._tracks.setdefault(name, _Track())
            track.cpu(pid, cpu_s, cpu_s if is_first else 0.0)
        span = max(1, now - self._looked_ns) / 1e9
        used = {name: track.cpu_s for name, track in self._tracks.items()}
        cores = {n: round((s - self._cpu_before.get(n, 0.0)) / span, 3) for n, s in used.items()}
        self._cpu_before, self._looked_ns = used, now
        at = round((now - self.start_ns) / 1e9, 3)
        anon = self._measure_memory(cpu, at)
        if not is_first:
            self.looks.append(ProcessSample(at, cores, dict(self.lag), anon))

    def _ask_node(self) -> dict[str, tuple[int, float]]:
        status = self._client.status()
        found: dict[str, tuple[int, float]] = {}
        roles = [one.role for one in status.processes]
        for one in status.processes:
            name = one.role if roles.count(one.role) == 1 else f"{one.role} {one.index}"
            if one.pid and one.cpu_s is not None:
                found[name] = (one.pid, one.cpu_s)
            if one.role in ("queue", "index"):
                self.lag[name] = one.lag_bytes or 0
        supervisor = status.raw.get("supervisor", {})
        if supervisor.get("cpu_s") is not None:
            found["supervisor"] = (supervisor["pid"], supervisor["cpu_s"])
        return found

    def _measure_memory(self, cpu: dict[str, tuple[int, float]], at: float) -> dict[str, int]:
        if not self._is_local or (self.looks and at < self._memory_at + MEMORY_EVERY_S):
            return {}
        self._memory_at = at
        anon = {}
        for name, (pid, _) in cpu.items():
            memory, track = memory_of(pid), self._tracks[name]
            if memory is not None:
                anon[name] = memory.anon
                track.most = Memory(*map(max, track.most or memory, memory))
        return anon

    def uses(self, messages: int) -> list[ProcessUse]:
        """The cost of each process for this number of messages."""
        return [
            process_use(name, track.cpu_s, messages, track.most, len(track.pids))
            for name, track in self._tracks.items()
        ]


def process_use(
    name: str, cpu_s: float, messages: int, memory: Memory | None, pids: int = 1
) -> ProcessUse:
    """The cost of one process for a number of messages."""
    return ProcessUse(
        name,
        cpu_s=round(cpu_s, 3),
        cpu_s_per_million=round(cpu_s / messages * 1e6, 3) if messages else None,
        pss_bytes=memory.pss if memory else None,
        uss_bytes=memory.uss if memory else None,
        anon_bytes=memory.anon if memory else None,
        pids=pids,
    )


def _cpu_s(pid: int) -> float:
    with suppress(psutil.Error, OSError, *UNKNOWN):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return 0.0
