"""What processes cost, from /proc: seconds of processor time, and memory without the store's pages.

Both sides of a comparison are measured by these functions alone.
"""

import ctypes
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MIB = 1024 * 1024
_HEAD = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)$")
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when this process ends, however it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """A process and all below it; those that are alive."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [pid, *(child.pid for child in top.children(recursive=True))]
    return []


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes, with that of children who have ended."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def private_mib(pids: Iterable[int], root: Path) -> float:
    """MiB that processes hold together: PSS, without what they have mapped of the store `root`."""
    total = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            total += pss_bytes(Path(f"/proc/{pid}/smaps").read_bytes(), os.fsencode(root))
    return total / MIB


@contextmanager
def read_once(after_s: float, read: Callable[[], float]) -> Iterator[list[float]]:
    """Reads a figure once while the inside runs, if it takes so long; the list then has it."""
    found: list[float] = []
    over = threading.Event()

    def look() -> None:
        if not over.wait(after_s):
            found.append(read())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def pss_bytes(smaps: bytes, root: bytes) -> int:
    """The sum of `Pss` over the mappings of an smaps file that are not of files below `root`."""
    total, counted = 0, True
    for line in smaps.splitlines():
        head = _HEAD.match(line)
        if head:
            path = head.group(1)
            counted = not (path == root or path.startswith(root.rstrip(b"/") + b"/"))
        elif counted and line.startswith(b"Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def open_handles(pid: int) -> int:
    """File descriptors of a process; 0 when it is gone."""
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names alone are needed
    return 0
