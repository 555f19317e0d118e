"""The machine and versions of a load: enough to know whether two results may be compared."""

import os
import platform
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from keelog.cli.options import version
from keelog.diag import mount_of
from node.runtime.settings import load_settings
from node.supervisor.child_process import SOURCE_ROOT


def describe(
    store: Path | str | None, settings: tuple[str, ...], kernel: str | None
) -> dict[str, Any]:
    """The machine, the versions and the command. `store`: where its files are, if
    on this machine; `kernel`: what the node says of its compiled kernel."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "version": version(),
        "revision": revision(),
        "python": platform.python_version(),
        "kernel": kernel,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "file_system": file_system(Path(store)) if store else None,
        "flush_mode": flush_mode(settings),
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
    """As the kernel names it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def file_system(path: Path) -> str | None:
    """The type of the file system that holds `path`, and its device."""
    mount = mount_of(path)
    return None if mount is None else f"{mount.fstype} on {mount.device}"


def flush_mode(settings: tuple[str, ...]) -> str:
    """The flush mode that the settings ask for."""
    asked = load_settings(settings)
    mode = asked.flush_disk_type
    return f"{mode}, transient pool" if asked.transient_store_pool_enable else mode
