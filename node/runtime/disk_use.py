"""How full the disk of a store is, and what its settings do then: one count for everybody.

The writer acts on it, and status, health, metrics and RocketMQ's tools show the same numbers.
"""

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

from node.runtime.settings import Settings
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR

_HOUR_S = 3600
_DAY_HOURS = 24


class DiskSpace(NamedTuple):
    """A file system, as `df` counts: what is kept for root is neither used nor free."""

    total_bytes: int
    used_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        """0 to 1, of what may be used (RocketMQ: UtilAll#getDiskPartitionSpaceUsedPercent)."""
        usable = self.used_bytes + self.free_bytes
        return self.used_bytes / usable if usable else 1.0

    @property
    def used_percent(self) -> int:
        """Rounded up, as a broker does."""
        usable = self.used_bytes + self.free_bytes
        return math.ceil(100 * self.used_bytes / usable) if usable else 100


class DiskUse(NamedTuple):
    """How full the file systems of the log and of the queues are, in whole percent."""

    log_percent: int
    queue_percent: int


def disk_space(path: Path) -> DiskSpace:
    """Of a path's file system. Raises OSError."""
    space = os.statvfs(path)
    used = space.f_blocks - space.f_bfree
    sizes = (space.f_blocks, used, space.f_bavail)
    return DiskSpace(*(blocks * space.f_frsize for blocks in sizes))


def used_percent(path: Path) -> int:
    """The used part of a path's file system. Raises OSError."""
    return disk_space(path).used_percent


def room_below(path: Path, percent: int) -> int:
    """The bytes that are left until `used_percent` is above `percent`; negative above it."""
    space = disk_space(path)
    return (space.used_bytes + space.free_bytes) * percent // 100 - space.used_bytes


def use_of(root: Path) -> DiskUse:
    """Of a store, whose queues may be on another disk than its log. Raises OSError."""
    log, queues = root / COMMIT_LOG_DIR, root / CONSUME_QUEUE_DIR
    log_percent = used_percent(log if log.is_dir() else root)
    return DiskUse(log_percent, used_percent(queues) if queues.is_dir() else log_percent)


def forced_ratio(settings: Settings) -> int:
    """Percent above which segments go before their time, where the settings allow that."""
    return min(settings.disk_space_clean_forcibly_ratio, settings.disk_space_warning_level_ratio)


def refusal_at(use: DiskUse, settings: Settings) -> str:
    """Why appends are refused on so full a disk; empty while they are not."""
    ratio = settings.disk_space_warning_level_ratio
    if max(use) <= ratio:
        return ""
    return f"the disk is {max(use)} % full, above disk_space_warning_level_ratio, {ratio} %"


def shortage_at(use: DiskUse, settings: Settings) -> str:
    """What so full a disk costs, for status and health; empty while it costs nothing."""
    if refused := refusal_at(use, settings):
        return f"{refused}: no appends"
    ratio = forced_ratio(settings)
    if max(use) <= ratio or not settings.clean_file_forcibly_enable:
        return ""
    return (
        f"the disk is {max(use)} % full, above disk_space_clean_forcibly_ratio, {ratio} %: segments"
        " are deleted before their time"
    )


def next_delete_s(at_s: float, settings: Settings) -> int:
    """The first moment from `at_s` on in an hour of `delete_when`, in seconds since 1970.

    Hours begin by the local clock: in zones with half an hour not when those of UTC do.
    """
    start, local = int(at_s), time.localtime(int(at_s))
    whole_s = start - 60 * local.tm_min - local.tm_sec
    moments = (start, *(whole_s + step * _HOUR_S for step in range(1, _DAY_HOURS + 1)))
    hours = settings.delete_hours
    return next((one for one in moments if time.localtime(one).tm_hour in hours), start)
