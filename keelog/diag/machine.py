"""A machine and its settings, beside those that RocketMQ asks for."""

import os
import resource
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from node.runtime.shortage import disk_space
from node.supervisor.child_process import UNKNOWN

Fields = dict[str, Any]

ROCKETMQ_SYSCTL = {
    "vm.overcommit_memory": 1,
    "vm.zone_reclaim_mode": 0,
    "vm.max_map_count": 655_360,
    "vm.dirty_background_ratio": 50,
    "vm.dirty_ratio": 50,
    "vm.dirty_writeback_centisecs": 360_000,
    "vm.page-cluster": 3,
    "vm.swappiness": 1,
}
"""The values of RocketMQ's bin/os.sh. Its ratios for dirty pages suit a broker with a pool of its
own: here they only make a power loss dearer."""
_SYSCTL = Path("/proc/sys")
_ATTRIBUTES = ("pid", "name", "status", "create_time", "num_threads", "num_fds", "nice")


def machine(store: Path | None) -> Fields:
    """Processors, memory, limits and settings of the kernel; the disk of the store. None for what
    the system does not show."""
    memory, swap = _known(psutil.virtual_memory), _known(psutil.swap_memory)
    booted_at = _known(psutil.boot_time)
    return {
        "processors": os.cpu_count(),
        "load": _known(os.getloadavg),
        "memory_bytes": memory and memory.total,
        "memory_available_bytes": memory and memory.available,
        "swap_used_bytes": swap and swap.used,
        "booted_at": booted_at and int(booted_at * 1000),
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE),
        "locked_memory_max": resource.getrlimit(resource.RLIMIT_MEMLOCK),
        "sysctl": sysctl_hints(),
        "disk": None if store is None or not store.exists() else disk(store),
    }


def _known(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except (psutil.Error, OSError, *UNKNOWN):
        return None


def sysctl_hints(root: Path = _SYSCTL) -> list[Fields]:
    """Each setting as it is here and as RocketMQ's os.sh sets it; None for one that is unknown."""
    rows = []
    for name, wanted in ROCKETMQ_SYSCTL.items():
        try:
            here = int((root / name.replace(".", "/")).read_text())
        except (OSError, ValueError):
            here = None
        rows.append({"name": name, "here": here, "rocketmq": wanted, "same": here == wanted})
    return rows


def mount_of(path: Path) -> Any:
    """The mount that holds a path, as psutil has it: the one with the longest mount point."""
    mounts = [
        one
        for one in _known(partial(psutil.disk_partitions, all=True)) or ()
        if path.resolve().is_relative_to(one.mountpoint)
    ]
    return max(mounts, key=lambda one: len(one.mountpoint), default=None)


def disk(store: Path) -> Fields:
    """The file system that a store is on."""
    inodes, space, mount = os.statvfs(store).f_favail, disk_space(store), mount_of(store)
    return {
        "type": None if mount is None else mount.fstype,
        "options": None if mount is None else mount.opts,
        "total_bytes": space.total_bytes,
        "free_bytes": space.free_bytes,
        "free_inodes": inodes,
    }


def process_table(pids: Iterable[int]) -> list[Fields]:
    """The node's processes as the system sees them; one that ended meanwhile, or that it does not
    show, is left out."""
    rows = []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            row = process.as_dict(_ATTRIBUTES)
            row["rss_bytes"] = process.memory_info().rss
            row["cpu_s"] = sum(process.cpu_times()[:2])
            row["open_files_max"] = process.rlimit(psutil.RLIMIT_NOFILE)
        except (psutil.Error, OSError, *UNKNOWN):
            continue
        rows.append(row)
    return rows
