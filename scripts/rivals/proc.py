"""The cost of processes: seconds of processor time, and memory without the store's pages.

Both sides of a comparison are measured by these functions alone.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MIB = 1024 * 1024
_PR_SET_PDEATHSIG = 1
_HEAD_STARTS = b"0123456789abcdef"
"""A mapping's line begins with its address, the lines about it with a capital letter."""
_HEAD_FIELDS = 5
"""Before the path, which may have spaces."""


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
    """User and system time of processes, with that of ended children."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def private_mib(pids: Iterable[int], root: Path) -> float:
    """MiB that processes hold together: PSS, without what they have mapped of the store `root`."""
    total_kib = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            total_kib += pss_kib(Path(f"/proc/{pid}/smaps").read_bytes(), os.fsencode(root))
    return total_kib * 1024 / MIB


def pss_kib(smaps: bytes, root: bytes) -> int:
    """The sum of `Pss` over the mappings of an smaps file that are not of files below `root`.

    psutil's `memory_maps` takes three times as much of the processor, beside what is measured.
    """
    below, total, counts = root.rstrip(b"/") + b"/", 0, True
    for line in smaps.splitlines():
        if line[0] in _HEAD_STARTS:
            *_, path = line.split(maxsplit=_HEAD_FIELDS)
            counts = not path.startswith(below)
        elif counts and line.startswith(b"Pss:"):
            total += int(line.split()[1])
    return total


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


def open_handles(pid: int) -> int:
    """File descriptors of a process; 0 when it is gone."""
    with suppress(psutil.Error):
        return psutil.Process(pid).num_fds()
    return 0
