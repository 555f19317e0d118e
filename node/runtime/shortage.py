"""What a node may run short of: room on its disk, descriptors, memory, tasks.

A shortage passes, unlike damage. An error of this kind ends only the call that met it: the same
call may succeed later.

Connections take every descriptor that is free. So a process keeps some open for nothing, and gives
them back when its store needs them: see `node.serving.doors`.

Tasks are processes and threads. The kernel refuses them for several reasons: pids.max of a cgroup
(TasksMax, --pids-limit), RLIMIT_NPROC (ulimit -u), a filter of system calls. ZeroMQ aborts its
process then, so each one tries first whether it may start as many.

How full the disk of a store is, and what its settings do then, is one count for everybody: the
writer acts on it, and status, health, metrics and RocketMQ's tools show the same numbers.
"""

import logging
import math
import os
import resource
import threading
import time
from pathlib import Path
from typing import NamedTuple

from node.runtime.disk import DISK_FULL, PASSING
from node.runtime.event_log import fields
from node.runtime.settings import Settings
from protocol.errors import MqError, ServiceNotAvailable
from protocol.names import COMMIT_LOG_DIR, CONSUME_QUEUE_DIR

log = logging.getLogger("keelog.process")

FILES_NEEDED = 56
"""The least RLIMIT_NOFILE for each process of a node, before queue workers and readers count."""
FILES_NEEDED_BY_CHILD = 4
"""Added for each queue worker and reader: its page and its wake-up, in writer and reader."""
STORE_SPARES = 12
"""Descriptors that are kept for the store's own files in a process that takes connections."""
DESCRIPTORS_FREE_MIN = 4
"""While fewer descriptors are free, no connection is accepted."""
BACKLOG_SHARE = 16
"""RLIMIT_NOFILE over this is the most connections that may wait: these still come in when no
more are let in."""
LIMITS_HINT = "raise the limit of open files (LimitNOFILE, ulimit -n)"

FULL = "disk_full"
SHORT = "no_resources"
FREE_SPACE = "free space; appends then go on"
MORE_RESOURCES = f"{LIMITS_HINT}, or give it more memory; it goes on by itself"
MORE_TASKS = "raise the limit of tasks: pids.max (TasksMax, --pids-limit), RLIMIT_NPROC (ulimit -u)"
_NO_THREAD = "can't start new thread"
"""The text of Python's RuntimeError, which says no more."""

TASKS_OF_SUPERVISOR = 6
TASKS_OF_CHILD = 5
"""The most that a process has as a rule, its threads for some work included."""
_STACK_BYTES = 64 * 1024
"""Of a thread that only waits."""

_HOUR_S = 3600
_DAY_HOURS = 24


def files_needed(children: int = 0) -> int:
    """The least RLIMIT_NOFILE in a node with this number of queue workers and readers."""
    return FILES_NEEDED + FILES_NEEDED_BY_CHILD * children


def check_file_limit(children: int = 0) -> None:
    """Raises ServiceNotAvailable when a process may open fewer files than it needs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = files_needed(children)
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise ServiceNotAvailable(
            f"no_resources: RLIMIT_NOFILE is {soft}, each process of this node needs {needed}",
            LIMITS_HINT,
        )


def backlog(most: int) -> int:
    """How many connections may wait to be accepted: `most`, or fewer if descriptors are few."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        most
        if soft == resource.RLIM_INFINITY
        else max(DESCRIPTORS_FREE_MIN, min(most, soft // BACKLOG_SHARE))
    )


class Spares:
    """Descriptors that are held open for nothing. For one thread."""

    def __init__(self, count: int) -> None:
        """`count`: one at least."""
        self._count = count
        self._held: list[int] = []

    def take(self) -> bool:
        """Holds all, if DESCRIPTORS_FREE_MIN more are free; else none, and returns False."""
        room: list[int] = []
        try:
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            while len(room) < DESCRIPTORS_FREE_MIN:
                room.append(os.dup(self._held[0]))  # cheaper than to open a file, at each look
        except OSError:
            return False
        finally:
            for descriptor in room:
                os.close(descriptor)
        return True

    def give_back(self) -> None:
        """From now on the store may use them."""
        while self._held:
            os.close(self._held.pop())


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error passes by itself, ours or the system's."""
    if isinstance(error, OSError):
        return error.errno in PASSING
    return is_disk_full(error) or lacks_resources(error) or _is_of_threads(error)


def _is_of_threads(error: BaseException | None) -> bool:
    return isinstance(error, RuntimeError) and _NO_THREAD in str(error)


def more_of(cause: str) -> str:
    """The hint for a lack of resources, by its cause."""
    return MORE_TASKS if "thread" in cause else MORE_RESOURCES


def in_our_words(error: BaseException | None) -> BaseException | None:
    """An error of ours in the place of Python's, where no thread could be started."""
    return ServiceNotAvailable(f"{SHORT}: {error}", MORE_TASKS) if _is_of_threads(error) else error


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error of ours reports a full disk."""
    return isinstance(error, ServiceNotAvailable) and error.reason.startswith(FULL)


def lacks_resources(error: BaseException | None) -> bool:
    """Whether an error of ours reports that descriptors, memory or tasks are short."""
    return isinstance(error, ServiceNotAvailable) and error.reason.startswith(SHORT)


def as_refusal(error: MqError | OSError, place: str) -> MqError:
    """The error that a client gets. Raises an OSError that is not a shortage again."""
    if isinstance(error, MqError):
        return error
    if error.errno not in PASSING:
        raise error
    return refusal_for(error, place)


def refusal_for(error: OSError, place: str) -> ServiceNotAvailable:
    """The refusal for a shortage. It names `place` if the error names no file."""
    if error.errno in DISK_FULL:
        return ServiceNotAvailable(f"{FULL}: no room for {place}", FREE_SPACE)
    text = f"{error.filename or place}: {error.strerror or error}"
    return ServiceNotAvailable(f"{SHORT}: {text}", MORE_RESOURCES)


def begin_if_possible(thread: threading.Thread) -> None:
    """For a thread that makes something faster: without it a process goes on, and tries again."""
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("not done for now", extra=fields(what=thread.name, why=error))


def tasks_needed(children: int) -> int:
    """Of a node with this number of processes below its supervisor."""
    return TASKS_OF_SUPERVISOR + TASKS_OF_CHILD * children


def check_task_limit(needed: int, whom: str) -> None:
    """Starts that number of threads for a moment. Raises ServiceNotAvailable where that fails.

    `whom`: who needs them, for people.
    """
    over = threading.Event()
    started: list[threading.Thread] = []
    before = threading.stack_size(_STACK_BYTES)
    try:
        for _ in range(needed):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (RuntimeError, MemoryError) as error:
        raise ServiceNotAvailable(
            f"{SHORT}: {whom} needs {needed} tasks (processes and threads), "
            f"only {len(started)} more can be started here: {error}",
            MORE_TASKS,
        ) from None
    finally:
        threading.stack_size(before)
        over.set()
        for thread in started:
            thread.join()


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
